"""The report of a topology's run as one HTML file: figures, drawing, latencies and problems."""

from __future__ import annotations

import dataclasses
import html
import math
import platform
from typing import TYPE_CHECKING, Final

from acker import __version__
from acker.cli.table import HEADINGS, duration, losses, quantity, rate, rows
from acker.ui import page

if TYPE_CHECKING:
    from acker.local.observe.metrics import ComponentStats, Histogram, RunReport
    from acker.topology import Graph

OUTCOMES: Final = {
    "drained": "drained: all is settled, and the spouts have no more",
    "reached": "as many trees were acked as were asked for",
    "elapsed": "the time was up",
    "stopped": "stopped",
    "aborted": "stopped at once, without draining",
    "failed": "ended with an error",
}

# The latency figure, one bar an octave: its size, the margins for the axes, and the width of a digit.
_WIDTH, _HEIGHT = 860, 190
_RIGHT, _TOP, _FOOT, _DIGIT = 30, 14, 36, 8
# The least number of bars, empty ones included, and the most labels that fit side by side.
_BARS_MIN, _NAMES_MAX = 5, 16


def to_html(report: RunReport, graph: Graph, crash: str | None = None) -> str:
    """Return the page; for `crash` see `verdict`."""
    from acker.topology.drawing import svg

    machine = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    about = f"{report.started_at}, {report.seconds:.1f} s \N{MIDDLE DOT} acker {__version__} \N{MIDDLE DOT} {machine}"
    components = list(report.stats.components().values())
    return page.document(
        f"acker run {report.topology}",
        f'<h1>{html.escape(report.topology)}</h1><p class="dim">{html.escape(about)}</p>',
        page.verdict(*verdict(report, crash)),
        page.tiles(_tiles(report)),
        _error(report),
        _abandoned_tasks(report),
        page.section("Components", page.table([*HEADINGS], rows(report.stats))),
        page.section("Topology", page.drawing(svg(graph))),
        *_latencies(components),
        _texts("Stalls", report.stalls),
        _texts("Trees that timed out, as traced", report.timed_out_traces),
        _dead_letters(components),
        _streams(components),
        _user_counts(components),
    )


def verdict(report: RunReport, crash: str | None = None) -> tuple[str, str]:
    """Return the tone, good, fair or bad, and the first sentence of the report.

    Parameters
    ----------
    report : RunReport
    crash : str, optional
        The exception whose restart was still pending when the topology was stopped.
    """
    totals = report.stats.totals
    told = [OUTCOMES[report.outcome]]
    if crash is not None:
        told[0] = f"{told[0]} while it waited for a restart after {crash}"
    elif report.outcome == "stopped" and not (totals.shut_down or report.undelivered):
        told[0] = "stopped and drained"
    if totals.shut_down:
        were = "was" if totals.shut_down == 1 else "were"
        told.append(f"{quantity(totals.shut_down, 'tree')} {were} still open and {were} failed with reason SHUTDOWN")
    if report.undelivered:
        told.append(f"of {quantity(report.undelivered, 'tree')} the spout could not be told the end")
    wrong = losses(dataclasses.replace(totals, shut_down=0))
    if report.abandoned:
        wrong.insert(0, f"{len(report.abandoned)} abandoned")
    if wrong:
        told.append(", ".join(wrong))
    if report.outcome in ("failed", "aborted") or report.abandoned:
        tone = "bad"
    else:
        tone = "fair" if len(told) > 1 or crash is not None or report.restarts or report.stalls else "good"
    return tone, "; ".join(told)


def _tiles(report: RunReport) -> list[tuple[str, str]]:
    totals = report.stats.totals
    unusual = [
        ("ended by restarts", totals.restarted),
        ("shut down while open", totals.shut_down),
        ("spout could not be told", report.undelivered),
        ("acked, but ack() raised", totals.ack_errors),
    ]
    return [
        ("trees acked", f"{totals.acked:,}"),
        ("acked a second", f"{rate(report.stats):,.0f}"),
        ("failed", f"{totals.failed:,}"),
        ("timed out", f"{totals.timed_out:,}"),
        ("dead letters", f"{totals.dead_letters:,}"),
        *((name, f"{count:,}") for name, count in unusual if count),
        ("pending at the end", f"{totals.pending:,}"),
        ("tuples emitted", f"{totals.emitted_total:,}"),
        ("tuples executed", f"{totals.executed:,}"),
        ("complete latency, p50", duration(totals.complete_latency.quantile(0.5)) or "-"),
        ("complete latency, p99", duration(totals.complete_latency.quantile(0.99)) or "-"),
        ("restarts", f"{report.restarts:,}"),
        ("wall time", f"{report.seconds:.1f} s"),
    ]


def _error(report: RunReport) -> str:
    return page.section("The error", _pre(report.error)) if report.error else ""


def _abandoned_tasks(report: RunReport) -> str:
    parts = [
        f"<p><code>{html.escape(task.component)}[{task.task}]</code> did not come back:</p>{_pre(task.stack)}"
        for task in report.abandoned
    ]
    return page.section("Tasks that were abandoned", *parts) if parts else ""


