"""Count words on Spark, or in this process, and track each line as a tuple tree.

A spout reads the lines of all text files in a folder, one bolt splits them, another counts the words. On purpose some
lines fail half-way, and some are never acked; the spout sends them again. A line that is no UTF-8 fails each time and
becomes a dead letter. On Spark the state of `Count` only has the effects of acked lines, so the counts are exact: they
are compared with a plain count of the same files. In one process a line that failed half-way is counted twice in part.

Run it: python examples/wordcount.py, which starts Spark in this program; with --checkpoint DIR, as a stream that may
be killed, and goes on where it was; with --on local, without Spark.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import acker.local
from acker.cli.environment import SetupError, spark_session
from acker.cli.topology import write_report
from acker.topology import Bolt, Grouping, ReliableSpout, StatefulBolt, Topology
from acker.topology.graph import graph_of

STDLIB = Path(sysconfig.get_path("stdlib"))


def is_text(path: Path) -> bool:
    """Return whether there is no zero byte at the start of a file."""
    with path.open("rb") as file:
        return b"\0" not in file.read(8192)


def text_files(root: Path) -> list[str]:
    """Return the text files of a folder, without those of installed packages."""
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in ("site-packages", "__pycache__"))
        found += [path for name in sorted(names) if is_text(path := Path(folder, name))]
    return [str(path.relative_to(root)) for path in found]


def lines_of(path: Path) -> list[str]:
    """Return the lines of a file; what is no UTF-8 reads as U+FFFD."""
    return path.read_bytes().decode("utf-8", "replace").split("\n")


class Lines(ReliableSpout):
    """Emits each line, with file:number as its id: on Spark as rows that the workers read."""

    outputs = ["line"]
    tup_id_column = "place"
    backoff_secs = 0.1

    def initialize(self, conf: Any, context: Any) -> None:
        self.letters = Path(conf["user.letters"])
        self.lines = self.read(Path(conf["user.folder"]))

    def read(self, root: Path) -> Iterator[tuple[str, str]]:
        for name in text_files(root):
            yield from ((f"{name}:{number}", line) for number, line in enumerate(lines_of(root / name), 1))

    def next_tuple(self) -> None:
        place, line = next(self.lines, (None, None))
        if place is None:
            self.finish()
        else:
            self.emit([line], tup_id=place)

    def frame(self, spark: Any, conf: Any) -> Any:
        root = Path(conf["user.folder"])
        files = spark.createDataFrame([(name,) for name in text_files(root)], "name string")
        spread = files.repartition(4 * spark.sparkContext.defaultParallelism)

        def read(batches: Any) -> Iterator[Any]:
            import pyarrow as pa

            for batch in batches:
                for name in batch.column("name").to_pylist():
                    lines = lines_of(root / name)
                    places = [f"{name}:{number}" for number in range(1, len(lines) + 1)]
                    yield pa.RecordBatch.from_pydict({"place": places, "line": lines})

        return spread.mapInArrow(read, "place string, line string")

    def dead_letter(self, tup_id: Any, values: Any, reason: Any) -> None:
        with self.letters.open("a") as file:
            file.write(json.dumps({"place": tup_id, "line": values[0], "reason": str(reason)}) + "\n")


class Split(Bolt):
    """Emits the words of a line, unless one of the injected faults comes first."""

    outputs = ["word"]
    auto_ack = False

    def process(self, tup: Any) -> None:
        if "\N{REPLACEMENT CHARACTER}" in tup.line:
            raise UnicodeError("not UTF-8")
        fault = random.random()
        if fault < 0.001:
            return  # It is never acked: its tree stays open until it times out.
        words = tup.line.split()
        if fault < 0.006:
            words = words[: len(words) // 2]
        for word in words:
            self.emit([word])
        if fault < 0.006:
            raise RuntimeError("injected: half of the words were emitted")
        self.ack(tup)


class Count(StatefulBolt):
    """Counts words."""

    def process(self, tup: Any) -> None:
        self.state[tup.word] = self.state.get(tup.word, 0) + 1


class WordCount(Topology):
    """lines -> split -> count."""

    lines = Lines.spec()
    split = Split.spec(inputs=[lines], par=4)
    count = Count.spec(inputs={split: Grouping.fields("word")}, par=4)


def run(on: str, conf: dict[str, Any], states: Path, options: argparse.Namespace) -> Any:
    """Run the topology until each line is acked or a dead letter; return the report."""
    if on == "local":
        return acker.local.run(WordCount, conf, until="drained", state=states)
    from acker.spark import run as run_on_spark  # Only here is PySpark needed.

    log = options.output / "spark.log"
    print(f"starting Spark; its log is {log}", flush=True)
    with spark_session("word count", options.master, driver_memory="2g", log=log) as spark:
        return run_on_spark(WordCount, conf, spark=spark, until="drained", checkpoint=options.checkpoint, state=states)


def verify(counts: Counter[str], root: Path, dead: list[str], *, exact: bool) -> str | None:
    """Compare the counts with those of a plain loop; return what is wrong."""
    expected: Counter[str] = Counter()
    for name in text_files(root):
        expected.update((root / name).read_bytes().decode("utf-8", "replace").split())
    for line in dead:
        expected.subtract(line.split())
    expected = +expected
    if dict(counts) == dict(expected) or (not exact and counts >= expected):  # Counters take longer to compare.
        return None
    wrong = sorted(word for word in counts.keys() | expected.keys() if counts[word] != expected[word])
    examples = [f"{word!r} {counts[word]:,} times, expected {expected[word]:,}" for word in wrong[:5]]
    return f"{len(wrong):,} words were counted wrong: {', '.join(examples)}"


def main() -> int:
    """Run the word count, compare it with a plain count, and show the figures; return 0 if the counts are right."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--input", type=Path, default=STDLIB, help="count these files")
    parser.add_argument("--on", choices=["spark", "local"], default="spark", help="where the bolts run")
    parser.add_argument("--master", default="local[*]", help="Spark's master")
    parser.add_argument("--checkpoint", help="run as a stream, and go on from this directory")
    parser.add_argument("--output", type=Path, default=Path("acker-report"), help="folder for the files of the run")
    options = parser.parse_args()
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("acker.spark").setLevel(logging.INFO)
    logging.getLogger("acker.topology").setLevel(logging.CRITICAL)  # Thousands of lines fail; the report counts them.

    options.output.mkdir(parents=True, exist_ok=True)
    states = options.output / "wordcount.state"
    letters = Path(options.checkpoint or options.output, "dead-letters.jsonl")
    states.unlink(missing_ok=True)
    if options.checkpoint is None:
        letters.unlink(missing_ok=True)
    letters.parent.mkdir(parents=True, exist_ok=True)
    letters.touch()
    conf = {"user.folder": str(options.input), "user.letters": str(letters), "topology.message.timeout.secs": 10}
    try:
        report = run(options.on, conf, states, options)
    except SetupError as fault:
        parser.exit(4, f"{fault}\n")

    counts: Counter[str] = Counter()
    for state in acker.local.read_state(states)["count"]:
        counts.update(state)
    # A driver that is killed may hand over a dead letter once more, so they count by their ids.
    dead = {each["place"]: each["line"] for each in map(json.loads, letters.read_text().splitlines())}
    wrong = verify(counts, options.input, list(dead.values()), exact=options.on == "spark")
    components = report.stats.components()
    lines = components["lines"]
    page = options.output / "report.html"
    write_report(report, graph_of(WordCount), page)
    for name, value in {
        "trees": lines.acked + lines.failed + lines.timed_out,
        "acked": lines.acked,
        "failed": lines.failed,
        "timed out": lines.timed_out,
        "replayed": lines.failed + lines.timed_out - lines.dead_letters,
        "dead letters": f"{len(dead):,} in {letters}" if dead else 0,
        "tuples between components": report.stats.totals.transferred,
        "words counted": counts.total(),
        "different words": len(counts),
        "time": f"{report.seconds:.1f} s",
        "report": str(page),
        "verified": wrong
        or ("yes, equal to a plain count" if options.on == "spark" else "yes, each word at least once"),
    }.items():
        print(f"{name:>26}  {value:,}" if isinstance(value, int) else f"{name:>26}  {value}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
