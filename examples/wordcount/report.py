"""The result as one HTML file: numbers, and plots as inline SVG in light and dark."""

from __future__ import annotations

import html
import itertools
import platform
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from acker import __version__
from acker.ui import page
from benchmarks import plots
from benchmarks.plots import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from examples.wordcount.job import Result, Totals

_HEAD: Final = """<h1>{title}</h1>
<p class="dim">{files:,} text files, {megabytes:.1f} MB, under <code>{input}</code></p>
<p class="dim">--seed {seed} &middot; --fail-rate {fail_rate:g} &middot; --drop-rate {drop_rate:g} &middot;
--max-attempts {max_attempts}{more} &middot; acker {version} &middot; Python {python} on {machine}</p>"""
_SIZES: Final = '<p class="dim">The line itself and its words; failed trees are not among them.</p>'


def to_html(result: Result) -> str:
    """Return the page."""
    return page.document(
        "python -m examples.wordcount",
        head("Word count, tracked by the acker", result, ""),
        verdict(result),
        page.tiles(tiles(result)),
        page.section(
            "How the trees of each round ended",
            plot("rounds", 3.1, lambda axes: draw_ends(axes, result.rounds, "round")),
            _rounds_table(result),
        ),
        *details(result),
    )


def verdict(result: Totals) -> str:
    """Return the line that is read first."""
    if not result.verified:
        return page.verdict("bad", "NOT verified: " + "; ".join(result.mismatches[:3]))
    if result.dead_lettered:
        return page.verdict("fair", f"verified, with {result.dead_lettered:,} lines dead-lettered")
    return page.verdict("good", "verified: equal to a plain count of the same files")


def head(title: str, result: Totals, more: str) -> str:
    """Return what was run, with which options."""
    return _HEAD.format(
        title=html.escape(title),
        files=result.files,
        megabytes=result.bytes / 1e6,
        input=html.escape(result.input),
        seed=result.seed,
        fail_rate=result.fail_rate,
        drop_rate=result.drop_rate,
        max_attempts=result.max_attempts,
        more=html.escape(more),
        version=__version__,
        python=platform.python_version(),
        machine=html.escape(f"{platform.system()} {platform.machine()}"),
    )


def details(result: Totals) -> list[str]:
    """Return the sections that every run has."""
    return [
        page.section("Tuples in a tree", plot("sizes", 3.0, lambda axes: _draw_sizes(axes, result)), _SIZES),
        page.section(
            "Where the time went",
            plot("stages", 2.3, lambda axes: _draw_stages(axes, result)),
            _components_table(result),
        ),
        _failures(result),
    ]


def tiles(result: Totals) -> list[tuple[str, str]]:
    """Return the numbers that every run has."""
    return [
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


def _rounds_table(result: Result) -> str:
    body = [
        [
            str(this.attempt + 1),
            *(f"{value:,}" for value in (this.trees, this.messages, this.acked, this.failed, this.timed_out)),
            f"{this.wall_seconds:.1f} s",
        ]
        for this in result.rounds
    ]
    return page.table(["round", "trees", "messages", "acked", "failed", "timed out", "time"], body)


def _components_table(result: Totals) -> str:
    body = [
        [
            name,
            *(f"{int(counters[key]):,}" for key in ("executed", "emitted", "failed", "messages")),
            f"{counters['function_seconds']:.1f} s",
        ]
        for name, counters in result.components.items()
    ]
    return page.table(["component", "executed", "emitted", "failed", "messages", "in its function, all tasks"], body)


def _failures(result: Totals) -> str:
    if not result.failed_by_reason:
        return ""
    body = [[reason, f"{count:,}"] for reason, count in result.failed_by_reason.items()]
    return page.section("Why trees failed", page.table(["reason", "trees"], body))


def plot(name: str, height: float, draw: Callable[[Any], None]) -> str:
    """Return a chart of the page, `height` inches high."""
    return page.figure(plots.plot(name, (8.6, height), draw))


def draw_ends(axes: Axes, ends: Sequence[Any], name: str) -> None:
    """Draw how the trees of each round or attempt ended."""
    rounds = [str(this.attempt + 1) for this in ends]
    place = np.arange(len(rounds))
    series = (("acked", "acked"), ("failed", "failed"), ("timed_out", "late"))
    for offset, (outcome, colour) in zip((-0.27, 0, 0.27), series, strict=True):
        values = [getattr(this, outcome) for this in ends]
        bars = axes.bar(place + offset, values, 0.25, color=COLOURS[colour], label=outcome.replace("_", " "))
        axes.bar_label(
            bars, [f"{value:,}" if value else "" for value in values], color=COLOURS["ink"], fontsize=8, padding=2
        )
    axes.set_yscale("symlog", linthresh=1)
    axes.set_ylim(0, 8 * max(1, 1, *(this.trees for this in ends)))
    axes.set_xticks(place, rounds)
    axes.set_xlim(-0.6, max(3, len(rounds)) - 0.4)
    axes.grid(visible=False, axis="x")
    axes.set_xlabel(name)
    axes.set_ylabel("trees")
    axes.legend(frameon=False, ncols=3, loc="upper right", labelcolor=COLOURS["ink"], fontsize=9)


def _draw_sizes(axes: Axes, result: Totals) -> None:
    sizes = np.array(sorted(result.tree_sizes) or [1])
    trees = np.array([result.tree_sizes.get(int(size), 0) for size in sizes])
    # Single sizes up to 32, then bins that grow by a quarter: a few very long lines would flatten everything else.
    edges = [*range(1, 33)]
    while edges[-1] <= sizes.max():
        edges.append(int(np.ceil(edges[-1] * 1.25)))
    heights, _ = np.histogram(sizes, edges, weights=trees)
    last = int(np.flatnonzero(heights)[-1]) + 1 if heights.any() else 1
    names = [str(low) if high == low + 1 else f"{low} to {high - 1}" for low, high in itertools.pairwise(edges)][:last]
    axes.bar(np.arange(last), heights[:last], 0.85, color=COLOURS["bar"])
    axes.set_yscale("symlog", linthresh=1)
    axes.set_ylim(0)
    # Every bar is named. Upright names take the least room.
    axes.set_xticks(np.arange(last), names, rotation=90 if last > 16 else 0, fontsize=8)
    axes.grid(visible=False, axis="x")
    axes.set_xlabel("tuples")
    axes.set_ylabel("trees")


def _draw_stages(axes: Axes, result: Totals) -> None:
    names = [*result.stages, "(in the native acker)"]
    seconds = [*result.stages.values(), result.acker_seconds]
    bars = axes.barh(names, seconds, 0.7, color=COLOURS["bar"])
    axes.bar_label(bars, [f"{value:.2f} s" for value in seconds], color=COLOURS["ink"], fontsize=9, padding=4)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.15 * max(seconds))
    axes.set_xlabel("seconds")
    axes.grid(visible=False, axis="y")
