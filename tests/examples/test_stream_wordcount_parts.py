"""The parts of the word count as a stream: files, kills and checks. No Spark runs here; a stand-in does its work."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from acker import Completions, Outcome
from acker._engine.ids import root_ids
from acker.spark.pipelines import anchors as trees
from acker.spark.pipelines.collector import COUNTERS_SHARD, FAILURES_SHARD, MessageCollector
from acker.spark.pipelines.stages import BLOCK, SHARD, hidden_schema
from examples.wordcount import stream
from examples.wordcount.components import INJECTED, Faults, draw_faults, split
from examples.wordcount.corpus import find, read_lines
from examples.wordcount.stream_files import Batch, Folder, Lines, Settings, line_and_attempt, message_ids, write_whole
from examples.wordcount.stream_job import TIMED_OUT, Plan, StreamFailedError, StreamWordCount
from examples.wordcount.stream_process import StreamProcess
from examples.wordcount.stream_report import to_html

SETTINGS = Settings(seed=5, fail_rate=0.2, drop_rate=0.2, max_attempts=50, timeout_seconds=1.0, partitions=2)
FAILED_BY_FAULT = f"split: InjectedFault: {INJECTED}"


@pytest.fixture
def corpus(tmp_path):
    root = tmp_path / "input"
    root.mkdir()
    for number in range(6):
        (root / f"{number}.txt").write_bytes(b"the quick brown fox\n\njumps over the lazy dog\n" * (10 + number))
    (root / "empty.txt").write_bytes(b"")
    (root / "ends early.txt").write_bytes("one d\u00e9j\u00e0 \u2603".encode())
    return find(root)


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path / "work")


class Silent:
    def __init__(self) -> None:
        self.notes: list[str] = []

    @contextmanager
    def phase(self, name):
        yield

    def note(self, text) -> None:
        self.notes.append(text)


class StandIn:
    """Does what the stream does, one micro-batch each time that somebody looks; lost words time out two later."""

    def __init__(self, folder, settings, *, lose=None, code=None) -> None:
        self.folder, self.settings = folder, settings
        self.lose, self.code = lose, code
        self.calls: list[str] = []
        self.running = False
        self.batch = 0
        self.seen: set[str] = set()
        self.open: list[list[tuple[int, int, int]]] = [[], []]
        self.sink = stream.Sink(folder, settings.max_attempts, clock=lambda: float(self.batch))

    def start(self) -> None:
        assert not self.running
        self.running = True
        self.calls.append("start")

    def stop(self) -> int:
        self.calls.append("stop")
        self.running = False
        return 0

    def kill(self) -> int:
        self.calls.append("kill")
        self.running = False
        return -9

    def kill_worker(self, draw) -> bool:
        assert 0 <= draw < 1
        self.calls.append("worker?" if len(self.calls) % 2 else "worker")
        return self.calls[-1] == "worker"

    def exit_code(self):
        assert self.running
        self._micro_batch()
        return self.code

    def _micro_batch(self) -> None:
        names = sorted({path.name for path in self.folder.drop.glob("[!.]*")} - self.seen)
        self.seen |= set(names)
        faults = Faults(self.settings.seed, self.settings.fail_rate, self.settings.drop_rate)
        ends: list[tuple[int, int, int, int]] = [(*tree, Outcome.TIMED_OUT) for tree in self.open.pop(0)]
        lost: list[tuple[int, int, int]] = []
        words: list[tuple[int, str]] = []
        failures = []
        for name in names:
            for wanted in self.folder.lines_of(f"file:/somewhere/{name}"):
                texts = read_lines(str(self.folder.text(wanted.file)))
                line = np.arange(1, len(texts) + 1) if wanted.line is None else wanted.line
                rows = draw_faults(wanted.file, line, [texts[number - 1] for number in line], faults, wanted.attempt)
                roots = root_ids(1, wanted.file, line, wanted.attempt, component="lines").tolist()
                messages = message_ids(line, wanted.attempt).tolist()
                for row, root, message in zip(rows.to_pylist(), roots, messages, strict=True):
                    tree = (root, message, wanted.file)
                    if row["fault"]:
                        failures.append((root, "split", f"InjectedFault: {INJECTED}"))
                        ends.append((*tree, Outcome.FAILED))
                        continue
                    arrived = [word for word, kept in split(SimpleNamespace(**row)) if kept]
                    words += [(root, word) for word in arrived]
                    if len(arrived) < len(row["text"].split()):
                        lost.append(tree)
                    else:
                        ends.append((*tree, Outcome.ACKED))
        self.open.append(lost)
        sent = len(ends) + len(lost) - sum(end[3] == Outcome.TIMED_OUT for end in ends)
        self._write(ends, words, failures, sent)
        self.batch += 1

    def _write(self, ends, words, failures, sent) -> None:
        if self.lose is not None:
            self.lose(self.batch, ends, words)
        counters = {"executed": 0, "emitted": sent, "failed": 0, "messages": sent, "function_ns": 0, "fanout": {}}
        report = {"messages": 2 * sent, "native_ns": 1000, "components": {"lines": counters}}
        roots, texts = zip(*words, strict=True) if words else ((), ())
        table = pa.table({"root_id": pa.array(roots, pa.int64()), "word": pa.array(texts, pa.string())})
        table = table.set_column(1, "word", table.column(1).dictionary_encode())
        metadata = {"failures": json.dumps(failures), "counters": json.dumps([report] if sent else [])}
        self.folder.write_results(self.batch, 0, table.replace_schema_metadata(metadata))
        root, message, file, outcome = (np.array(column) for column in zip(*ends, strict=True)) if ends else [[]] * 4
        self.sink(
            Completions(
                root_id=np.array(root, np.int64),
                message_id=np.array(message, np.int64),
                task_id=np.array(file, np.int32),
                outcome=np.array(outcome, np.int8),
                elapsed_ms=np.zeros(len(root), np.int64),
            ),
            self.batch,
        )


def run(corpus, folder, *, settings=SETTINGS, plan=None, **options):
    now = [0.0]

    def wait(seconds) -> None:
        now[0] += seconds

    stand_in = StandIn(folder, settings, **options)
    progress = Silent()
    plan = plan or Plan(spread_seconds=2.0, stalled_seconds=1.0)
    job = StreamWordCount(corpus, settings, folder, stand_in, plan, progress, clock=lambda: now[0], wait=wait)
    job.run()
    return job, stand_in, progress


def plain_count(corpus) -> tuple[Counter, int]:
    lines = [line for file in range(len(corpus.paths)) for line in read_lines(corpus.path(file))]
    return Counter(word for line in lines for word in line.split()), len(lines)


def test_every_line_is_sent_until_it_is_acked_and_counted_once(corpus, folder) -> None:
    job, stand_in, _ = run(corpus, folder)
    result = job.result
    counts, lines = plain_count(corpus)
    assert result.verified and result.exit_code == 0 and job.counts == counts
    assert result.acked == result.lines == lines and result.dead_lettered == 0
    assert result.trees == result.acked + result.failed + result.timed_out == lines + result.replayed
    assert result.failed > 10 and result.timed_out > 10 and len(result.attempts) > 2
    assert result.failed_by_reason == {FAILED_BY_FAULT: result.failed}
    for before, after in zip(result.attempts, result.attempts[1:], strict=False):
        assert after.trees == before.failed + before.timed_out
    assert stand_in.calls == ["start", "stop"]
    assert len(list(folder.drop.glob("*.txt"))) == len(corpus.paths)
    values = json.loads(json.dumps(result.to_json()))
    assert values["attempts"][0]["trees"] == lines and values["kills"] == [] and values["batches"][0]["acked"] > 0


def test_lines_that_are_never_acked_are_dead_lettered(corpus, folder) -> None:
    settings = Settings(5, 0.4, 0.3, 2, 5.0, 2)
    result = run(corpus, folder, settings=settings)[0].result
    assert result.verified and result.exit_code == 3 and 10 < result.dead_lettered < result.lines
    assert {letter.reason for letter in result.dead_letters} == {TIMED_OUT, FAILED_BY_FAULT}
    assert len({(letter.file, letter.line) for letter in result.dead_letters}) == result.dead_lettered
    assert result.attempts[1].failed + result.attempts[1].timed_out == result.dead_lettered


def test_kills_are_spread_over_the_lots_and_noted(corpus, folder) -> None:
    job, stand_in, progress = run(corpus, folder, plan=Plan(2.0, lots=6, kills=2, worker_kills=1))
    result = job.result
    assert result.verified
    assert Counter(kill.what for kill in result.kills) == {"driver": 2, "worker": 1}
    assert stand_in.calls.count("start") == 3 and stand_in.calls.count("kill") == 2
    assert stand_in.calls.count("worker") == 1
    assert all(kill.back_seconds > 0 and kill.batches > 0 for kill in result.kills)
    assert len({kill.batches for kill in result.kills}) == 3
    assert sum(note.startswith("killed the") for note in progress.notes) == 3
    page = to_html(result)
    assert page.count("<svg") == 4 and "verified: equal to a plain count" in page and "next one ended after" in page


def double(batch, ends, words) -> None:
    if batch == 1 and ends:
        ends.append(ends[0])


def never_ended(batch, ends, words) -> None:
    if batch == 1:
        del ends[:1]


def word_lost(batch, ends, words) -> None:
    if words:
        words.pop()


@pytest.mark.parametrize(
    ("lose", "text"),
    [
        (double, "trees that ended more than once: 1"),
        (word_lost, "counted"),
        (never_ended, "lines that ended: "),
    ],
)
def test_what_the_stream_gets_wrong_is_noticed(corpus, folder, lose, text) -> None:
    result = run(corpus, folder, lose=lose)[0].result
    assert not result.verified and result.exit_code == 1
    assert any(text in mismatch for mismatch in result.mismatches), result.mismatches


def test_an_attempt_that_nobody_asked_for_is_noticed(corpus, folder) -> None:
    def too_eager(batch, ends, words) -> None:
        if batch == 0:
            acked = next(end for end in ends if end[3] == Outcome.ACKED)
            ends.append((7, acked[1] + 1, acked[2], Outcome.ACKED))

    result = run(corpus, folder, lose=too_eager)[0].result
    assert not result.verified
    assert any(mismatch.startswith("attempt 2: ") for mismatch in result.mismatches), result.mismatches


def test_a_stream_that_ends_by_itself_is_told(corpus, folder) -> None:
    with pytest.raises(StreamFailedError, match="the stream ended with exit code 5") as caught:
        run(corpus, folder, code=5)
    assert caught.value.code == 5


def test_an_interrupt_kills_the_stream(corpus, folder) -> None:
    def interrupt(_seconds) -> None:
        raise KeyboardInterrupt

    stand_in = StandIn(folder, SETTINGS)
    job = StreamWordCount(corpus, SETTINGS, folder, stand_in, Plan(2.0), Silent(), wait=interrupt)
    with pytest.raises(KeyboardInterrupt):
        job.run()
    assert stand_in.calls == ["start", "kill"]


def test_a_corpus_without_lines_is_done_at_once(tmp_path, folder) -> None:
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "empty").write_bytes(b"")
    result = run(find(tmp_path / "input"), folder)[0].result
    assert result.verified and result.lines == result.trees == 0


def test_message_ids_tell_line_and_attempt() -> None:
    line = np.array([1, 2, 2**40])
    for attempt in (0, 7, 999):
        lines, attempts = line_and_attempt(message_ids(line, attempt))
        assert lines.tolist() == line.tolist() and set(attempts.tolist()) == {attempt}


def test_dropped_files_say_which_lines_to_send(folder) -> None:
    folder.make(SETTINGS)
    assert folder.settings() == SETTINGS
    assert list(folder.lines_of("file:/a/b/000000012.txt")) == [Lines(12, 0, None)]
    assert list(folder.lines_of("notes.md")) == []
    folder.write_ticket(3, np.array([2, 1, 2, 2]), np.array([9, 4, 5, 6]), np.array([0, 0, 0, 1]))
    told = [(file, attempt, line.tolist()) for file, attempt, line in folder.lines_of(folder.ticket(3).name)]
    assert told == [(1, 1, [4]), (2, 1, [5, 9]), (2, 2, [6])]
    folder.write_ticket(4, *[np.array([], np.int64)] * 3)
    assert not folder.ticket(4).exists()
    folder.write_batch(Batch(0, 1, 2, 3, 4, 5, 6.5))
    folder.write_batch(Batch(11, 1, 2, 3, 4, 5, 7.5))
    (folder.root / "batches" / ".000000012.json.new").write_text("not yet")
    assert [batch.batch for batch in folder.batches(set())] == [0, 11]
    assert folder.batches({0}) == [Batch(11, 1, 2, 3, 4, 5, 7.5)]
    with pytest.raises(FileExistsError):
        folder.make(SETTINGS)


def test_files_appear_whole_and_are_replaced(tmp_path) -> None:
    write_whole(tmp_path / "a", b"one")
    write_whole(tmp_path / "a", b"two")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"two")]


def test_read_sends_what_dropped_files_ask_for(folder) -> None:
    folder.make(SETTINGS)
    folder.text(7).write_bytes(b"a b\nc\nd e f")
    folder.write_ticket(0, np.array([7]), np.array([3]), np.array([1]))
    names = pa.RecordBatch.from_pydict({"path": [f"file:{folder.text(7)}", f"file:{folder.ticket(0)}"]})
    faults = Faults(5, 0.2, 0.2)
    rows = pa.Table.from_batches(stream.read(folder, faults, iter([names]))).to_pylist()
    assert [(row["file"], row["line"], row["attempt"], row["text"]) for row in rows] == [
        (7, 1, 0, "a b"),
        (7, 2, 0, "c"),
        (7, 3, 0, "d e f"),
        (7, 3, 2, "d e f"),
    ]
    assert [row["message"] for row in rows] == [1 << 10, 2 << 10, 3 << 10, 3 << 10 | 2]
    (again,) = draw_faults(7, np.array([3]), ["d e f"], faults, 2).to_pylist()
    assert again == {name: value for name, value in rows[3].items() if name != "message"}


def test_store_keeps_words_and_lets_messages_pass(folder, monkeypatch) -> None:
    import pyspark

    folder.make(SETTINGS)
    context = SimpleNamespace(getLocalProperty={"streaming.sql.batchId": "12"}.get, partitionId=lambda: 3)
    monkeypatch.setattr(pyspark.TaskContext, "get", classmethod(lambda cls: context))
    schema = hidden_schema(pa.schema({"word": pa.string()}))
    anchors = trees.single(np.array([5, 6, 5]), np.zeros(3, np.int64))
    data = [pa.array(["a", "b", "a"]), trees.to_arrow(anchors), pa.nulls(3, pa.int32()), pa.nulls(3, pa.binary())]
    collector = MessageCollector(2)
    collector.add(np.array([0], np.int8), np.array([5]), np.array([1]), np.array([0], np.int32), np.array([9]))
    collector.add_failures("split", np.array([6]), np.array([1]), ["no"])
    collector.counters("lines").emitted = 4
    shards, blocks = zip(*collector.finish(), strict=True)
    assert {FAILURES_SHARD, COUNTERS_SHARD} < set(shards)
    rest = [pa.nulls(3, pa.string()), pa.nulls(3, pa.binary()), pa.array(shards, pa.int32()), pa.array(blocks)]
    batches = [pa.RecordBatch.from_arrays(columns, schema=schema) for columns in (data, rest)]
    passed = pa.Table.from_batches(stream.store(folder, iter(batches)))
    assert passed.column_names == [SHARD, BLOCK]
    assert passed.to_pydict() == {SHARD: [shards[0]], BLOCK: [blocks[0]]} and shards[0] >= 0
    (table,) = folder.results()
    assert table.to_pydict() == {"root_id": [5, 6, 5], "word": ["a", "b", "a"]}
    assert json.loads(table.schema.metadata[b"failures"]) == [[6, "split", "no"]]
    (report,) = json.loads(table.schema.metadata[b"counters"])
    assert report["components"]["lines"]["emitted"] == 4
    assert [path.name for path in (folder.root / "results").iterdir()] == ["000000012-00003.arrows"]
    assert pa.Table.from_batches(stream.store(folder, iter(batches[:0])), passed.schema).num_rows == 0


# From the driver down: the JVM, the daemon, two workers. Each says when it is up, and how those below it end.
TOWER = """
import os, subprocess, sys, threading
depth = int(sys.argv[1])
def watch(child):
    os.write(2, f"ended {child.wait()}\\n".encode())