def _pre(text: str) -> str:
    return f"<pre>{html.escape(text)}</pre>"


def _texts(heading: str, texts: tuple[str, ...]) -> str:
    return page.section(heading, *(f'<p class="dim">{html.escape(text)}</p>' for text in texts)) if texts else ""


def _latencies(components: list[ComponentStats]) -> list[str]:
    """Return a section for spouts and one for bolts: quantiles, and how the latencies are spread."""
    found = []
    for kind, heading in (("spout", "Complete latency: from emit to ack"), ("bolt", "Execute latency: in process()")):
        histograms = {
            row.component: row.complete_latency if kind == "spout" else row.execute_latency
            for row in components
            if row.kind == kind
        }
        histograms = {name: histogram for name, histogram in histograms.items() if histogram.total}
        if not histograms:
            continue
        head = ["component", "measured", "mean", "p50", "p90", "p99", "p99.9"]
        body = [
            [
                name,
                f"{histogram.total:,}",
                duration(histogram.mean_ns),
                *(duration(histogram.quantile(q)) for q in (0.5, 0.9, 0.99, 0.999)),
            ]
            for name, histogram in histograms.items()
        ]
        what = "trees" if kind == "spout" else "tuples"
        figures = [_bars(name, histogram, what) for name, histogram in histograms.items()]
        found.append(page.section(heading, page.table(head, body), *figures))
    return found


def _octaves(histogram: Histogram) -> list[tuple[int, int]]:
    """Return (bound in ns, count) of each octave, from the first that holds something to the last."""
    octaves, below = [], 0
    for bound, count in histogram.cumulative(4):
        octaves.append((bound, count - below))
        below = count
    if histogram.total > below:
        octaves.append((histogram.bounds_ns[-1], histogram.total - below))
    held = [place for place, (_, count) in enumerate(octaves) if count]
    last = max(held[-1] + 1, min(_BARS_MIN, len(octaves)))
    return octaves[min(held[0], last - _BARS_MIN) : last]


def _ticks(most: int) -> list[int]:
    """Return the numbers of an axis from 0 to at least `most`, at steps of 1, 2 or 5 times a power of ten."""
    step = next(each * 10**power for power in range(20) for each in (1, 2, 5) if each * 10**power * 4 >= most)
    return list(range(0, most + step, step))


def _bars(name: str, histogram: Histogram, what: str) -> str:
    """Draw a histogram over the whole width, with both axes; `what` is counted."""
    octaves = _octaves(histogram)
    ticks = _ticks(max(count for _, count in octaves))
    left = 16 + _DIGIT * len(f"{ticks[-1]:,}")
    wide, high = (_WIDTH - left - _RIGHT) / len(octaves), _HEIGHT - _TOP - _FOOT
    floor = _HEIGHT - _FOOT
    parts = []
    for tick in ticks:
        y = floor - high * tick / ticks[-1]
        parts.append(f'<path d="M{left} {y:.1f}H{_WIDTH - _RIGHT}" stroke="var(--faint)"/>')
        parts.append(f'<text class="y" x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:,}</text>')
    every = math.ceil(len(octaves) / _NAMES_MAX)
    for place, (bound, count) in enumerate(octaves):
        x, height = left + place * wide, max(1.0, high * count / ticks[-1]) if count else 0
        told = html.escape(f"{count:,} in up to {duration(bound)}")
        parts.append(
            f'<rect x="{x + 0.06 * wide:.1f}" y="{floor - height:.1f}" width="{0.88 * wide:.1f}" '
            f'height="{height:.1f}" fill="var(--bar)"><title>{told}</title></rect>'
        )
        # Below the right edge of a bar stands the time that is its bound; the last one always does.
        if (len(octaves) - 1 - place) % every == 0:
            label = html.escape(duration(bound))
            parts.append(f'<text class="x" x="{x + wide:.1f}" y="{floor + 16}" text-anchor="middle">{label}</text>')
    parts.append(
        f'<text x="{left}" y="{_HEIGHT - 4}">each bar: {what} that took up to the time at its right edge</text>'
    )
    return f'<p class="dim">{html.escape(name)}</p>' + page.figure(
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="latencies of {html.escape(name)}" '
        f'font-size="12" fill="var(--dim)">{"".join(parts)}</svg>'
    )


def _dead_letters(components: list[ComponentStats]) -> str:
    body = [[row.component, f"{row.dead_letters:,}"] for row in components if row.dead_letters]
    text = '<p class="dim">Tuples that were given up; what they held is in the log, unless dead_letter() keeps it.</p>'
    return page.section("Dead letters", page.table(["spout", "tuples"], body), text) if body else ""


def _streams(components: list[ComponentStats]) -> str:
    body = [[row.component, stream, f"{count:,}"] for row in components for stream, count in row.emitted.items()]
    return page.section("Streams", page.table(["component", "stream", "emitted"], body)) if body else ""


def _user_counts(components: list[ComponentStats]) -> str:
    body = [[row.component, name, f"{count:,}"] for row in components for name, count in row.user.items()]
    return page.section("Counted by the components", page.table(["component", "name", "count"], body)) if body else ""
