"""One self-contained HTML page from headings, text, tables and plotly figures.

The page carries plotly's script once and needs no network; it is readable on a phone and in print, and the
figures share one look (`figure_layout`, `COLOURS`). A small page leaves the script, most of its bytes, in a file beside
it that all small pages of a folder share.
"""

import html
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.report.columns import legend

SCRIPT = "plotly.min.js"
"""The file beside small pages."""
COLOURS = (
    "#2f6fdf", "#e4572e", "#2a9d5c", "#8b5cf6", "#d99a00", "#0e9aa7", "#c2417b", "#6b7280",
    "#7a9e1f", "#a0522d", "#4c566a", "#e07be0", "#1f4e79", "#b8860b", "#5f9ea0", "#cd5c5c",
)  # fmt: skip
"""Told apart on white by people with the common kinds of colour blindness as well, in this order."""

_STYLE = """
:root { --ink: #1c2430; --soft: #5b6675; --line: #dfe4ea; --accent: #2f6fdf; }
body { font: 16px/1.55 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; color: var(--ink);
       margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 1080px; }
h1 { font-size: 1.7rem; margin: 0 0 .25rem; } h2 { font-size: 1.2rem; margin: 2.2rem 0 .4rem; }
p.lead { color: var(--soft); margin-top: 0; } p, li { max-width: 76ch; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .92rem; margin: .6rem 0 1rem; }
th, td { padding: .35rem .8rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
thead th { border-bottom: 2px solid var(--ink); } code { background: #f2f4f7; padding: .05rem .3rem; }
details { margin: .35rem 0; } summary { cursor: pointer; } summary:hover { color: var(--accent); }
.legend { color: var(--soft); font-size: .9rem; } .legend dt { font-weight: 600; }
.legend dd { margin: 0 0 .3rem 1rem; }
figure { margin: .5rem 0 1.2rem; } figcaption { color: var(--soft); font-size: .9rem; max-width: 84ch; }
"""


class Page:
    """Collects parts in order; `write` puts them into one file."""

    def __init__(self, title: str, lead: str = "") -> None:
        self.title = title
        self._figures = 0
        self._parts = [f"<h1>{html.escape(title)}</h1>"]
        if lead:
            self._parts.append(f'<p class="lead">{html.escape(lead)}</p>')

    def heading(self, text: str) -> None:
        self._parts.append(f"<h2>{html.escape(text)}</h2>")

    def text(self, *paragraphs: str) -> None:
        self._parts.extend(f"<p>{html.escape(paragraph)}</p>" for paragraph in paragraphs)

    def items(self, entries: Sequence[str]) -> None:
        rows = "".join(f"<li>{html.escape(entry)}</li>" for entry in entries)
        self._parts.append(f"<ul>{rows}</ul>")

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """A table; a column whose every cell is a number (or empty) is set flush right."""
        self._parts.append(_table(columns, rows) + _legend(columns))

    def fold(
        self,
        summary: str,
        paragraphs: Sequence[str],
        columns: Sequence[str],
        rows: Sequence[Sequence[object]],
    ) -> None:
        """A line that opens to text and a table."""
        inside = "".join(f"<p>{html.escape(paragraph)}</p>" for paragraph in paragraphs)
        self._parts.append(
            f"<details><summary>{html.escape(summary)}</summary>{inside}{_table(columns, rows)}</details>"
        )

    def figure(self, figure: Any, caption: str = "") -> None:
        """A plotly figure."""
        self._figures += 1
        content = figure.to_html(
            full_html=False,
            include_plotlyjs=False,
            config={"displaylogo": False, "responsive": True},
            div_id=f"figure-{self._figures}",
        )
        note = f"<figcaption>{html.escape(caption)}</figcaption>" if caption else ""
        self._parts.append(f"<figure>{content}{note}</figure>")

    def write(self, path: Path, small: bool = False) -> None:
        """To a file; a small one has plotly's script in another beside it."""
        body = "\n".join(self._parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        script = self._script(path, small) if self._figures else ""
        path.write_text(
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            f"<title>{html.escape(self.title)}</title>"
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<style>{_STYLE}</style>{script}</head><body>\n{body}\n</body></html>\n",
            encoding="utf-8",
        )

    @staticmethod
    def _script(path: Path, small: bool) -> str:
        from plotly.offline import get_plotlyjs

        text = get_plotlyjs()
        if not small:
            return f"<script>{text}</script>"
        beside = path.parent / SCRIPT
        if not beside.exists() or beside.stat().st_size != len(text.encode()):
            beside.write_text(text, encoding="utf-8")
        return f'<script src="{SCRIPT}"></script>'


def figure_layout(title: str, x: str = "", y: str = "", **extra: Any) -> dict[str, Any]:
    """Arguments for `fig.update_layout`: the look that all figures share."""
    layout: dict[str, Any] = {
        "title": {"text": title, "x": 0.01, "font": {"size": 16}},
        "template": "plotly_white",
        "colorway": list(COLOURS),
        "xaxis_title": x,
        "yaxis_title": y,
        "height": 420,
        "margin": {"l": 70, "r": 20, "t": 60, "b": 60},
        "legend": {"orientation": "h", "y": -0.2},
        "font": {"size": 13},
    }
    layout.update(extra)
    return layout


def show(cell: object) -> str:
    """A cell's text: floats with four significant digits, None as a dash."""
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    numeric = [all(_is_number(row[i]) for row in rows) and bool(rows) for i in range(len(columns))]
    mark = [' class="number"' if flag else "" for flag in numeric]
    head = "".join(f"<th{mark[i]}>{html.escape(name)}</th>" for i, name in enumerate(columns))
    body = "".join(
        "<tr>"
        + "".join(f"<td{mark[i]}>{html.escape(show(cell))}</td>" for i, cell in enumerate(row))
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _legend(columns: Sequence[str]) -> str:
    """What the columns mean, folded; a table of which nothing needs to be told has none."""
    known = legend(columns)
    if len(known) < 2:
        return ""
    rows = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(meaning)}</dd>" for name, meaning in known)
    return f'<details class="legend"><summary>What the columns mean</summary><dl>{rows}</dl></details>'


def _is_number(cell: object) -> bool:
    return cell is None or (isinstance(cell, int | float) and not isinstance(cell, bool))
