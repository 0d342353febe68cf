"""One self-contained HTML page from headings, text, tables and charts.

The page needs no network and no other file; it is readable on a phone, in print, in light and dark. A script of a few
lines shows what a mark of a chart stands for at a tap, where there is no mouse to hover with.
"""

import html
import math
from collections.abc import Sequence
from pathlib import Path

from paceline.report.chart import Chart
from paceline.report.columns import legend
from paceline.report.draw import svg

ROWS_MAX = 400
"""Rows of a table that a page shows: the files that the page was made from have all."""
_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5b6675; --line: #dfe4ea; --accent: #2f6fdf;
        --paper: #fff; --code: #f2f4f7; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ef; --soft: #9aa6b8; --line: #2f3947; --accent: #6c9cf5;
        --paper: #14181f; --code: #232b37; } }
@media print { :root { color-scheme: light; --ink: #000; --paper: #fff; } }
body { font: 16px/1.55 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; color: var(--ink);
       background: var(--paper); margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 1080px; }
h1 { font-size: 1.7rem; margin: 0 0 .25rem; } h2 { font-size: 1.2rem; margin: 2.2rem 0 .4rem; }
p.lead { color: var(--soft); margin-top: 0; } p, li { max-width: 76ch; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .92rem; margin: .6rem 0 1rem; }
th, td { padding: .35rem .8rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
thead th { border-bottom: 2px solid var(--ink); } code { background: var(--code); padding: .05rem .3rem; }
details { margin: .35rem 0; } summary { cursor: pointer; } summary:hover { color: var(--accent); }
.legend { color: var(--soft); font-size: .9rem; } .legend dt { font-weight: 600; }
.legend dd { margin: 0 0 .3rem 1rem; }
svg.chart { display: block; width: 100%; min-width: 680px; height: auto; }
#tip { position: fixed; z-index: 9; max-width: 46ch; padding: .3rem .6rem; border-radius: 6px; font-size: .85rem;
       background: var(--ink); color: var(--paper); pointer-events: none; white-space: pre-line; }
figure { margin: .5rem 0 1.2rem; } figcaption { color: var(--soft); font-size: .9rem; max-width: 84ch; }
"""


_SCRIPT = """
const tip = document.createElement("div"); tip.id = "tip"; tip.hidden = true; document.body.append(tip);
addEventListener("click", (event) => {
  const title = event.target.closest("svg.chart *")?.querySelector(":scope > title");
  tip.hidden = !title;
  if (!title) return;
  tip.textContent = title.textContent;
  tip.style.left = Math.max(8, Math.min(event.clientX + 8, innerWidth - tip.offsetWidth - 8)) + "px";
  tip.style.top = Math.max(8, event.clientY - tip.offsetHeight - 10) + "px";
});
addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
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

    def figure(self, charts: Chart | Sequence[Chart], caption: str = "") -> None:
        """A chart, or several below each other, with a line under them."""
        drawn = []
        for chart in [charts] if isinstance(charts, Chart) else charts:
            self._figures += 1
            drawn.append(svg(chart, f"figure-{self._figures}"))
        note = f"<figcaption>{html.escape(caption)}</figcaption>" if caption else ""
        self._parts.append(f'<figure><div class="scroll">{"".join(drawn)}</div>{note}</figure>')

    def write(self, path: Path) -> None:
        body = "\n".join(self._parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        script = f"<script>{_SCRIPT}</script>" if self._figures else ""
        path.write_text(
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            f"<title>{html.escape(self.title)}</title>"
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<style>{_STYLE}</style></head><body>\n{body}\n{script}</body></html>\n",
            encoding="utf-8",
        )


def show(cell: object) -> str:
    """A cell's text: floats with four significant digits, None as a dash."""
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    numeric = [all(_is_number(row[i]) for row in rows) and bool(rows) for i in range(len(columns))]
    mark = [' class="n"' if flag else "" for flag in numeric]
    head = "".join(f"<th{mark[i]}>{html.escape(name)}</th>" for i, name in enumerate(columns))
    left = len(rows) - ROWS_MAX
    body = "".join(
        "<tr>"
        + "".join(f"<td{mark[i]}>{html.escape(show(cell))}</td>" for i, cell in enumerate(row))
        + "</tr>"
        for row in rows[:ROWS_MAX]
    )
    rest = f'<p class="legend">The first {ROWS_MAX} of {len(rows)} rows.</p>' if left > 0 else ""
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{rest}'
    )


def _legend(columns: Sequence[str]) -> str:
    """What the columns mean, folded; a table of which nothing needs to be told has none."""
    known = legend(columns)
    if len(known) < 2:
        return ""
    rows = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(meaning)}</dd>" for name, meaning in known)
    return f'<details class="legend"><summary>What the columns mean</summary><dl>{rows}</dl></details>'


def _is_number(cell: object) -> bool:
    return cell is None or (isinstance(cell, int | float) and not isinstance(cell, bool))
