"""The building blocks of HTML reports, which are one file each, in light and in dark."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

# Drawings in a page take their colours from the same variables: --page, --card, --ink, --faint, --dim, --acked,
# --failed, --late, --bar.
_STYLE: Final = """
:root { color-scheme: light dark; --page: #fbfbf9; --card: #ffffff; --ink: #22262b; --faint: #c9cdd2; --dim: #667079;
  --acked: #2f8f5b; --failed: #cf4b3f; --late: #d9962b; --bar: #3f74b5; }
@media (prefers-color-scheme: dark) { :root { --page: #15181c; --card: #1e2227; --ink: #e4e7ea; --faint: #454c54;
  --dim: #98a2ac; --acked: #58c48a; --failed: #f0786c; --late: #f0b95c; --bar: #79aeea; } }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 64rem; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; } h2 { font-size: 1.1rem; margin: 0 0 .75rem; }
p { margin: .25rem 0; } .dim { color: var(--dim); overflow-wrap: anywhere; }
.verdict { display: inline-block; margin: 1rem 0; padding: .35rem .9rem; border-radius: 1rem; font-weight: 600;
  border: 2px solid currentColor; }
.good { color: var(--acked); } .bad { color: var(--failed); } .fair { color: var(--late); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .75rem;
  margin: .5rem 0 1.5rem; }
.tile, section { background: var(--card); border: 1px solid var(--faint); border-radius: .6rem; }
.tile { padding: .6rem .8rem; } .tile b { display: block; font-size: 1.25rem; font-variant-numeric: tabular-nums; }
.tile span { color: var(--dim); font-size: .85rem; }
section { padding: 1rem 1.25rem; margin: 1rem 0; } .table, pre { overflow-x: auto; }
.drawing, .plot { overflow-x: auto; } svg { height: auto; display: block; }
.plot > svg { width: 100%; min-width: 40rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid var(--faint); white-space: nowrap; }
td:first-child { white-space: normal; overflow-wrap: anywhere; min-width: 7rem; }
th:first-child, td:first-child { text-align: left; } th { color: var(--dim); font-weight: 500; }
code, pre { font-size: .9em; }
"""

# Drawings that stand by themselves, and in a site: the sheet of the site may set these variables anew for its themes.
DRAWING_STYLE: Final = """<style>
.acker-drawing{--card:#f6f8fa;--rim:#d5dbe1;--ink:#1f2933;--dim:#5f6c7b}
.acker-drawing{--on:#0b6e4f;--seen:#fff;--off:#e4e9ee;--bad:#b23b1e}
@media (prefers-color-scheme:dark){
.acker-drawing{--card:#1b2127;--rim:#3a444e;--ink:#e6eaee;--dim:#a3afbb}
.acker-drawing{--on:#3fbf8f;--seen:#0d1512;--off:#2c353e;--bad:#ff8a65}}
</style>"""

# Matplotlib draws with these colours, and each becomes the style sheet's variable of the same name, which has one value
# for light and one for dark. So one drawing is readable in both.
COLOURS: Final = {
    name: f"#{number:02x}0203"
    for number, name in enumerate(
        ("ink", "faint", "acked", "failed", "late", "bar", "card", "rim", "dim", "on", "bad"), 1
    )
}

_DOCUMENT: Final = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>{style}</style></head>
<body>
{body}
</body></html>
"""


def document(title: str, *parts: str) -> str:
    """Return a page of HTML parts, without the empty ones."""
    return _DOCUMENT.format(title=html.escape(title), style=_STYLE, body="\n".join(part for part in parts if part))


def verdict(tone: str, text: str) -> str:
    """Return the verdict of a report; its tone is good, fair or bad."""
    return f'<p class="verdict {tone}">{html.escape(text)}</p>'


def tiles(values: Iterable[tuple[str, str]]) -> str:
    """Return (name, value) pairs as tiles."""
    drawn = (
        f'<div class="tile"><b>{html.escape(value)}</b><span>{html.escape(name)}</span></div>' for name, value in values
    )
    return f'<div class="tiles">{"".join(drawn)}</div>'


def table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """Return a table, which scrolls if it is wider than the page."""
    names = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    rows = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in body)
    return f'<div class="table"><table><tr>{names}</tr>{rows}</table></div>'


def drawing(svg: str) -> str:
    """Return a drawing in its own size, which scrolls if it is wider than the page."""
    return f'<div class="drawing">{svg}</div>'


def figure(svg: str) -> str:
    """Return a chart as wide as the page, which scrolls if the page is too narrow to read it."""
    return f'<div class="plot">{svg}</div>'


def plot(name: str, size: tuple[float, float], draw: Callable[[Any], None], *, line: str = "faint") -> str:
    """Draw with Matplotlib, and return SVG that takes its colours from CSS variables.

    Parameters
    ----------
    name : str
        Prefix of the ids in the SVG, which must differ between the plots of a page.
    size : (width, height)
        In inches.
    draw : callable
        Draws into the axes that it gets, with `COLOURS`.
    line : str
        The variable for axes and grid.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    text, lines = COLOURS["ink"], COLOURS[line]
    settings: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": "acker",
        "font.family": "sans-serif",
        "text.color": text,
        "axes.labelcolor": text,
        "axes.edgecolor": lines,
        "xtick.color": lines,
        "ytick.color": lines,
        "xtick.labelcolor": text,
        "ytick.labelcolor": text,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": lines,
        "grid.linewidth": 0.5,
        "axes.axisbelow": True,
    }
    with mpl.rc_context(settings):
        drawn = Figure(figsize=size, layout="constrained")
        draw(drawn.add_subplot())
        stream = io.StringIO()
        drawn.savefig(stream, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = stream.getvalue()
    svg = svg[svg.index("<svg") :]
    for variable, colour in COLOURS.items():
        svg = svg.replace(colour, f"var(--{variable})")
    return re.sub(r'(id="|url\(#|href="#)', rf"\1{name}-", svg)


def section(heading: str, *parts: str) -> str:
    """Return HTML parts under a heading."""
    return f"<section><h2>{html.escape(heading)}</h2>{''.join(parts)}</section>"