for _ in range((1, 1, 2, 0)[depth]):
    child = subprocess.Popen([sys.executable, sys.argv[0], str(depth + 1)], stdin=subprocess.PIPE)
    threading.Thread(target=watch, args=(child,), daemon=True).start()
os.write(2, b"up\\n")
sys.stdin.read()
"""


@pytest.fixture
def tower(tmp_path):
    """The processes, and what they say line by line."""
    (tmp_path / "tower.py").write_text(TOWER)
    os.mkfifo(tmp_path / "log")
    with open(os.open(tmp_path / "log", os.O_RDWR), "rb", buffering=0) as said:  # noqa: PTH123  A pipe, by its number.
        command = [sys.executable, str(tmp_path / "tower.py"), "0"]
        process = StreamProcess(command, tmp_path / "log", tmp_path / "scratch")
        yield process, said
        process.kill()


def test_the_process_stops_in_order_and_starts_again(tower) -> None:
    process, said = tower
    assert process.kill() == 0 and process.exit_code() is None  # Not started.
    process.start()
    assert [said.readline() for _ in range(5)] == [b"up\n"] * 5
    assert process.exit_code() is None and process.stop() == 0 and process.exit_code() == 0
    process.start()
    while said.readline() != b"up\n":
        pass
    assert process.kill() == -signal.SIGKILL == process.exit_code()


def test_one_worker_is_killed(tower) -> None:
    process, said = tower
    process.start()
    assert [said.readline() for _ in range(5)] == [b"up\n"] * 5
    workers = process.workers()
    assert len(workers) == 2 and process.kill_worker(0.99)
    assert said.readline() == b"ended -9\n"
    assert process.exit_code() is None and workers[0] in process.workers()
