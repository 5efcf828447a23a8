"""The result as one HTML file that needs nothing else: numbers, and plots as inline SVG that follow light and dark."""

from __future__ import annotations

import html
import io
import itertools
import platform
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from acker import __version__

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from acker.wordcount.job import Result

# Matplotlib draws with these colours, and each becomes the style sheet's variable of the same name, which has one value
# for light and one for dark. So one drawing is readable in both.
_COLOURS: Final = {
    "ink": "#010203",
    "faint": "#040506",
    "acked": "#070809",
    "failed": "#0a0b0c",
    "late": "#0d0e0f",
    "bar": "#101112",
}

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
section { padding: 1rem 1.25rem; margin: 1rem 0; } .table { overflow-x: auto; }
svg { width: 100%; height: auto; display: block; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid var(--faint); }
th:first-child, td:first-child { text-align: left; } th { color: var(--dim); font-weight: 500; }
code { font-size: .9em; }
"""

_PAGE: Final = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>acker run wordcount</title><style>{style}</style></head>
<body>
<h1>Word count, tracked by the acker</h1>
<p class="dim">{files:,} text files, {megabytes:.1f} MB, under <code>{input}</code></p>
<p class="dim">--seed {seed} &middot; --fail-rate {fail_rate:g} &middot; --drop-rate {drop_rate:g} &middot;
--max-attempts {max_attempts} &middot; acker {version} &middot; Python {python} on {machine}</p>
<p class="verdict {tone}">{verdict}</p>
<div class="tiles">{tiles}</div>
<section><h2>How the trees of each round ended</h2>{rounds_plot}<div class="table">{rounds_table}</div></section>
<section><h2>Tuples in a tree</h2>{sizes_plot}
<p class="dim">The line itself and its words; failed trees are not among them.</p></section>
<section><h2>Where the time went</h2>{stages_plot}<div class="table">{components_table}</div></section>
{failures}
</body></html>
"""


def to_html(result: Result) -> str:
    """Return the page."""
    if not result.verified:
        tone, verdict = "bad", "NOT verified: " + "; ".join(result.mismatches[:3])
    elif result.dead_lettered:
        tone, verdict = "fair", f"verified, with {result.dead_lettered:,} lines dead-lettered"
    else:
        tone, verdict = "good", "verified: equal to a plain count of the same files"
    return _PAGE.format(
        style=_STYLE,
        files=result.files,
        megabytes=result.bytes / 1e6,
        input=html.escape(result.input),
        seed=result.seed,
        fail_rate=result.fail_rate,
        drop_rate=result.drop_rate,
        max_attempts=result.max_attempts,
        version=__version__,
        python=platform.python_version(),
        machine=html.escape(f"{platform.system()} {platform.machine()}"),
        tone=tone,
        verdict=html.escape(verdict),
        tiles=_tiles(result),
        rounds_plot=_plot("rounds", 3.1, lambda axes: _draw_rounds(axes, result)),
        rounds_table=_rounds_table(result),
        sizes_plot=_plot("sizes", 2.6, lambda axes: _draw_sizes(axes, result)),
        stages_plot=_plot("stages", 2.3, lambda axes: _draw_stages(axes, result)),
        components_table=_components_table(result),
        failures=_failures(result),
    )


def _tiles(result: Result) -> str:
    tiles = [
        ("lines", f"{result.lines:,}"),
        ("trees", f"{result.trees:,}"),
        ("messages", f"{result.messages:,}"),
        ("acked", f"{result.acked:,}"),
        ("failed", f"{result.failed:,}"),
        ("timed out", f"{result.timed_out:,}"),
        ("replayed", f"{result.replayed:,}"),
        ("dead-lettered", f"{result.dead_lettered:,}"),
        ("messages a second in the acker", f"{result.acker_messages_per_second / 1e6:,.1f} M"),
        ("words counted", f"{result.words:,}"),
        ("different words", f"{result.distinct_words:,}"),
        ("wall time", f"{result.wall_seconds:.1f} s"),
    ]
    return "".join(f'<div class="tile"><b>{value}</b><span>{name}</span></div>' for name, value in tiles)


def _table(head: list[str], body: list[list[str]]) -> str:
    rows = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in body)
    return "<table><tr>" + "".join(f"<th>{name}</th>" for name in head) + f"</tr>{rows}</table>"


def _rounds_table(result: Result) -> str:
    body = [
        [
            str(this.attempt + 1),
            *(f"{value:,}" for value in (this.trees, this.messages, this.acked, this.failed, this.timed_out)),
            f"{this.wall_seconds:.1f} s",
        ]
        for this in result.rounds
    ]
    return _table(["round", "trees", "messages", "acked", "failed", "timed out", "time"], body)


