"""Completions of streaming DataFrames, on Spark: any stream, cut anywhere, stopped and started again."""

import os
import random
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812

from acker import MESSAGE_SCHEMA, Kind, Outcome
from acker._engine.columns import check_columns
from acker._engine.combiner import Combiner, shard_of
from acker.errors import ArgumentValueError, SessionError
from acker.spark import batch_report, completions, completions_from_blocks, completions_from_files, spout
from acker.spark.blocks import encode_blocks
from acker.spark.options import CompletionOptions, check_options
from acker.spark.session_checks import PROVIDER, PROVIDER_CONF
from acker.spark.streams import plan
from acker.spark.streams.listener import shard_reports
from acker.spark.streams.plan import make_rules
from acker.spark.streams.reports import SHARDS
from tests.torture.micro_batches import Message, MicroBatches

pytestmark = pytest.mark.spark

DDL = "kind tinyint, root_id bigint, value bigint, task_id int, message_id bigint"
KINDS = (Kind.TRACK, Kind.TRACK, Kind.ANCHOR, Kind.OK, Kind.OK, Kind.OK, Kind.FAIL, Kind.RESET_TIMEOUT)
# Against a query that never ends, and no measure: on a busy machine a micro-batch takes many seconds, and one test has
# some twenty of them.
TIMEOUT_S = 3_600


@pytest.fixture
def session(spark):
    """The session, with the state store that a streaming acker needs."""
    spark.conf.set(PROVIDER_CONF, PROVIDER)
    yield spark
    spark.conf.unset(PROVIDER_CONF)


def take_in_order(path, number):
    """Let Spark take a file after those of lower numbers: it goes by their times, which may be too close to tell."""
    os.utime(path, (10**9 + number, 10**9 + number))


class Stream:
    """Files of messages that come in one by one, and the query that settles them."""

    def __init__(self, session, folder, **options):
        self.session = session
        self.folder = folder
        self.options = {"shards": 3, "timeout": 10**6} | options
        self.files = 0
        (folder / "in").mkdir()

    def drop(self, messages):
        """Let a file come in; it will be a micro-batch of its own."""
        columns = list(zip(*messages, strict=True)) if messages else [[]] * 5
        arrays = [pa.array(column, field.type) for column, field in zip(columns, MESSAGE_SCHEMA, strict=True)]
        table = pa.table(arrays, schema=MESSAGE_SCHEMA)
        hidden = self.folder / "in" / f".{self.files}"
        pq.write_table(table, hidden)
        take_in_order(hidden, self.files)
        hidden.rename(self.folder / "in" / f"{self.files:04}.parquet")
        self.files += 1

    def frame(self):
        reader = self.session.readStream.schema(DDL).option("maxFilesPerTrigger", 1)
        return completions(reader.parquet(str(self.folder / "in")), **self.options)

    def run(self, **trigger):
        """Settle what is there; return the reports of each micro-batch, in order."""
        with self.started(**(trigger or {"availableNow": True})) as query:
            query.awaitTermination(TIMEOUT_S)
            assert not query.isActive
        return reports_of(query)

    def started(self, **trigger):
        return Running(
            self.frame()
            .writeStream.format("parquet")
            .option("path", str(self.folder / "out"))
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(**trigger)
            .start()
        )

    def done(self):
        """Return all completions so far, sorted, without the time they took."""
        found = self.session.read.schema(
            "root_id long, message_id long, task_id int, outcome tinyint, elapsed_ms long"
        ).parquet(str(self.folder / "out"))
        return sorted(tuple(row)[:4] for row in found.collect())


class Running:
    """A query that is stopped in the end."""

    def __init__(self, query):
        self.query = query

    def __enter__(self):
        return self.query

    def __exit__(self, *_):
        self.query.stop()


def reports_of(query):
    """Return {batch id: [report as a dict, ...]} of the query's micro-batches."""
    found = {progress["batchId"]: shard_reports(progress) for progress in query.recentProgress}
    return {batch: [report._asdict() for report in reports["acker"]] for batch, reports in found.items() if reports}


def totals(reports, name):
    return sum(report[name] for shards in reports.values() for report in shards)


def random_messages(rng, roots, rows):
    """Return messages with ids that repeat, doubled TRACKs, and FAILs and resets anywhere."""
    return [
        Message(rng.choice(KINDS), rng.randrange(-roots, roots), rng.randrange(4), rng.randrange(3), rng.randrange(5))
        for _ in range(rows)
    ]


