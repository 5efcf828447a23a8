"""The run behind `python -m examples.wordcount stream`."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from acker.cli.environment import SetupError, find_jdk
from examples.wordcount.cli import (
    console_beside,
    console_on,
    introduction,
    numbers,
    prepare,
    publish,
    seed_or_random,
    table_of,
)

if TYPE_CHECKING:
    from examples.wordcount.stream_job import StreamResult


def main(
    *,
    folder: Path | None,
    master: str,
    fail_rate: float,
    drop_rate: float,
    seed: int | None,
    max_attempts: int,
    timeout_seconds: float,
    spread_seconds: float,
    kills: int,
    worker_kills: int,
    output: Path,
    report: Path | None,
    json_file: Path | None,
    driver_memory: str,
    work: Path | None,
) -> int:
    """Run the job, and return the exit code."""
    start = time.perf_counter()
    cores = _local_cores(master)
    if work is not None and work.exists() and any(work.iterdir()):
        raise click.UsageError(f"--work: expected a new or an empty folder, {work} is not empty")
    corpus = prepare(folder)
    find_jdk()
    from examples.wordcount.progress import ConsoleProgress
    from examples.wordcount.stream_files import Folder, Settings
    from examples.wordcount.stream_job import Plan, StreamFailedError, StreamWordCount
    from examples.wordcount.stream_process import StreamProcess
    from examples.wordcount.stream_report import to_html

    console = console_beside(json_file)
    progress = ConsoleProgress(console_on(stderr=True))
    seed = seed_or_random(seed)
    progress.note(introduction(corpus, seed))
    output.mkdir(parents=True, exist_ok=True)
    log = output / "spark.log"
    log.unlink(missing_ok=True)
    with ExitStack() as stack:
        if work is None:
            work = Path(stack.enter_context(_scratch()))
        scratch = Path(stack.enter_context(_scratch()))
        files = Folder(work.resolve())
        command = [sys.executable, "-m", "examples.wordcount.stream_main", str(files.root), master, driver_memory]
        job = StreamWordCount(
            corpus,
            Settings(seed, fail_rate, drop_rate, max_attempts, timeout_seconds, cores),
            files,
            StreamProcess(command, log, scratch),
            Plan(spread_seconds, kills=kills, worker_kills=worker_kills),
            progress,
        )
        progress.tasks = job.count_ended_lines
        try:
            result = job.run()
        except StreamFailedError as fault:
            why = files.failure.read_text(encoding="utf-8") if files.failure.exists() else str(fault)
            if fault.code == 4:
                raise SetupError(why) from fault
            click.echo(f"acker: the stream failed: {why}\nacker: Spark's log is {log}", err=True)
            return 5
    result.wall_seconds = time.perf_counter() - start
    table = table_of("python -m examples.wordcount stream", rows(result), result)
    with progress.phase("drawing the report"):
        page = to_html(result)
    publish(result, table, page, console, output=output, report=report, json_file=json_file)
    return result.exit_code


def _local_cores(master: str) -> int:
    """Return how many threads a local master has; refuse others: the workers read the folders of this machine."""
    match = re.fullmatch(r"local(?:\[(\d+|\*)(?:,\d+)?\])?", master)
    if match is None:
        raise click.UsageError(f"--master: expected a local one, such as local[2,4], got {master!r}")
    return (os.cpu_count() or 1) if match[1] == "*" else int(match[1] or 1)


def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="acker-stream-", ignore_cleanup_errors=True)


def rows(result: StreamResult) -> list[tuple[str, str]]:
    """Return the rows of the result table."""
    return numbers(
        result,
        [
            ("attempts", f"{len(result.attempts)}"),
            ("micro-batches", f"{len(result.batches):,}"),
            ("kills of the driver", f"{sum(kill.what == 'driver' for kill in result.kills)}"),
            ("kills of a worker", f"{sum(kill.what == 'worker' for kill in result.kills)}"),
        ],
    )
