"""The result of a streaming word count as one HTML file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from acker.ui import page
from benchmarks.plots import COLOURS
from examples.wordcount.report import details, draw_ends, head, plot, tiles, verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from examples.wordcount.stream_job import StreamResult


def to_html(result: StreamResult) -> str:
    """Return the page."""
    return page.document(
        "python -m examples.wordcount stream",
        head(
            "Word count as a stream, tracked by the acker",
            result,
            f" \N{MIDDLE DOT} --timeout {result.timeout_seconds:g}",
        ),
        verdict(result),
        page.tiles([*tiles(result), ("micro-batches", f"{len(result.batches):,}"), ("kills", f"{len(result.kills)}")]),
        page.section("When trees ended", plot("time", 2.8, lambda axes: _draw_time(axes, result)), _kills(result)),
        page.section(
            "How the trees of each attempt ended",
            plot("attempts", 3.1, lambda axes: draw_ends(axes, result.attempts, "attempt")),
            _attempts_table(result),
        ),
        *details(result),
    )


def _draw_time(axes: Axes, result: StreamResult) -> None:
    """Draw how many trees had ended by when; lines where something was killed."""
    seconds = np.array([0.0, *(batch.seconds for batch in result.batches)])
    for name, colour in (("acked", "acked"), ("failed", "failed"), ("timed_out", "late")):
        ended = np.cumsum([0, *(getattr(batch, name) for batch in result.batches)])
        axes.step(seconds, ended, where="post", color=COLOURS[colour], label=name.replace("_", " "))
    for kill in result.kills:
        axes.axvline(
            kill.after_seconds, color=COLOURS["ink"], linestyle="-" if kill.what == "driver" else ":", linewidth=1
        )
    axes.set_yscale("symlog", linthresh=1)
    axes.set_ylim(0, 8 * max(1, result.trees))
    axes.set_xlim(0)
    axes.set_xlabel("seconds")
    axes.set_ylabel("trees")
    axes.legend(frameon=False, ncols=3, loc="upper right", labelcolor=COLOURS["ink"], fontsize=9)


def _kills(result: StreamResult) -> str:
    if not result.kills:
        return ""
    body = [
        [f"{kill.after_seconds:.1f} s", kill.what, f"{kill.batches:,}", f"{kill.back_seconds:.1f} s"]
        for kill in result.kills
    ]
    return page.table(["killed", "what", "micro-batches before", "next one ended after"], body)


def _attempts_table(result: StreamResult) -> str:
    body = [
        [str(row.attempt + 1), *(f"{value:,}" for value in (row.trees, row.acked, row.failed, row.timed_out))]
        for row in result.attempts
    ]
    return page.table(["attempt", "trees", "acked", "failed", "timed out"], body)