def well_formed(rng, trees):
    """Return the messages of some trees, ids unique, in random order; every third one fails or stays open."""
    messages = []
    for number in range(trees):
        root = rng.getrandbits(64) - 2**63
        ids = [rng.getrandbits(63) for _ in range(rng.randrange(1, 6))]
        messages.append(Message(Kind.TRACK, root, ids[0], number % 4, number))
        for at, tuple_id in enumerate(ids):
            emitted = ids[at + 1] if at + 1 < len(ids) else 0
            fate = rng.random()
            if fate < 0.05:
                messages.append(Message(Kind.FAIL, root))
            elif fate > 0.08:
                messages.append(Message(Kind.OK, root, tuple_id ^ emitted))
    rng.shuffle(messages)
    return messages


@pytest.mark.parametrize("kind", [pytest.param("well-formed", marks=pytest.mark.soak), "arbitrary"])
def test_any_stream_cut_anywhere_ends_as_the_rules_say(kind, session, tmp_path):
    rng = random.Random(kind)
    messages = well_formed(rng, 400) if kind == "well-formed" else random_messages(rng, 60, 1500)
    cuts = sorted(rng.sample(range(len(messages)), 5))
    batches = [messages[first:end] for first, end in zip([0, *cuts], [*cuts, len(messages)], strict=True)]
    stream, model = Stream(session, tmp_path), MicroBatches()
    expected, reports = [], {}
    for number, batch in enumerate(batches):
        expected += model.update(batch, 0)
        stream.drop(batch)
        if number in (2, 5):  # in two runs from one checkpoint
            reports |= stream.run()
    assert stream.done() == sorted(row[:4] for row in expected)
    assert {name: totals(reports, name) for name in model.counts} == model.counts
    assert sum(report["pending"] for report in reports[max(reports)]) == len(model.entries)
    assert totals(reports, "messages") == len(messages)
    assert totals(reports, "cached") > 0


@pytest.mark.slow
def test_protocol_and_capacity(session, tmp_path):
    rng = random.Random("capacity")
    stream = Stream(session, tmp_path, shards=1, high_water=4, protocol="storm-0.9")
    model = MicroBatches(high_water=4, every_message_refreshes=True)
    expected = []
    for _ in range(3):
        batch = random_messages(rng, 30, 200)
        stream.drop(batch)
        expected += model.update(batch, 0)
    reports = stream.run()
    assert stream.done() == sorted(row[:4] for row in expected)
    assert {name: totals(reports, name) for name in model.counts} == model.counts
    assert model.counts["rejected"] > 10
    assert model.counts["dropped"] > 10


def test_trees_time_out_without_a_message_and_available_now_ends(session, tmp_path):
    stream = Stream(session, tmp_path, timeout="2 seconds", buckets=2)
    stream.drop([Message(Kind.TRACK, root, 5, 0, root) for root in range(20)])
    stream.run()
    with stream.started(processingTime="200 milliseconds") as query:
        while totals(reports_of(query), "timed_out") != 20:
            assert query.isActive, query.exception()
            query.awaitTermination(1)
    rows = session.read.parquet(str(tmp_path / "out")).collect()
    assert {row.outcome for row in rows} == {Outcome.TIMED_OUT}
    assert sorted(row.message_id for row in rows) == list(range(20))
    assert min(row.elapsed_ms for row in rows) > 2000
    assert stream.run()


@pytest.mark.slow
def test_a_stop_that_is_longer_than_the_timeout(session, tmp_path):
    stream = Stream(session, tmp_path, shards=1, timeout="50 milliseconds")
    stream.drop([Message(Kind.TRACK, 1, 5, 0, 1), Message(Kind.TRACK, 2, 5, 0, 2)])
    stream.run()
    # Starting again takes longer than 75 ms, whatever the machine.
    stream.drop([Message(Kind.OK, 1, 5), Message(Kind.TRACK, 3, 5, 0, 3)])
    reports = stream.run()
    assert stream.done() == [(1, 1, 0, Outcome.ACKED), (2, 2, 0, Outcome.TIMED_OUT)]
    assert sum(report["pending"] for report in reports[max(reports)]) == 1


