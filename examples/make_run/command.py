"""The command line of the word count: runs it on Spark or in this process, and compares it with a plain count."""

from __future__ import annotations

import argparse
import functools
import logging
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import acker.local
from acker.cli.environment import SetupError, require, spark_session
from acker.cli.topology import write_report
from acker.local.run import stop_on_signals
from acker.observe.run_report import RunReport
from acker.ui import LivePage
from examples import wordcount
from examples.make_run.account import Files, PlainCount, story
from examples.make_run.faults import FaultyWordCount
from examples.make_run.screen import Screen

EXAMPLES = Path(wordcount.__file__).parent
LOCAL_WITH_RETRIES = re.compile(r"local\[[^,]+,\s*([2-9]|\d\d+)\]")

WRONG, USAGE, NO_SETUP, INTERRUPTED = 1, 2, 4, 130
EXIT_CODES = (
    f"exit codes: 0 the counts are right, {WRONG} they are not, {USAGE} wrong arguments, {NO_SETUP} Spark or a package"
    f" is missing, {INTERRUPTED} interrupted"
)


def conf_of(options: argparse.Namespace, files: Files) -> dict[str, Any]:
    """Return the options of the topology."""
    conf: dict[str, Any] = {
        "user.folder": str(options.input),
        "user.deep": options.deep,
        "user.letters": str(files.letters),
        "user.drill": None,
        "topology.drain.secs": 0,  # An interrupted run need not finish what is open.
    }
    if options.on == "local":
        return {**conf, "topology.max.spout.pending": 10_000, "topology.message.timeout.secs": 3}
    if LOCAL_WITH_RETRIES.fullmatch(options.master):
        conf["user.drill"] = str(files.drill)
    return conf  # No timeout: on Spark a tree times out when its micro-batch ends.


@contextmanager
def runtime_of(
    options: argparse.Namespace, files: Files, screen: Screen
) -> Iterator[tuple[acker.local.LocalRuntime, Callable[[], object], Callable[[], str]]]:
    """Make a runtime, which was not started; give it, what runs it until all lines are done, and what tells a job."""
    conf = conf_of(options, files)
    more: dict[str, Any] = {"state": files.states, "ui": LivePage(serve=False)}  # It records the charts of the report.
    if options.on == "local":
        runtime = acker.local.LocalRuntime(FaultyWordCount, conf, **more)
        yield runtime, lambda: runtime.run("drained"), str
        return
    from acker.cli.on_spark import pickled_by_value  # Only here is PySpark needed.
    from acker.spark.topologies.run import run_until
    from acker.spark.topologies.spark_runtime import SparkRuntime

    screen.say(f"Spark starts; its log is {files.log_of_spark}")
    with ExitStack() as ends:
        spark = ends.enter_context(
            spark_session("word count", options.master, driver_memory="2g", log=files.log_of_spark)
        )
        ends.enter_context(pickled_by_value(EXAMPLES))
        on_spark = SparkRuntime(FaultyWordCount, conf, spark, checkpoint=options.checkpoint, **more)
        ends.callback(on_spark.release)
        ends.callback(on_spark.cancel_jobs)
        run_to_the_end = functools.partial(run_until, on_spark, "drained", options.checkpoint, None)
        yield on_spark, run_to_the_end, on_spark.batches.progress.where


def run(options: argparse.Namespace, files: Files, screen: Screen) -> RunReport:
    """Run until each line is acked or a dead letter, or the run is stopped; write its report as a page."""
    with runtime_of(options, files, screen) as (runtime, run_to_the_end, job):
        screen.say("Lines flow: lines -> split -> count; each line is a tuple tree.")
        with screen.watch(runtime, job), stop_on_signals(runtime):
            try:
                run_to_the_end()
            finally:
                runtime.stop()
        report = runtime.report()
        write_report(report, runtime.graph, files.page, *runtime.live.recorded())
    return report


def show(options: argparse.Namespace) -> int:
    """Count plainly, run the topology, compare, and tell what has happened; return the exit code."""
    files = Files(options)
    logging.basicConfig(
        filename=files.log, filemode="w", format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
    logging.getLogger("acker").setLevel(logging.INFO)
    logging.getLogger("acker.topology").setLevel(logging.CRITICAL)  # Thousands of lines fail; the report counts them.
    plain = PlainCount(options.input, deep=options.deep)
    screen = Screen(plain.lines, files.drill)
    screen.say(f"A plain loop has counted {plain.words.total():,} words in {plain.lines:,} lines of {options.input}")
    screen.say("Now a topology counts them, although lines fail, and comes to the same.")
    report = run(options, files, screen)
    lines, dead = report.stats.components()["lines"], files.dead_letters()
    if report.outcome != "drained":
        screen.say(f"Interrupted: {lines.acked:,} lines were acked. The report is {files.page}", "yellow")
        return INTERRUPTED
    for name, line in story(report, dead, files):
        screen.say(f"{name:>14}  {line}")
    counts = files.counts()
    wrong = plain.compare(counts, [each["line"] for each in dead], exact=options.on == "spark")
    how_often = "as often as" if options.on == "spark" else "at least as often as"
    right = f"nothing: each of {len(counts):,} different words was counted {how_often} by the plain loop"
    screen.say(f"{'lost':>14}  {wrong or right}", "red" if wrong else "green")
    return WRONG if wrong else 0


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=(wordcount.__doc__ or "").partition("\n")[0], epilog=EXIT_CODES)
    parser.add_argument(
        "--input", type=Path, help="count the text files of this folder; by default the modules of Python's library"
    )
    parser.add_argument("--on", choices=["spark", "local"], default="spark", help="where the bolts run")
    parser.add_argument(
        "--master",
        default="local[*,4]",
        help="Spark's master; a worker is killed if it is local with retries, as the default %(default)s",
    )
    parser.add_argument("--checkpoint", help="run as a stream, and go on from this directory")
    parser.add_argument("--output", type=Path, default=Path("acker-report"), help="folder for the files of the run")
    options = parser.parse_args(arguments)
    if options.input is not None and not options.input.is_dir():
        parser.error(f"--input {options.input}: there is no such folder")
    options.deep = options.input is not None
    options.input = options.input or wordcount.STDLIB
    return options


def main() -> int:
    """Run the word count; return the exit code."""
    options = parse()
    try:
        require("rich", extra="cli")
        return show(options)
    except SetupError as fault:
        print(fault, file=sys.stderr)
        return NO_SETUP
    except KeyboardInterrupt:  # before the topology runs
        print("Interrupted before a line was counted.")
        return INTERRUPTED
