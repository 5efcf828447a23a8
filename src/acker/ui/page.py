"""The building blocks of HTML reports, which are one file each, in light and in dark."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Final

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


def section(heading: str, *parts: str) -> str:
    """Return HTML parts under a heading."""
    return f"<section><h2>{html.escape(heading)}</h2>{''.join(parts)}</section>"