@pytest.mark.soak
def test_the_observation_may_be_called_anything(session, tmp_path):
    stream = Stream(session, tmp_path, shards=2, timeout="1 hour", name="orders/eu: ü")
    stream.drop([Message(Kind.TRACK, 1, 5, 0, 7), Message(Kind.OK, 1, 5, 0, 0)])
    with stream.started(availableNow=True) as query:
        query.awaitTermination(TIMEOUT_S)
        reports = shard_reports(query.lastProgress)["orders/eu: ü"]
    assert stream.done() == [(1, 7, 0, 0)]
    assert sum(report.acked for report in reports) == 1


@pytest.mark.slow
def test_event_time_expires_by_the_watermark_and_in_the_same_way_again(session, tmp_path):
    schema = "kind tinyint, root_id bigint, value bigint, task_id int, message_id bigint, at bigint"
    folder = tmp_path / "in"
    folder.mkdir()
    second = 1000
    begin = 1_700_000_000 * second
    batches = [
        [(Kind.TRACK, 1, 5, 0, 1, 0), (Kind.TRACK, 2, 5, 0, 2, 1)],
        [(Kind.OK, 1, 5, None, None, 25), (Kind.TRACK, 3, 5, 0, 3, 65)],
        [(Kind.TRACK, 4, 5, 0, 4, 170)],
    ]
    types = (pa.int8(), pa.int64(), pa.int64(), pa.int32(), pa.int64(), pa.int64())
    for number, batch in enumerate(batches):
        rows = [(*row[:5], begin + row[5] * second) for row in batch]
        columns = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), types, strict=True)]
        path = folder / f"{number}.parquet"
        pq.write_table(pa.table(columns, names=[*MESSAGE_SCHEMA.names, "at"]), path)
        take_in_order(path, number)
    found = []
    for name in ("once", "again"):
        messages = session.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))
        done = completions(messages, shards=2, timeout=30, event_time="at", watermark_delay="5 seconds")
        query = (
            done.writeStream.format("parquet")
            .option("path", str(tmp_path / name))
            .option("checkpointLocation", str(tmp_path / f"{name} checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(TIMEOUT_S)
        found.append(sorted(map(tuple, session.read.parquet(str(tmp_path / name)).collect())))
    assert found[0] == found[1]
    # By the last watermark, 165 s, all are gone but the one that came at 170 s.
    assert [row[:4] for row in found[0]] == [(1, 1, 0, 0), *((root, root, 0, 2) for root in (2, 3))]
    assert all(row[4] > 30 * second for row in found[0][1:])


@pytest.mark.slow
def test_a_timer_says_nothing_of_a_micro_batch_that_rows_came_with(session, tmp_path):
    """One is due whenever the watermark has moved by more than a rotation."""
    folder = tmp_path / "in"
    folder.mkdir()
    batches = [
        [(Kind.TRACK, 1, 5, 0, 1, 0)],  # a timer is set
        [(Kind.OK, 1, 5, None, None, 1)],  # and is not wanted any more
        [(Kind.TRACK, 2, 5, 0, 2, 100), (Kind.OK, 2, 5, None, None, 100)],
        [(Kind.TRACK, 3, 5, 0, 3, 200), (Kind.OK, 3, 5, None, None, 200)],
    ]
    types = (pa.int8(), pa.int64(), pa.int64(), pa.int32(), pa.int64(), pa.int64())
    for number, batch in enumerate(batches):
        rows = [(*row[:5], 1_700_000_000_000 + row[5] * 1000) for row in batch]
        columns = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), types, strict=True)]
        path = folder / f"{number}.parquet"
        pq.write_table(pa.table(columns, names=[*MESSAGE_SCHEMA.names, "at"]), path)
        take_in_order(path, number)
    messages = session.readStream.schema(f"{DDL}, at bigint").option("maxFilesPerTrigger", 1).parquet(str(folder))
    done = completions(messages, shards=1, timeout=10, event_time="at")
    query = done.writeStream.format("memory").queryName("timers").trigger(availableNow=True).start()
    assert query.awaitTermination(TIMEOUT_S)
    reports = [report for progress in query.recentProgress if (report := batch_report(progress))]
    assert [report.acked for report in reports if report.messages] == [0, 1, 1, 1]
    # What Spark was told, before several reports of one shard are taken for one.
    told = [progress["observedMetrics"]["acker"][SHARDS] for progress in query.recentProgress if batch_report(progress)]
    assert {len(each) for each in told} == {1}


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:timeout. without one")
@pytest.mark.parametrize("first", [None, "1 hour"])
def test_a_timeout_may_be_given_later_or_left_out(first, session, tmp_path):
    stream = Stream(session, tmp_path, shards=1, timeout=first)
    stream.drop([Message(Kind.TRACK, 1, 5, 0, 1), Message(Kind.TRACK, 2, 5, 0, 2)])
    stream.run()
    stream.drop([Message(Kind.OK, 1, 5), Message(Kind.TRACK, 3, 5, 0, 3)])
    # Starting again takes longer than 75 ms, whatever the machine.
    stream.options["timeout"] = "50 milliseconds" if first is None else None
    stream.run()
    expected = [(1, 1, 0, Outcome.ACKED)] + [(2, 2, 0, Outcome.TIMED_OUT)] * (first is None)
    assert stream.done() == expected


