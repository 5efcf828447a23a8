"""The run behind `python -m examples.wordcount`, and the output of both word counts."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from acker.cli.environment import SetupError, announce, last_line, require, spark_session
from examples.wordcount.corpus import default_input, find

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from examples.wordcount.corpus import Corpus
    from examples.wordcount.job import Result, Totals


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
    corpus = prepare(folder)
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from examples.wordcount.components import Faults
    from examples.wordcount.job import WordCount
    from examples.wordcount.progress import ConsoleProgress, spark_tasks
    from examples.wordcount.report import to_html

    console = console_beside(json_file)
    progress = ConsoleProgress(console_on(stderr=True))
    seed = seed_or_random(seed)
    log = output / "spark.log"
    progress.note(introduction(corpus, seed))
    output.mkdir(parents=True, exist_ok=True)
    try:
        with ExitStack() as stack:
            with progress.phase("starting Spark", "about ten seconds"):
                spark = stack.enter_context(
                    spark_session("acker wordcount", master, driver_memory=driver_memory, log=log)
                )
            started = time.perf_counter() - start
            progress.tasks = spark_tasks(spark.sparkContext)
            result = WordCount(spark, corpus, Faults(seed, fail_rate, drop_rate), max_attempts, progress).run()
    except (PySparkException, Py4JError) as fault:
        if was_interrupted(fault):
            raise KeyboardInterrupt from fault
        click.echo(f"acker: the job failed: {last_line(fault)}\nacker: Spark's log is {log}", err=True)
        return 5
    result.stages = {"start Spark": started, **result.stages}
    result.wall_seconds = time.perf_counter() - start
    with progress.phase("drawing the report"):
        page = to_html(result)
    table = table_of("python -m examples.wordcount", rows(result), result)
    publish(result, table, page, console, output=output, report=report, json_file=json_file)
    return result.exit_code


def prepare(folder: Path | None) -> Corpus:
    """Find the text files, and check that the packages of a word count on Spark are installed."""
    folder = default_input() if folder is None else folder
    announce(f"looking for text files under {folder}")
    try:
        corpus = find(folder)
    except OSError as fault:
        raise click.UsageError(str(fault)) from fault
    require("rich", extra="cli")
    if importlib.util.find_spec("matplotlib") is None:
        raise SetupError("matplotlib is not installed: pip install matplotlib")
    require("pyspark", "pyarrow", "pandas", extra="spark")
    return corpus


def console_beside(json_file: Path | None) -> Console:
    """Return the console for the result: the standard error, if the standard output is for JSON."""
    return console_on(stderr=json_file == Path("-"))


def console_on(*, stderr: bool) -> Console:
    """Return a console on one of the two outputs."""
    from rich.console import Console

    # Where nobody looks at a window there is no need to fold lines at 80.
    width = None if (sys.stderr if stderr else sys.stdout).isatty() else 120
    return Console(stderr=stderr, width=width)


def seed_or_random(seed: int | None) -> int:
    """Return the seed, or a random one."""
    return int.from_bytes(os.urandom(8), "little") >> 1 if seed is None else seed


def introduction(corpus: Corpus, seed: int) -> str:
    """Return the first line of the output."""
    return f"{len(corpus.paths):,} text files ({sum(corpus.sizes) / 1e6:.1f} MB) under {corpus.root}; --seed {seed}"


def was_interrupted(fault: BaseException | None) -> bool:
    """Return whether Ctrl-C caused a failure: it cancels Spark's jobs, and PySpark may raise that error instead."""
    while fault is not None:
        if isinstance(fault, KeyboardInterrupt):
            return True
        fault = fault.__cause__ or fault.__context__
    return False


def publish(
    result: Totals,
    table: Table,
    page: str,
    console: Console,
    *,
    output: Path,
    report: Path | None,
    json_file: Path | None,
) -> None:
    """Write the files of a result, and show its table."""
    from examples.wordcount.job import write_dead_letters

    letters = output / "dead-letters.jsonl"
    report = output / "report.html" if report is None else report
    write_dead_letters(result.dead_letters, letters)
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(page, encoding="utf-8")
    console.print(table)
    for line in result.mismatches:
        console.print(f"  {line}", style="red", markup=False, highlight=False, soft_wrap=True)
    if result.dead_letters:
        console.print(f"dead letters: {letters}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    console.print(f"report: {report}", markup=False, highlight=False, soft_wrap=True)
    if json_file is not None:
        text = json.dumps(result.to_json(), indent=2) + "\n"
        if json_file == Path("-"):
            sys.stdout.write(text)
        else:
            json_file.parent.mkdir(parents=True, exist_ok=True)
            json_file.write_text(text, encoding="utf-8")


def table_of(title: str, rows: list[tuple[str, str]], result: Totals) -> Table:
    """Return the table of a result, its verdict last."""
    from rich.table import Table

    table = Table(title=title, show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(justify="right")
    for name, value in rows:
        table.add_row(name, value)
    verdict = "[green]yes, equal to a plain count[/]" if result.verified else "[red]NO[/]"
    table.add_row("verified", verdict, end_section=True)
    return table


def rows(result: Result) -> list[tuple[str, str]]:
    """Return the rows of the result table."""
    return numbers(result, [("rounds", f"{len(result.rounds)}")])


def numbers(result: Totals, others: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the rows that every result table has, with `others` in their midst."""
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
        *others,
        ("words counted", f"{result.words:,}"),
        ("different words", f"{result.distinct_words:,}"),
        ("messages a second in the acker", f"{result.acker_messages_per_second:,.0f}"),
        ("wall time", f"{result.wall_seconds:.1f} s"),
    ]
