"""Pictures of docs/protocol.md, drawn from the tables that the page is made of: a packet's way, and its states.

    message_ways    who sends which kind of message to whom: a line for each, between workers, switches, custodians
    verdicts        what a switch may do with a packet
    states          the states of a record, with an arc for each change; numbers are rows of the table below

Plain SVG with no script and no font of its own; light or dark as the reader's system is.
"""

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

STYLE = """<style>
svg { font: 12px system-ui, sans-serif; }
text { fill: #24292f; } .soft { fill: #6e7781; } .line { stroke: #3f51b5; fill: none; stroke-width: 1.5; }
.life { stroke: #afb8c1; stroke-dasharray: 2 4; } .box { fill: #eef0fb; stroke: #3f51b5; } .head { fill: #3f51b5; }
.number { stroke: #fff; stroke-width: 4; paint-order: stroke; } .page { fill: #fff; }
.name { font-weight: 600; } .empty { stroke-dasharray: 5 3; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; } .soft { fill: #9198a1; } .line { stroke: #8c9eff; } .box { fill: #1d2240; stroke: #8c9eff; }
.number { stroke: #1e2129; } .page { fill: #1e2129; } .head { fill: #8c9eff; } .life { stroke: #57606a; } }
</style>
<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
<path class="head" d="M0 0 8 4 0 8z"/></marker></defs>"""
LANES = {"worker": 60, "switch": 250, "custodian": 440}
"""Who sends and receives, and where its line stands."""
ALSO = {"asker": "worker"}
"""Other words of the tables for them."""
ROW, BOX_WIDTH, GAP, ARC = 28, 84, 46, 38


def _svg(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">'
    )
    page = '<rect class="page" width="100%" height="100%"/>'
    return "\n".join([head, f"<title>{escape(title)}</title>", STYLE, page, *parts, "</svg>", ""])


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "middle") -> str:
    mark = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{mark}>{escape(text)}</text>'


def _arrow(path: str, kind: str = "") -> str:
    return f'<path class="line {kind}" d="{path}" marker-end="url(#head)"/>'.replace(' "', '"')


def _roles(text: str) -> list[str]:
    """Those of the lanes that a cell of the table names."""
    words = {word.strip(",").removesuffix("s") for word in text.split()}
    words = {ALSO.get(word, word) for word in words}
    return [lane for lane in LANES if lane in words]


def message_ways(names: Mapping[int, str], paths: Mapping[int, tuple[str, str, str]]) -> str:
    """Lines between the lanes for each kind that goes by switch or custodian; dashed: it has no payload."""
    parts, y = [], 60
    shown = [kind for kind, (source, to, _) in paths.items() if {*_roles(source), *_roles(to)} - {"worker"}]
    for kind in shown:
        name, meaning = names[kind].split(": ", 1)
        source, to, payload = paths[kind]
        mark = "" if payload == "yes" else "empty"
        ways = [(LANES[one], LANES[other]) for one in _roles(source) for other in _roles(to)]
        for number, (start, end) in enumerate(ways):
            away = 6 if end > start else -6
            if start == end:
                parts.append(_arrow(f"M{start} {y - 6}q26 -4 26 6t-22 5", mark))
            else:
                parts.append(_arrow(f"M{start + away} {y + 5 * number}H{end - away}", mark))
        parts.append(_text(sum(ways[0]) / 2, y - 5, name, "name"))
        parts.append(_text(490, y + 4, meaning.partition(";")[0], "soft", "start"))
        y += ROW
    lanes = []
    for lane, x in LANES.items():
        lanes.append(f'<path class="life" d="M{x} 34V{y - 8}"/>')
        lanes.append(f'<rect class="box" x="{x - 44}" y="8" width="88" height="26" rx="6"/>')
        lanes.append(_text(x, 25, lane, "name"))
    return _svg(1010, y, "Which messages go from whom to whom", [*lanes, *parts])


def verdicts(names: Sequence[str], meanings: Sequence[str]) -> str:
    """A packet in, at most one out."""
    height = 20 + ROW * len(names)
    middle = height / 2
    parts = [
        _arrow(f"M70 {middle:g}H116"), _text(36, middle + 4, "a packet"),
        f'<rect class="box" x="120" y="{middle - 22:g}" width="96" height="44" rx="6"/>',
        _text(168, middle + 4, "the switch", "name"),
    ]  # fmt: skip
    for i, (name, meaning) in enumerate(zip(names, meanings, strict=True)):
        y = 22 + ROW * i
        parts.append(_arrow(f"M216 {middle:g}C250 {middle:g} 246 {y} 284 {y}"))
        parts += [_text(292, y + 4, name, "name", "start"), _text(390, y + 4, meaning, "soft", "start")]
    return _svg(720, height, "What a switch does with a packet", parts)


def states(names: Sequence[str], changes: Sequence[tuple[str, str, str]], title: str) -> str:
    """Boxes in a row; changes to the right go above them, changes to the left below."""
    place = {name: 10 + i * (BOX_WIDTH + GAP) + BOX_WIDTH / 2 for i, name in enumerate(names)}
    far = max(abs(names.index(a) - names.index(b)) for a, b, _ in changes)
    middle = 26 + ARC * far // 2
    parts = []
    for number, (before, after, _) in enumerate(changes, 1):
        steps = names.index(after) - names.index(before)
        up = -1 if steps > 0 else 1
        lean = 9 if steps > 0 else -9
        start, end = place[before] + lean, place[after] - lean
        edge = middle + up * 15
        peak = edge + up * ARC * abs(steps)
        parts.append(_arrow(f"M{start:g} {edge:g}Q{(start + end) / 2:g} {peak:g} {end:g} {edge:g}"))
        parts.append(_text((start + end) / 2, (edge + peak) / 2 + 4, str(number), "number"))
    for name, x in place.items():
        width = max(BOX_WIDTH, 7.2 * len(name) + 8)
        parts.append(
            f'<rect class="box" x="{x - width / 2:g}" y="{middle - 14}" width="{width:g}" height="28" rx="6"/>'
        )
        parts.append(_text(x, middle + 4, name, "name"))
    width = round(max(place.values()) + BOX_WIDTH / 2 + 20)
    return _svg(width, 2 * middle, title, parts)
