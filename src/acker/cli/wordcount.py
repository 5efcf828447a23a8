"""`acker run wordcount`: options in; table, files and exit code out."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from acker.cli.environment import require, spark_session, was_interrupted
from acker.wordcount.corpus import default_input, find

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from acker.wordcount.job import Result


def main(
    *,
    folder: Path | None,
    master: str,
    fail_rate: float,
    drop_rate: float,
    seed: int | None,
    max_attempts: int,
    output: Path,
    report: Path | None,
    json_file: Path | None,
    driver_memory: str,
) -> int:
    """Run the job, and return the exit code."""
    start = time.perf_counter()
    try:
        corpus = find(default_input() if folder is None else folder)
    except OSError as fault:
        raise click.UsageError(str(fault)) from fault
    require("rich", "matplotlib", extra="cli")
    require("pyspark", "pyarrow", "pandas", extra="spark")
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from rich.console import Console

    from acker.cli.progress import ConsoleProgress, spark_tasks
    from acker.wordcount.components import Faults
    from acker.wordcount.job import WordCount, write_dead_letters

    # With JSON on the standard output, words for people go to the other one.
    stderr = json_file == Path("-")
    # Where nobody looks at a window there is no need to fold lines at 80.
    width = None if (sys.stderr if stderr else sys.stdout).isatty() else 120
    console = Console(stderr=stderr, width=width)
    progress = ConsoleProgress(console)
    if seed is None:
        seed = int.from_bytes(os.urandom(8), "little") >> 1
    letters, log = output / "dead-letters.jsonl", output / "spark.log"
    report = output / "report.html" if report is None else report
    progress.note(
        f"{len(corpus.paths):,} text files ({sum(corpus.sizes) / 1e6:.1f} MB) under {corpus.root}; --seed {seed}"
    )
    output.mkdir(parents=True, exist_ok=True)
    try:
        with ExitStack() as stack:
            with progress.phase("starting Spark"):
                spark = stack.enter_context(
                    spark_session("acker wordcount", master, driver_memory=driver_memory, log=log)
                )
            started = time.perf_counter() - start
            progress.tasks = spark_tasks(spark.sparkContext)
            result = WordCount(spark, corpus, Faults(seed, fail_rate, drop_rate), max_attempts, progress).run()
    except (PySparkException, Py4JError) as fault:
        if was_interrupted(fault):
            raise KeyboardInterrupt from fault
        click.echo(f"acker: the job failed: {_last_line(fault)}\nacker: Spark's log is {log}", err=True)
        return 5
    result.stages = {"start Spark": started, **result.stages}
    result.wall_seconds = time.perf_counter() - start
    write_dead_letters(result.dead_letters, letters)
    _write_report(result, report)
    _show(result, console, report, letters)
    if json_file is not None:
        text = json.dumps(result.to_json(), indent=2) + "\n"
        if json_file == Path("-"):
            sys.stdout.write(text)
        else:
            json_file.parent.mkdir(parents=True, exist_ok=True)
            json_file.write_text(text, encoding="utf-8")
    return result.exit_code


def _last_line(fault: BaseException) -> str:
    """Return the line of a Python or Java trace that says what went wrong."""
    lines = [line.strip() for line in str(fault).splitlines() if line.strip()]
    return lines[-1] if lines else type(fault).__name__


def _write_report(result: Result, path: Path) -> None:
    from acker.wordcount.report import to_html

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_html(result), encoding="utf-8")


def _show(result: Result, console: Console, report: Path, letters: Path) -> None:
    console.print(_table(result))
    for line in result.mismatches:
        console.print(f"  {line}", style="red", markup=False, highlight=False, soft_wrap=True)
    if result.dead_letters:
        console.print(f"dead letters: {letters}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    console.print(f"report: {report}", markup=False, highlight=False, soft_wrap=True)


def _table(result: Result) -> Table:
    from rich.table import Table

    table = Table(title="acker run wordcount", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(justify="right")
    for name, value in rows(result):
        table.add_row(name, value)
    verdict = "[green]yes, equal to a plain count[/]" if result.verified else "[red]NO[/]"
    table.add_row("verified", verdict, end_section=True)
    return table


def rows(result: Result) -> list[tuple[str, str]]:
    """Return the numbers of a run, as text, in the order in which they are read."""
    reasons = [(f"  {reason}", f"{count:,}") for reason, count in result.failed_by_reason.items()]
    return [
        ("lines", f"{result.lines:,}"),
        ("trees", f"{result.trees:,}"),
        ("messages", f"{result.messages:,}"),
        ("acked", f"{result.acked:,}"),
        ("failed", f"{result.failed:,}"),
        *reasons,
        ("timed out", f"{result.timed_out:,}"),
        ("replayed", f"{result.replayed:,}"),
        ("dead-lettered", f"{result.dead_lettered:,}"),
        ("rounds", f"{len(result.rounds)}"),
        ("words counted", f"{result.words:,}"),
        ("different words", f"{result.distinct_words:,}"),
        ("messages a second in the acker", f"{result.acker_messages_per_second:,.0f}"),
        ("wall time", f"{result.wall_seconds:.1f} s"),
    ]