@pytest.mark.slow
def test_by_event_time_one_micro_batch_with_empty_partitions_ends_as_four_do(session, tmp_path):
    (tmp_path / "in").mkdir()
    sent = [(Kind.TRACK, 1, 5, 0), (Kind.TRACK, 2, 6, 1000), (Kind.TRACK, 3, 7, 1001), (Kind.OK, 1, 5, 1005)]
    for number, (kind, root, value, at_s) in enumerate(sent):
        columns = [pa.array([field]) for field in (int(kind), root, value, 0, root + 100, at_s * 1000)]
        path = tmp_path / "in" / f"{number}.parquet"
        pq.write_table(pa.table(columns, names=[*MESSAGE_SCHEMA.names, "at"]), path)
        take_in_order(path, number)
    schema = "kind bigint, root_id bigint, value bigint, task_id bigint, message_id bigint, at bigint"
    for files in (1, 4):
        reader = session.readStream.schema(schema).option("maxFilesPerTrigger", files)
        messages = reader.parquet(str(tmp_path / "in")).repartition(6)
        done = completions(messages, shards=2, timeout="10 seconds", event_time="at")
        writer = done.writeStream.format("parquet").option("path", str(tmp_path / f"out {files}"))
        query = writer.option("checkpointLocation", str(tmp_path / f"{files}")).trigger(availableNow=True).start()
        assert query.awaitTermination(TIMEOUT_S)
        found = session.read.parquet(str(tmp_path / f"out {files}")).collect()
        assert [tuple(row)[:4] for row in found] == [(1, 101, 0, Outcome.TIMED_OUT)]


