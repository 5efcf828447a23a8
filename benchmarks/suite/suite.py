"""The list of all cases, and the command line."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.suite import (
    by_hand,
    calls,
    columns,
    connectors,
    files,
    free_threaded,
    growth,
    ingest,
    live_page,
    memory,
    numeric,
    report,
    rotate,
    sharded,
    snapshot,
    spark,
    spark_columns,
    spark_growth,
    spark_steps,
    spark_topologies,
    storm,
    streaming,
    task_queues,
    topology,
)
from benchmarks.suite.measure import FULL, QUICK, Case, Scale
from benchmarks.suite.run import Outcome, run_all, run_apart, select

# How wide the table is where it goes into a file or a pipe.
_FILE_COLUMNS: Final = 140

CASES: Final[list[Case]] = [
    *ingest.CASES,
    *sharded.CASES,
    *rotate.CASES,
    *snapshot.CASES,
    *calls.CASES,
    *by_hand.CASES,
    *memory.CASES,
    *topology.CASES,
    *columns.CASES,
    *numeric.CASES,
    *live_page.CASES,
    *free_threaded.CASES,
    *storm.CASES,
    *growth.CASES,
    *files.CASES,
    *spark.CASES,
    *streaming.CASES,
    *spark_topologies.CASES,
    *spark_columns.CASES,
    *spark_steps.CASES,
    *spark_growth.CASES,
    *connectors.CASES,
    *task_queues.CASES,
]


def main(
    arguments: Sequence[str] | None = None,
    *,
    cases: Sequence[Case] = CASES,
    program: str = "python -m benchmarks.suite",
) -> int:
    """Run the benchmarks that the arguments select, show a table, and write the report.

    Parameters
    ----------
    arguments : sequence of str, optional
        Those of the command line, when left out; ``--help`` describes them.
    cases : list of Case
        What there is to run.
    program : str
        What the user typed to come here.

    Returns
    -------
    int
        The exit code: 0, 1 when a case failed, 2 when a name selects nothing.
    """
    options = parser(program).parse_args(arguments)
    options.only += options.names
    if options.list:
        sys.stdout.writelines(f"{case.name:22} {case.question}\n" for case in cases)
        return 0
    try:
        chosen = select(cases, options.only)
    except LookupError as fault:
        sys.stderr.write(f"{program}: {fault.args[0]}\n")
        return 2
    if not options.only:
        reasons = {case.name: why for case in chosen if (why := case.why_not())}
        sys.stderr.writelines(f"{name} is left out: {why}\n" for name, why in reasons.items())
        chosen = [case for case in chosen if case.name not in reasons]
    typed = " ".join([program, *(f"--only {name}" for name in options.only), *(["--quick"] if options.quick else [])])
    return _run(chosen, QUICK if options.quick else FULL, options.json, typed)


def parser(program: str) -> argparse.ArgumentParser:
    """Return what reads the command line.

    Parameters
    ----------
    program : str
        What the user typed to come here.
    """
    made = argparse.ArgumentParser(
        program, description="Run the benchmarks and show the ratios: median and quartiles of paired runs."
    )
    made.add_argument("names", nargs="*", metavar="NAME", help="as --only: python -m benchmarks.suite topology")
    made.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="run these: ingest, or ingest/m1/10k; repeatable",
    )
    made.add_argument("--quick", action="store_true", help="use an eighth of the sizes; not for publication")
    made.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write all measurements here, with .md and .svg beside it",
    )
    made.add_argument("--list", action="store_true", help="list the cases and their questions")
    return made


def _run(cases: list[Case], scale: Scale, path: Path | None, command: str) -> int:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    if path is not None:
        import matplotlib.figure  # noqa: F401  That it is missing should be known before the run, not after it.
    console = Console(width=None if sys.stdout.isatty() else _FILE_COLUMNS)
    columns = (TextColumn("{task.description:22}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task(cases[0].name, total=len(cases))

        def runner(case: Case) -> Outcome:
            progress.update(bar, description=case.name)
            outcome = run_apart(case, scale)
            progress.advance(bar)
            if outcome.error is not None:
                progress.console.print(outcome.error, markup=False, highlight=False)
            return outcome

        measured = run_all(cases, runner, command=command, scale=scale)
    console.print(report.table(measured["results"]))
    if path is not None:
        write(measured, path)
        console.print(f"{len(cases)} cases in {measured['seconds']:.0f} s, written to {path}")
    return int(any("error" in result for result in measured["results"]))


def write(measured: dict[str, Any], path: Path) -> None:
    """Write a report as JSON, and beside it as .md and, when there is something to draw, as .svg."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(measured, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(report.markdown(measured), encoding="utf-8")
    report.picture(measured, path.with_suffix(".svg"))
