"""Count words on Spark, or in this process, and track each line as a tuple tree.

A spout emits the lines of all text files in a folder, one bolt splits them, another counts the words. On purpose some
lines fail half-way, some are never acked, and on Spark a worker is killed; the lines come again. A line that is too
long, or no UTF-8, fails each time and becomes a dead letter. On Spark the state of `Count` only has the effects of
acked lines, so the counts are exact: they are compared with those of a plain loop over the same files. In one process
a line that failed half-way is counted twice in part.

Run it: python examples/wordcount.py, which starts Spark in this program; with --checkpoint DIR, as a stream that may
be killed, and goes on where it was; with --on local, without Spark.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import re
import signal
import sys
import sysconfig
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import acker.local
from acker.cli.environment import SetupError, require, spark_session
from acker.cli.topology import write_report
from acker.local.run import stop_on_signals
from acker.observe.durations import format_ns
from acker.observe.stats import RunReport
from acker.observe.summary import quantity
from acker.topology import Bolt, Grouping, ReliableSpout, StatefulBolt, Topology
from acker.ui import LivePage

STDLIB = Path(sysconfig.get_path("stdlib"))
NOT_TEXT = ("site-packages", "__pycache__")

LENGTH_MAX = 120  # characters of a line; a longer one becomes a dead letter
FORGOTTEN, HALF_WAY = 0.001, 0.005  # shares of the lines
KILLED_AFTER = 500  # lines of one task on Spark
LOCAL_WITH_RETRIES = re.compile(r"local\[[^,]+,\s*([2-9]|\d\d+)\]")
LETTERS_SHOWN = 3

WRONG, USAGE, NO_SETUP, INTERRUPTED = 1, 2, 4, 130
EXIT_CODES = (
    f"exit codes: 0 the counts are right, {WRONG} they are not, {USAGE} wrong arguments, {NO_SETUP} Spark or a package"
    f" is missing, {INTERRUPTED} interrupted"
)


def is_text(path: Path) -> bool:
    """Return whether there is no zero byte at the start of a file."""
    with path.open("rb") as file:
        return b"\0" not in file.read(8192)


def text_files(root: Path, *, deep: bool = True) -> list[str]:
    """Return the text files of a folder and, if `deep`, of those below it, but not of installed packages."""
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if deep and name not in NOT_TEXT)
        found += [path for name in sorted(names) if is_text(path := Path(folder, name))]
    return [str(path.relative_to(root)) for path in found]


def lines_of(path: Path) -> list[str]:
    """Return the lines of a file; what is no UTF-8 reads as U+FFFD."""
    return path.read_bytes().decode("utf-8", "replace").split("\n")


class Lines(ReliableSpout):
    """Emits each line, with file:number as its id."""

    outputs = ["line"]
    tup_id_column = "place"
    backoff_secs = 0.1

    def initialize(self, conf: Any, context: Any) -> None:
        self.letters = Path(conf["user.letters"])
        self.lines = self.read(Path(conf["user.folder"]), deep=conf["user.deep"])

    def read(self, root: Path, *, deep: bool) -> Iterator[tuple[str, str]]:
        for name in text_files(root, deep=deep):
            yield from ((f"{name}:{number}", line) for number, line in enumerate(lines_of(root / name), 1))

    def next_tuple(self) -> None:
        place, line = next(self.lines, (None, None))
        if place is None:
            self.finish()
        else:
            self.emit([line], tup_id=place)

    def dead_letter(self, tup_id: Any, values: Any, reason: Any) -> None:
        letter = {"place": tup_id, "line": values[0], "component": reason.component, "reason": str(reason)}
        with self.letters.open("a") as file:
            file.write(json.dumps(letter) + "\n")


class LinesOfWorkers(Lines):
    """Emits each line, as rows that the workers read: so a stream finds them again after its driver was killed."""

    def frame(self, spark: Any, conf: Any) -> Any:
        root = Path(conf["user.folder"])
        names = text_files(root, deep=conf["user.deep"])
        files = spark.createDataFrame([(name,) for name in names], "name string")
        spread = files.repartition(4 * spark.sparkContext.defaultParallelism)

        def read(batches: Any) -> Iterator[Any]:
            import pyarrow as pa

            for batch in batches:
                for name in batch.column("name").to_pylist():
                    lines = lines_of(root / name)
                    places = [f"{name}:{number}" for number in range(1, len(lines) + 1)]
                    yield pa.RecordBatch.from_pydict({"place": places, "line": lines})

        return spread.mapInArrow(read, "place string, line string")


class Drill:
    """Kills one worker of Spark, once, and notes which other one has its lines then.

    Parameters
    ----------
    notes : Path
        The file for the notes, which must not exist.
    """

    def __init__(self, notes: Path) -> None:
        self._notes = notes
        self._attempt, self._lines = -1, 0

    def count(self) -> None:
        """Count a line of the Spark task that runs."""
        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None
        if task.taskAttemptId() != self._attempt:
            self._attempt, self._lines = task.taskAttemptId(), 0
        self._lines += 1
        if self._lines == KILLED_AFTER:
            if task.attemptNumber() == 0:
                self._kill()
            else:
                self._write("a", f"Its lines came again: process {os.getpid()} has split the same {KILLED_AFTER}.")

    def _kill(self) -> None:
        with suppress(FileExistsError):
            told = f"A worker is killed now: process {os.getpid()}, after {KILLED_AFTER} lines of its task."
            self._write("x", told)
            os.kill(os.getpid(), signal.SIGKILL)

    def _write(self, mode: str, note: str) -> None:
        with self._notes.open(mode) as file:
            file.write(note + "\n")


class Split(Bolt):
    """Emits the words of a line, unless one of the injected faults comes first."""

    outputs = ["word"]
    auto_ack = False

    def initialize(self, conf: Any, context: Any) -> None:
        self.drill = Drill(Path(conf["user.drill"])) if conf["user.drill"] else None

    def process(self, tup: Any) -> None:
        if self.drill is not None:
            self.drill.count()
        if "\N{REPLACEMENT CHARACTER}" in tup.line:
            raise UnicodeError("not UTF-8")
        if len(tup.line) > LENGTH_MAX:
            raise ValueError(f"a line of {len(tup.line):,} characters, more than {LENGTH_MAX}")
        fault = random.random()
        if fault < FORGOTTEN:
            return  # It is never acked: its tree stays open until it times out.
        fails = fault < FORGOTTEN + HALF_WAY
        words = tup.line.split()
        for word in words[: len(words) // 2] if fails else words:
            self.emit([word])
        if fails:
            raise RuntimeError("injected: half of the words were emitted")
        self.ack(tup)


class Count(StatefulBolt):
    """Counts words."""

    def process(self, tup: Any) -> None:
        self.state[tup.word] = self.state.get(tup.word, 0) + 1


class WordCount(Topology):
    """lines -> split -> count."""

    lines = Lines.spec()
    split = Split.spec(inputs={"lines": Grouping.shuffle()}, par=4)
    count = Count.spec(inputs={split: Grouping.fields("word")}, par=4)


class WordCountStream(WordCount):
    """The same, over lines that the workers of Spark read."""

    lines = LinesOfWorkers.spec()


class PlainCount:
    """Counts the same words by a plain loop: what the topology must come to."""

    def __init__(self, root: Path, *, deep: bool = True) -> None:
        self.lines = 0
        self.words: Counter[str] = Counter()
        for name in text_files(root, deep=deep):
            text = (root / name).read_bytes().decode("utf-8", "replace")
            self.lines += text.count("\n") + 1
            self.words.update(text.split())

    def compare(self, counts: Counter[str], dead: list[str], *, exact: bool) -> str | None:
        """Compare counts with those of the loop, but for the words of dead letters; return what is wrong."""
        expected = self.words.copy()
        for line in dead:
            expected.subtract(line.split())
        expected = +expected
        if dict(counts) == dict(expected) or (not exact and counts >= expected):  # Counters take longer to compare.
            return None
        wrong = sorted(word for word in counts.keys() | expected.keys() if counts[word] != expected[word])
        examples = [f"{word!r} {counts[word]:,} times, expected {expected[word]:,}" for word in wrong[:5]]
        were = "word was" if len(wrong) == 1 else "words were"
        return f"{len(wrong):,} {were} counted wrong: {', '.join(examples)}"


class Screen:
    """Shows a run while it goes on: a bar on a terminal, a line every few seconds elsewhere; and the notes of a drill.

    Parameters
    ----------
    lines : int
        Number of lines that the run has to ack.
    notes : Path
    """

    LOOK_SECS, LINE_SECS, BAR_WIDTH = 0.25, 5.0, 60

    def __init__(self, lines: int, notes: Path) -> None:
        from rich.console import Console

        self.console = Console(highlight=False, markup=False, soft_wrap=True)
        self._has_bar = sys.stdout.isatty() and not self.console.is_dumb_terminal
        self._lines, self._notes, self._shown = lines, notes, 0
        self._over = threading.Event()

    def say(self, text: str = "", style: str | None = None) -> None:
        """Print a line, above the bar if there is one."""
        self.console.print(text, style=style)
        sys.stdout.flush()

    @contextmanager
    def watch(self, runtime: acker.local.LocalRuntime) -> Iterator[None]:
        """Show the progress of a runtime."""
        with ExitStack() as ends:
            watcher = threading.Thread(target=self._work, args=(runtime, self._bar(ends)), name="screen", daemon=True)
            watcher.start()
            ends.callback(watcher.join)
            ends.callback(self._over.set)
            yield

    def _bar(self, ends: ExitStack) -> Callable[[float, str], None]:
        """Return the function that shows a share and a line of figures."""
        if not self._has_bar:
            return lambda _, line: self.say(line)
        from rich.console import Group
        from rich.live import Live
        from rich.padding import Padding
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        live = ends.enter_context(Live(console=self.console, auto_refresh=False, transient=True))

        def show(share: float, line: str) -> None:
            bar = ProgressBar(total=1.0, completed=share, width=min(self.BAR_WIDTH, self.console.width))
            below = Text(line, no_wrap=True, overflow="ellipsis")
            live.update(Group(Padding(bar, 0), below), refresh=True)  # A bar alone does not end its line.

        return show

    def _work(self, runtime: acker.local.LocalRuntime, show: Callable[[float, str], None]) -> None:
        due = 0.0
        while not self._over.wait(self.LOOK_SECS):
            self._show_notes()
            if time.monotonic() >= due:
                due = time.monotonic() + (0.0 if self._has_bar else self.LINE_SECS)
                show(*self._figures(runtime))
        self._show_notes()

    def _figures(self, runtime: acker.local.LocalRuntime) -> tuple[float, str]:
        stats = runtime.stats()
        totals, secs = stats.totals, stats.uptime_secs or 1.0
        share = min(1.0, totals.acked / max(1, self._lines))
        counts = {"lines": totals.acked, "tuples": totals.transferred, "failures": totals.failed + totals.timed_out}
        rates = ", ".join(f"{count / secs:,.0f} {name}" for name, count in counts.items())
        return share, f"{share:4.0%}  {totals.acked:,} of {self._lines:,} lines; a second {rates}"

    def _show_notes(self) -> None:
        notes = self._notes.read_text().splitlines() if self._notes.exists() else []
        for note in notes[self._shown :]:
            self.say(note, "yellow")
        self._shown = len(notes)


class Files:
    """The files of a run, in its output folder; those of the last run go."""

    def __init__(self, options: argparse.Namespace) -> None:
        folder: Path = options.output
        folder.mkdir(parents=True, exist_ok=True)
        self.states, self.drill, self.page = folder / "wordcount.state", folder / "drill", folder / "report.html"
        self.log, self.log_of_spark = folder / "run.log", folder / "spark.log"
        # A stream that goes on has dead letters already.
        self.letters = Path(options.checkpoint or folder, "dead-letters.jsonl")
        old = [self.states, self.drill, self.page]
        for path in old if options.checkpoint else [*old, self.letters]:
            path.unlink(missing_ok=True)
        self.letters.parent.mkdir(parents=True, exist_ok=True)
        self.letters.touch()

    def counts(self) -> Counter[str]:
        """Return how often each word was counted."""
        counts: Counter[str] = Counter()
        for state in acker.local.read_state(self.states)["count"]:
            counts.update(state)
        return counts

    def dead_letters(self) -> list[dict[str, str]]:
        """Return the dead letters, each line once: a driver that is killed may hand one over again."""
        return list({each["place"]: each for each in map(json.loads, self.letters.read_text().splitlines())}.values())


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
        return {**conf, "topology.max.spout.pending": 1_000, "topology.message.timeout.secs": 3}
    if LOCAL_WITH_RETRIES.fullmatch(options.master):
        conf["user.drill"] = str(files.drill)
    # No timeout: on Spark a tree times out when its micro-batch ends.
    return {**conf, "topology.max.spout.pending": 40_000}


@contextmanager
def runtime_of(
    options: argparse.Namespace, files: Files, screen: Screen
) -> Iterator[tuple[acker.local.LocalRuntime, Callable[[], object]]]:
    """Make a runtime, which was not started; give it, and the function that runs it until all lines are done."""
    conf = conf_of(options, files)
    more: dict[str, Any] = {"state": files.states, "ui": LivePage(serve=False)}  # It records the charts of the report.
    if options.on == "local":
        runtime = acker.local.LocalRuntime(WordCount, conf, **more)
        yield runtime, lambda: runtime.run("drained")
        return
    from acker.spark.topologies.run import run_until  # Only here is PySpark needed.
    from acker.spark.topologies.spark_runtime import SparkRuntime

    topology = WordCount if options.checkpoint is None else WordCountStream
    screen.say(f"Spark starts; its log is {files.log_of_spark}")
    with ExitStack() as ends:
        spark = ends.enter_context(
            spark_session("word count", options.master, driver_memory="2g", log=files.log_of_spark)
        )
        on_spark = SparkRuntime(topology, conf, spark, checkpoint=options.checkpoint, **more)
        ends.callback(on_spark.release)
        ends.callback(on_spark.cancel_jobs)
        yield on_spark, lambda: run_until(on_spark, "drained", options.checkpoint, None)


def run(options: argparse.Namespace, files: Files, screen: Screen) -> RunReport:
    """Run until each line is acked or a dead letter, or the run is stopped; write its report as a page."""
    with runtime_of(options, files, screen) as (runtime, run_to_the_end):
        screen.say(f"Lines flow: {' -> '.join(runtime.graph.nodes)}; each line is a tuple tree.")
        with screen.watch(runtime), stop_on_signals(runtime):
            try:
                run_to_the_end()
            finally:
                runtime.stop()
        report = runtime.report()
        write_report(report, runtime.graph, files.page, None, *runtime.live.recorded())
    return report


def story(report: RunReport, dead: list[dict[str, str]], files: Files) -> Iterator[tuple[str, str]]:
    """Yield what was injected, what came of it, and how long the trees took: each a name and a line."""
    lines = report.stats.components()["lines"]
    attempts = Lines.attempts_max or 1
    half_way = lines.failed - attempts * lines.dead_letters
    killed = ", a worker was killed" if files.drill.exists() else ""
    yield (
        "injected",
        f"{half_way:,} times a line failed half-way, {lines.timed_out:,} times it was never acked{killed}",
    )
    yield "came again", f"{lines.failed + lines.timed_out - lines.dead_letters:,} times a line, until it was acked"
    yield (
        "dead letters",
        f"{quantity(len(dead), 'line')} failed {attempts} times, in {files.letters}" if dead else "none",
    )
    for letter in dead[:LETTERS_SHOWN]:
        yield "", f"  {letter['place']}: {letter['reason']}"
    latency = lines.complete_latency
    half, most, all_of_them = (format_ns(latency.quantile(share)) for share in (0.5, 0.99, 1.0))
    yield "latency", f"of trees: {half} or less for half of them, {most} for 99 of 100, {all_of_them} for all"
    yield "tuples", f"{report.stats.totals.transferred:,} between components in {report.seconds:.1f} s"
    for stall in report.stalls:
        yield "stood still", stall
    yield "report", str(files.page)


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
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0], epilog=EXIT_CODES)
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
    options.input = options.input or STDLIB
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


if __name__ == "__main__":
    sys.exit(main())