@pytest.mark.soak
def test_integers_of_other_widths(session, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    wide = pa.schema([pa.field(name, pa.int64()) for name in MESSAGE_SCHEMA.names])
    rows = [[0, 2], [7, 7], [5, 5], [3, None], [42, None]]
    pq.write_table(pa.table([pa.array(column, pa.int64()) for column in rows], schema=wide), folder / "0.parquet")
    messages = session.readStream.schema(DDL.replace("tinyint", "bigint").replace("task_id int", "task_id bigint"))
    done = completions(messages.parquet(str(folder)), shards=2, timeout=60)
    query = done.writeStream.format("memory").queryName("wide").trigger(availableNow=True).start()
    assert query.awaitTermination(TIMEOUT_S)
    assert [tuple(row)[:4] for row in session.table("wide").collect()] == [(7, 42, 3, Outcome.ACKED)]


def test_a_bad_row_ends_the_query_and_says_why(session, tmp_path):
    stream = Stream(session, tmp_path)
    stream.drop([(Kind.OK, 1, 5, None, None), (Kind.TRACK, 7, 5, None, 0)])
    with pytest.raises(StreamingQueryException) as caught:
        stream.run()
    assert "task_id: expected an int32 >= 0 for a TRACK, got null (root id 7)" in str(caught.value)


@pytest.mark.slow
def test_what_the_checkpoint_fixes_is_refused_with_the_way_out(session, tmp_path):
    stream = Stream(session, tmp_path)
    stream.drop([Message(Kind.TRACK, 7, 5, 0, 42)])
    stream.run()
    stream.drop([Message(Kind.OK, 7, 5)])
    stream.options["shards"] = 8
    with pytest.raises(StreamingQueryException, match="shards: the checkpoint was made with 3, the query asks for 8; "):
        stream.run()
    stream.options["shards"] = 3
    partitions = session.conf.get("spark.sql.shuffle.partitions")
    session.conf.set("spark.sql.shuffle.partitions", "3")
    try:
        with pytest.raises(
            StreamingQueryException, match="the checkpoint was made with 2, the query asks for 3; Spark"
        ):
            stream.run()
    finally:
        session.conf.set("spark.sql.shuffle.partitions", partitions)
    stream.run()
    assert stream.done() == [(7, 42, 0, Outcome.ACKED)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:timeout")
def test_a_number_of_shards_that_changed_is_noticed_whatever_shards_get_blocks(session, tmp_path):
    (tmp_path / "in").mkdir()

    def run(number, shards, message):
        """Send the block of one message, which is not of shard 0."""
        combiner = Combiner()
        combiner.add(*([field] for field in message))
        ((shard, block),) = encode_blocks(combiner, shards)
        assert shard > 0
        table = pa.table({"shard": pa.array([shard], pa.int32()), "block": pa.array([block], pa.binary())})
        pq.write_table(table, tmp_path / "in" / f"{number}.parquet")
        take_in_order(tmp_path / "in" / f"{number}.parquet", number)
        blocks = session.readStream.schema("shard int, block binary").parquet(str(tmp_path / "in"))
        writer = completions_from_blocks(blocks, shards=shards).writeStream.format("noop")
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination(TIMEOUT_S)

    run(0, 4, Message(Kind.TRACK, 7, 5, 0, 42))
    with pytest.raises(StreamingQueryException, match="shards: the checkpoint was made with 4, the query asks for 64;"):
        run(1, 64, Message(Kind.OK, 7, 5))


def test_more_shards_than_there_can_be_are_refused_with_one_text(session, tmp_path):
    stream = session.readStream.format("rate").load()
    messages = stream.selectExpr("tinyint(0) kind", "value root_id", "value", "int(0) task_id", "value message_id")
    blocks = messages.selectExpr("task_id shard", "binary(null) block")
    batch = session.createDataFrame([], "shard int, block binary")
    for attempt in (
        lambda shards: completions(messages, shards=shards, timeout=1),
        lambda shards: completions(session.createDataFrame([], DDL), shards=shards),
        lambda shards: completions_from_blocks(blocks, shards=shards, timeout=1),
        lambda shards: completions_from_blocks(batch, shards=shards),
        lambda shards: completions_from_files(session, tmp_path, shards=shards),
        lambda shards: completions_from_files(session, tmp_path, shards=shards, streaming=True, timeout=1),
        lambda shards: spout(messages, message_id="message_id", run_seed=1, shards=shards),
        lambda shards: shard_of([1], shards),
        lambda shards: Combiner().partials(shards),
    ):
        for shards in (1025, 5000):
            with pytest.raises(ArgumentValueError, match=f"^shards: expected an integer from 1 to 1024, got {shards}$"):
                attempt(shards)


def test_by_default_there_are_as_many_shards_as_partitions_and_no_more_than_there_can_be(session):
    partitions = session.conf.get("spark.sql.shuffle.partitions")
    try:
        for number, expected in (("7", 7), ("5000", 1024)):
            session.conf.set("spark.sql.shuffle.partitions", number)
            assert CompletionOptions().stream_shards(session) == expected
    finally:
        session.conf.set("spark.sql.shuffle.partitions", partitions)


def test_what_cannot_be_is_refused_when_the_plan_is_made(session):
    stream = (
        session.readStream.format("rate")
        .load()
        .selectExpr("tinyint(0) kind", "value root_id", "value", "int(0) task_id", "value message_id")
    )
    with pytest.raises(ArgumentValueError, match="include_pending"):
        completions(stream, include_pending=True)
    with pytest.raises(ArgumentValueError, match="event_time: expected a column of timestamps or of bigint"):
        completions(stream, event_time="task_id", timeout=1)
    with pytest.raises(ArgumentValueError, match="buckets: expected an integer from 2 to 15"):
        completions(stream, buckets=1, timeout=1)
    with pytest.raises(ArgumentValueError, match="shards: expected the number of shards for a stream of blocks"):
        completions_from_blocks(stream.selectExpr("task_id shard", "binary(null) block"))
    session.conf.unset(PROVIDER_CONF)
    with pytest.raises(SessionError, match="RocksDBStateStoreProvider"):
        completions(stream, timeout=1)


@pytest.mark.slow
def test_blocks_of_a_stream_have_a_shard_that_there_is(session, tmp_path):
    combiner = Combiner()
    combiner.add([0, 2], [7, 7], [5, 5], [0, 0], [42, 0])
    ((shard, block),) = encode_blocks(combiner, 5)
    rows = session.createDataFrame([(shard, bytearray(block)), (4, bytearray(block))], "shard int, block binary")
    rows.coalesce(1).write.parquet(str(tmp_path / "in"))
    blocks = session.readStream.schema(rows.schema).parquet(str(tmp_path / "in"))
    done = completions_from_blocks(blocks, shards=4, timeout="1 hour")
    query = done.writeStream.format("memory").queryName("few").trigger(availableNow=True).start()
    with pytest.raises(
        StreamingQueryException, match="expected a shard from 0 to 3 in column 'shard', since shards is 4"
    ):
        query.awaitTermination(TIMEOUT_S)


@pytest.mark.parametrize("name", ["a`b", "a.b", "`", "``a``.`b`", "zeit ü", "%s'\"", "kind."])
def test_the_column_of_event_times_may_have_any_name(name, session):
    stream = session.readStream.format("rate").load()
    messages = stream.selectExpr("tinyint(0) kind", "value root_id", "value", "int(0) task_id", "value message_id")
    done = completions(messages.withColumn(name, F.current_timestamp()), event_time=name, timeout=1, shards=2)
    assert done.columns[0] == "root_id"


def test_each_shard_has_an_equal_part_of_high_water():
    options = check_options(high_water=5)
    assert make_rules(options, shards=2, partitions=2).high_water == 3


def test_a_missing_timeout_is_warned_of_once():
    plan._warn_of_no_timeout.cache_clear()  # another test may have been warned
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            plan._warn_of_no_timeout()
    assert [str(warning.message)[:7] for warning in caught] == ["timeout"]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["files", "pipeline"])
def test_other_ways_into_a_stream_end_in_a_table(way, session, tmp_path):
    """With nothing that runs in this process, so that it holds for Spark Connect too."""
    (tmp_path / "in").mkdir()
    if way == "files":
        rows = [(Kind.TRACK, 7, 100, 0, 42), (Kind.OK, 7, 100, 0, 0), (Kind.TRACK, 8, 300, 0, 43)]
        columns = [
            pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), MESSAGE_SCHEMA, strict=True)
        ]
        pq.write_table(pa.table(columns, schema=MESSAGE_SCHEMA), tmp_path / "in/0.parquet")
        done = completions_from_files(session, tmp_path / "in", streaming=True, timeout="1 hour", shards=2)
    else:
        pq.write_table(pa.table({"line": [42], "text": ["to be"]}), tmp_path / "in/0.parquet")
        lines = session.readStream.schema("line long, text string").parquet(str(tmp_path / "in"))
        words = spout(lines, message_id="line", run_seed=7).bolt(
            lambda row: row.text.split(), schema="word string", component="split"
        )
        count = words.bolt(lambda row: [row.word], schema="word string", component="count", sink=True)
        done = count.completions(timeout="1 hour")
    writer = done.writeStream.format("parquet").option("path", str(tmp_path / "out"))
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(TIMEOUT_S)
    assert [(row.message_id, row.outcome) for row in session.read.parquet(str(tmp_path / "out")).collect()] == [(42, 0)]


@pytest.mark.slow
def test_blocks_with_event_times_expire_by_the_watermark(session, tmp_path):
    (tmp_path / "in").mkdir()
    options = check_options(timeout=10, event_time="latest")
    for number, (root, at_ms) in enumerate([(1, 0), (2, 100_000)]):
        combiner = Combiner(resets=True, cohorts=options.cohorts)
        combiner.add_unchecked(check_columns([Kind.TRACK], [root], [5], [0], [root + 40]), np.array([at_ms]))
        ((shard, block),) = encode_blocks(combiner, 1, at_ms)
        columns = {"shard": [shard], "block": [block], "latest": [at_ms]}
        pq.write_table(pa.table(columns), tmp_path / f"in/{number}.parquet")
    blocks = session.readStream.schema("shard long, block binary, latest long").parquet(str(tmp_path / "in"))
    done = completions_from_blocks(blocks, shards=1, timeout=10, event_time="latest")
    query = done.writeStream.format("memory").queryName("timed_blocks").trigger(availableNow=True).start()
    assert query.awaitTermination(TIMEOUT_S)
    assert [tuple(row)[:4] for row in session.table("timed_blocks").collect()] == [(1, 41, 0, Outcome.TIMED_OUT)]