def _components_table(result: Result) -> str:
    body = [
        [
            name,
            *(f"{int(counters[key]):,}" for key in ("executed", "emitted", "failed", "messages")),
            f"{counters['function_seconds']:.1f} s",
        ]
        for name, counters in result.components.items()
    ]
    return _table(["component", "executed", "emitted", "failed", "messages", "in its function, all tasks"], body)


def _failures(result: Result) -> str:
    if not result.failed_by_reason:
        return ""
    body = [[reason, f"{count:,}"] for reason, count in result.failed_by_reason.items()]
    return f'<section><h2>Why trees failed</h2><div class="table">{_table(["reason", "trees"], body)}</div></section>'


def _draw_rounds(axes: Axes, result: Result) -> None:
    rounds = [str(this.attempt + 1) for this in result.rounds]
    place = np.arange(len(rounds))
    series = (("acked", "acked"), ("failed", "failed"), ("timed_out", "late"))
    for offset, (name, colour) in zip((-0.27, 0, 0.27), series, strict=True):
        values = [getattr(this, name) for this in result.rounds]
        bars = axes.bar(place + offset, values, 0.25, color=_COLOURS[colour], label=name.replace("_", " "))
        axes.bar_label(
            bars, [f"{value:,}" if value else "" for value in values], color=_COLOURS["ink"], fontsize=8, padding=2
        )
    axes.set_yscale("symlog", linthresh=1)
    axes.set_ylim(0, 8 * max(1, *(this.trees for this in result.rounds)))
    axes.set_xticks(place, rounds)
    axes.set_xlim(-0.6, max(3, len(rounds)) - 0.4)
    axes.grid(visible=False, axis="x")
    axes.set_xlabel("round")
    axes.set_ylabel("trees")
    axes.legend(frameon=False, ncols=3, loc="upper right", labelcolor=_COLOURS["ink"], fontsize=9)


def _draw_sizes(axes: Axes, result: Result) -> None:
    sizes = np.array(sorted(result.tree_sizes) or [1])
    trees = np.array([result.tree_sizes.get(int(size), 0) for size in sizes])
    # Single sizes up to 32, then bins that grow by a quarter: a few very long lines would flatten everything else.
    edges = [*range(1, 33)]
    while edges[-1] <= sizes.max():
        edges.append(int(np.ceil(edges[-1] * 1.25)))
    heights, _ = np.histogram(sizes, edges, weights=trees)
    last = int(np.flatnonzero(heights)[-1]) + 1 if heights.any() else 1
    names = [str(low) if high == low + 1 else f"{low}+" for low, high in itertools.pairwise(edges)][:last]
    axes.bar(np.arange(last), heights[:last], 0.85, color=_COLOURS["bar"])
    axes.set_yscale("symlog", linthresh=1)
    axes.set_ylim(0)
    step = max(1, last // 16)
    axes.set_xticks(np.arange(0, last, step), names[::step])
    axes.grid(visible=False, axis="x")
    axes.set_xlabel("tuples")
    axes.set_ylabel("trees")


def _draw_stages(axes: Axes, result: Result) -> None:
    names = [*result.stages, "(in the native acker)"]
    seconds = [*result.stages.values(), result.acker_seconds]
    bars = axes.barh(names, seconds, 0.7, color=_COLOURS["bar"])
    axes.bar_label(bars, [f"{value:.2f} s" for value in seconds], color=_COLOURS["ink"], fontsize=9, padding=4)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.15 * max(seconds))
    axes.set_xlabel("seconds")
    axes.grid(visible=False, axis="y")


def _plot(name: str, height: float, draw: Callable[[Any], None]) -> str:
    """Draw with Matplotlib, and return SVG that takes its colours from the page."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    ink, faint = _COLOURS["ink"], _COLOURS["faint"]
    settings: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": "acker",
        "font.family": "sans-serif",
        "text.color": ink,
        "axes.labelcolor": ink,
        "axes.edgecolor": faint,
        "xtick.color": faint,
        "ytick.color": faint,
        "xtick.labelcolor": ink,
        "ytick.labelcolor": ink,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": faint,
        "grid.linewidth": 0.5,
        "axes.axisbelow": True,
    }
    with mpl.rc_context(settings):
        figure = Figure(figsize=(8.6, height), layout="constrained")
        axes = figure.add_subplot()
        draw(axes)
        stream = io.StringIO()
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = stream.getvalue()
    svg = svg[svg.index("<svg") :]
    for variable, colour in _COLOURS.items():
        svg = svg.replace(colour, f"var(--{variable})")
    # Several plots in one page: their ids must differ.
    return re.sub(r'(id="|url\(#|href="#)', rf"\1{name}-", svg)
