"""The report of a run as a terminal table, as Markdown and as a picture, all drawn from its JSON."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.table import Table

# The picture's sides, and the variables of their colours; see `_bars`.
_SIDES: Final = {"GUPS": "dim", "native": "on", "reference": "bad"}
_ALTERNATIVE: Final = "Nanoseconds that a message takes, by workload and side, on a logarithmic axis"


class Line(NamedTuple):
    """One line of the table: a ratio, or a figure that is its own answer."""

    case: str
    what: str
    median: str
    quartiles: str
    figures: str
    goal: str


def lines(result: dict[str, Any]) -> Iterator[Line]:
    """Give the lines of one result."""
    name = result["case"]
    if "error" in result:
        yield Line(name, "failed", "", "", result["error"].strip().splitlines()[-1], "")
        return
    figures, unit = result["figures"], result["unit"]
    for ratio in result["ratios"]:
        sides = ratio["of"], ratio["to"]
        medians = " / ".join(digits(figures[side]["median"]) for side in sides) + (f" {unit}" if name else "")
        goal = _goal(ratio["goal"], ratio["met"])
        yield Line(name, " / ".join(sides), digits(ratio["median"]), _quartiles(ratio), medians, goal)
        name = ""
    compared = {side for ratio in result["ratios"] for side in (ratio["of"], ratio["to"])}
    for side, spread in figures.items():
        goal = result["goals"].get(side)
        if goal or side not in compared:
            median = f"{digits(spread['median'])} {unit}"
            yield Line(name, side, median, _quartiles(spread), "", _goal(goal, goal and goal["met"]))
            name = ""
    for other in result.get("published", ()):  # runs that are older than the field have none
        figure = f"{digits(other['figure'])} {unit}"
        yield Line("", other["name"], figure, "", f"published, not measured here: {other['source']}", "")


def table(results: list[dict[str, Any]]) -> Table:
    """Return the table of some results for the terminal."""
    from rich.table import Table

    drawn = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    drawn.add_column("case", no_wrap=True)
    drawn.add_column("")
    for name in ("median", "quartiles"):
        drawn.add_column(name, justify="right", no_wrap=True)
    drawn.add_column("medians", style="dim")
    drawn.add_column("goal", no_wrap=True)
    for result in results:
        for line in lines(result):
            drawn.add_row(*line, style="red" if line.what == "failed" else "")
    return drawn


def markdown(report: dict[str, Any]) -> str:
    """Return the report as a Markdown page: where it was run, and the table."""
    machine, versions = report["machine"], report["versions"]
    caches = ", ".join(f"{level} {size}" for level, size in machine["cache_bytes"].items())
    memory = f", {machine['memory_bytes'] / 2**30:.0f} GiB" if machine["memory_bytes"] else ""
    facts = {
        "command": f"`{report['command']}`, {report['seconds']:.0f} s",
        "time": report["time"],
        "commit": report["commit"],
        "machine": f"{machine['processor']}, {machine['usable_cores']} cores ({caches}){memory}",
        "system": report["system"]["kernel"],
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items() if version),
    }
    head = ["# Benchmark results", "", "| | |", "|---|---|", *(f"| {name} | {fact} |" for name, fact in facts.items())]
    head += ["", "| case | | median | quartiles | medians | goal |", "|---|---|--:|--:|---|---|"]
    rows = ["| " + " | ".join(line) + " |" for result in report["results"] for line in lines(result)]
    return "\n".join([*head, *rows, ""])


def picture(report: dict[str, Any], path: Path) -> bool:
    """Draw the nanoseconds a message of each workload; False when the run holds no case that would be in it."""
    bars = _bars(report)
    if not bars:
        return False
    from benchmarks import plots

    svg = plots.plot("times", (8, 4.2), lambda axes: _draw(axes, bars), line="dim")
    start, rest = svg.split(">", 1)
    # With a background, so that it can be read on any page.
    card = '<rect class="card" width="100%" height="100%" rx="8" style="fill: var(--card); stroke: var(--rim)"/>'
    head = f'{start} role="img" class="acker-drawing">\n<title>{_ALTERNATIVE}</title>\n{plots.DRAWING_STYLE}\n{card}'
    path.write_text(head + rest, encoding="utf-8")
    return True


def _draw(axes: Axes, bars: dict[str, dict[str, float]]) -> None:
    from benchmarks.plots import COLOURS

    sides = [side for side in _SIDES if any(side in figures for figures in bars.values())]
    width = 0.8 / len(sides)
    for index, side in enumerate(sides):
        places = [
            place + (index - (len(sides) - 1) / 2) * width
            for place, figures in enumerate(bars.values())
            if side in figures
        ]
        heights = [figures[side] for figures in bars.values() if side in figures]
        drawn = axes.bar(places, heights, width, label=side, color=COLOURS[_SIDES[side]])
        axes.bar_label(drawn, [digits(height) for height in heights], fontsize=8)
    axes.set_yscale("log")
    axes.margins(y=0.15)
    axes.grid(visible=False)
    axes.set_ylabel("ns a message (logarithmic)")
    axes.set_xticks(range(len(bars)), list(bars))
    axes.legend(frameon=False, ncols=len(sides), loc="lower left", bbox_to_anchor=(0, 1), labelcolor=COLOURS["ink"])


def _bars(report: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return the medians of each side by workload: of the ingest cases with calls of 10,000 rows."""
    bars: dict[str, dict[str, float]] = {}
    labels: dict[str, str] = {}
    for result in report["results"]:
        parameters = result.get("parameters", {})
        question, workload = result["case"].split("/")[0], parameters.get("workload")
        if question not in ("ingest", "reference") or parameters.get("batch_rows") != 10_000 or workload == "mixed":
            continue
        label = f"{workload}\n{parameters['pending']:,} pending\n{_megabytes(parameters['table_bytes'])}"
        figures = bars.setdefault(labels.setdefault(workload, label), {})
        for side, spread in result["figures"].items():
            if side in _SIDES:
                # Native is timed in both questions; beside GUPS, where its windows are longer, counts.
                figures.setdefault(side, spread["median"])
    return bars


def _megabytes(size: float) -> str:
    return f"{size / 1e6:.3g} MB"


def digits(value: float) -> str:
    """Write with three digits that count, without an exponent."""
    if value == 0:
        return "0"
    for places in range(5):
        if abs(value) >= 10 ** (2 - places):
            return f"{value:,.{places}f}"
    return f"{value:.2g}"


def _quartiles(spread: dict[str, float]) -> str:
    return f"{digits(spread['low'])} to {digits(spread['high'])}" if spread["low"] != spread["high"] else ""


def _goal(goal: dict[str, Any] | None, met: bool | None) -> str:
    if goal is None:
        return ""
    text = f"≥ {goal['at_least']:g}" if goal["at_least"] is not None else f"≤ {goal['at_most']:g}"
    return f"{text}, {'met' if met else 'missed'}"
