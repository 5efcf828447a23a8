"""Plots and drawings as SVG that follow light and dark: for the benchmarks and the documents."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any, Final

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
