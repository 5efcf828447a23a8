"""One shard of a stream without Spark: its completions, its log, and what becomes of both when it is cut off."""

import random
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest

from acker._engine.columns import check_columns
from acker._engine.combiner import Combiner, shard_of
from acker._engine.protocol import Kind, Outcome
from acker.errors import ArgumentValueError, CheckpointError
from acker.spark.blocks import encode_blocks, read_header
from acker.spark.notes import encode_note
from acker.spark.pipelines.stages import BLOCK, SHARD, Stage
from acker.spark.pipelines.transforms import BoltTransform, SpoutTransform
from acker.spark.streams.micro_batch import ShardBatch, update
from acker.spark.streams.reports import ShardFailure
from acker.spark.streams.shard_rules import ShardRules
from acker.spark.streams.state_format import CHUNK_ROWS_MAX, HEAD_KEY, ChunkSize, decode_chunk, decode_head, encode_head
from acker.spark.streams.table_cache import TableCache
from acker.spark.text_ids import numbers_of
from tests.marks import slow_after
from tests.spark.lossy import LossyLink
from tests.torture.micro_batches import Message, MicroBatches, settle_by_event_time

KINDS = (Kind.TRACK, Kind.TRACK, Kind.ANCHOR, Kind.OK, Kind.OK, Kind.OK, Kind.FAIL, Kind.RESET_TIMEOUT)


class Store:
    """Spark's state of one key: what a batch wrote counts once the batch is committed."""

    def __init__(self):
        self.committed = {}
        self.written = {}

    def get(self, key):
        return self.written.get(key)

    def put(self, key, data):
        self.written[key] = data

    def remove(self, key):
        del self.written[key]

    def commit(self):
        self.committed = dict(self.written)

    def roll_back(self):
        self.written = dict(self.committed)


def blocks_of(messages, tasks=1, shards=1):
    """Combine messages as so many tasks would, and return the blocks of shard 0."""
    found = []
    for task in range(tasks):
        part = messages[task::tasks]
        combiner = Combiner(resets=True)
        if part:
            combiner.add(*map(np.array, zip(*part, strict=True)))
        found += [block for shard, block in encode_blocks(combiner, shards) if shard == 0]
    return found


def random_messages(rng, roots=40, most=60):
    return [
        Message(rng.choice(KINDS), rng.randrange(roots), rng.randrange(4), rng.randrange(3), rng.randrange(5))
        for _ in range(rng.randrange(most))
    ]


def rows_of(done):
    return sorted(done.rows())


@pytest.fixture(params=["shared", "private"])
def cache(request, tmp_path):
    return TableCache(tmp_path / "cache" if request.param == "shared" else None)


@pytest.mark.parametrize("high_water", [None, 3])
@pytest.mark.parametrize("protocol", ["storm", "storm-0.9"])
@pytest.mark.parametrize("seed", slow_after(1, range(4)))
def test_any_stream_that_is_cut_off_anywhere_ends_as_the_rules_say(seed, protocol, high_water, cache, tmp_path):
    rng = random.Random(f"{seed} {protocol} {high_water}")
    refreshes = protocol == "storm-0.9"
    timeout_ms, buckets = Fraction(rng.randrange(50, 500), rng.choice((1, 3, 7))), rng.randrange(2, 6)
    model = MicroBatches(
        timeout_ms=timeout_ms, buckets=buckets, high_water=high_water, every_message_refreshes=refreshes
    )
    rules = ShardRules(1, 2, timeout_ms, buckets, high_water, refreshes)
    store = Store()
    time_ms, rebuilt, cached = 1000, 0, 0
    for batch_id in range(60):
        messages = random_messages(rng)
        time_ms += rng.choice((0, 1, 10, 30, 300))
        batch = ShardBatch(batch_id, blocks_of(messages, rng.randrange(1, 4)), time_ms)
        for _ in range(rng.choice((0, 0, 0, 1, 2))):  # attempts whose writes are lost, as when a task dies late
            update(store, cache, "key", 0, batch, rules)
            store.roll_back()
        if rng.random() < 0.1:
            cache = TableCache(tmp_path / f"worker {batch_id}")
        done, report, _ = update(store, cache, "key", 0, batch, rules)
        store.commit()
        assert rows_of(done) == sorted(model.update(messages, time_ms))
        assert (report.pending, report.open) == (len(model.entries), model.open)
        assert report.messages == len(messages)
        head = decode_head(store.get(HEAD_KEY))
        assert head.counts._asdict() == model.counts
        assert head.next_chunk - head.first_chunk == len(store.committed) - 1
        rebuilt, cached = rebuilt + report.rebuilt, cached + report.cached
    assert rebuilt > 5
    assert cached > 5
    assert model.counts["timed_out"] > 5
    assert model.counts["rejected"] > 5 or high_water is None


def test_open_trees_are_told_by_age_where_a_rotation_looks_at_them(cache):
    store, rules = Store(), ShardRules(1, 2, Fraction(40_000))
    told = []
    for batch, (root, clock_ms) in enumerate([(7, 0), (8, 15_000), (9, 21_000), (10, 22_000)]):
        blocks = blocks_of([Message(Kind.TRACK, root, 5, 1, 42)])
        told.append(update(store, cache, "key", 0, ShardBatch(batch, blocks, clock_ms), rules)[2].ages)
    assert told == [None, None, (1, 1, 1, 0, 0, 0, 0, 0), None]


@pytest.mark.parametrize(("shards", "most"), [(1, 50), (100, 1)])
def test_the_last_trees_that_were_not_acked_are_told_and_no_more_than_the_page_shows(cache, shards, most):
    roots = [root for root in range(4_000) if shard_of(np.array([root], np.int64), shards)[0] == 0][:30]
    messages = [
        Message(kind, root, 5, 3, 1_000 + root)
        for root in roots
        for kind in (Kind.TRACK, Kind.FAIL if root != roots[-1] else Kind.OK)
    ]
    batch = ShardBatch(0, blocks_of(messages, shards=shards), 0)
    done, _, (failures, _) = update(Store(), cache, "key", 0, batch, ShardRules(shards, 2))
    assert len(done) == 30
    assert (
        failures
        == [
            ShardFailure(str(message), task, outcome, elapsed, root)
            for root, message, task, outcome, elapsed in done.rows()
            if outcome == Outcome.FAILED
        ][-most:]
    )


def test_a_table_that_is_of_another_version_of_the_state_is_not_used(cache):
    store, rules = Store(), ShardRules(1, 2)
    batch = ShardBatch(0, blocks_of([Message(Kind.TRACK, 7, 5, 1, 42)]), 0)
    update(store, cache, "key", 0, batch, rules)
    store.commit()
    # The micro-batch runs twice; the table of the first time knows what the state does not.
    finish = ShardBatch(1, blocks_of([Message(Kind.OK, 7, 5)]), 1)
    for _ in range(2):
        store.roll_back()
        done, report, _ = update(store, cache, "key", 0, finish, rules)
        assert done.message_id.tolist() == [42]
    assert (report.cached, report.rebuilt) == (0, 1)


def test_an_error_on_the_way_gives_the_table_up(cache):
    store, rules = Store(), ShardRules(1, 2)
    update(store, cache, "key", 0, ShardBatch(0, blocks_of([Message(Kind.TRACK, 7, 5, 1, 42)]), 0), rules)
    store.commit()

    def refuse(key, data):
        if key == HEAD_KEY:
            raise OSError("the store is gone")
        Store.put(store, key, data)

    store.put = refuse
    finish = ShardBatch(1, blocks_of([Message(Kind.OK, 7, 5)]), 1)
    with pytest.raises(OSError, match="the store is gone"):
        update(store, cache, "key", 0, finish, rules)
    del store.put
    store.roll_back()
    done, report, _ = update(store, cache, "key", 0, finish, rules)
    assert done.message_id.tolist() == [42]
    assert report.rebuilt == 1


def test_the_clock(cache):
    """Downtime, a clock that jumps back, and no message at all: in (T, T * B / (B - 1)] plus a trigger."""
    timeout_ms, buckets = 1000, 3
    rules = ShardRules(1, 2, Fraction(timeout_ms), buckets)
    store = Store()

    def at(batch_id, clock_ms, *messages):
        done, report, _ = update(
            store, cache, "key", 0, ShardBatch(batch_id, blocks_of(list(messages)), clock_ms), rules
        )
        return done, report

    at(0, 10_000, Message(Kind.TRACK, 1, 5, 0, 1))
    done, report = at(1, 9_000, Message(Kind.TRACK, 2, 5, 0, 2))  # set back by a second: no time has passed
    assert (len(done), report.time_ms) == (0, 10_000)
    done, report = at(2, 10_000)
    assert (len(done), report.time_ms) == (0, 11_000)
    done, report = at(3, 10_499)
    assert len(done) == 0
    done, report = at(4, 10_500)
    assert (sorted(done.message_id.tolist()), done.elapsed_ms.tolist()) == ([1, 2], [1500, 1500])
    # Down for a day. What is there when it comes back is heard first; new trees get all of their time.
    at(5, 10_600, Message(Kind.TRACK, 3, 5, 0, 3), Message(Kind.TRACK, 4, 5, 0, 4))
    day = 86_400_000
    done, report = at(6, day, Message(Kind.OK, 3, 5), Message(Kind.TRACK, 5, 5, 0, 5))
    assert sorted(zip(done.message_id.tolist(), done.outcome.tolist(), strict=True)) == [(3, 0), (4, 2)]
    assert report.pending == 1
    done, report = at(7, day + timeout_ms)
    assert len(done) == 0
    done, report = at(8, day + timeout_ms * buckets // (buckets - 1))
    assert done.message_id.tolist() == [5]
    assert report.oldest_age_ms == 0


def test_the_log_is_as_long_as_what_is_held_and_its_work_is_bounded(cache):
    """Trees that stay below ones that come and go: what a micro-batch writes and cleans depends on its own size."""
    rules, store = ShardRules(1, 2), Store()
    rng = np.random.default_rng(7)
    stay, each = 200_000, 3000

    def run(batch_id, kind, roots, value):
        combiner = Combiner()
        combiner.add(np.full(len(roots), kind, np.int8), roots, np.full(len(roots), value), np.zeros(len(roots), int))
        batch = ShardBatch(batch_id, [block for _, block in encode_blocks(combiner, 1)], batch_id)
        return update(store, cache, "key", 0, batch, rules)[:2]

    _, first = run(0, Kind.TRACK, np.arange(stay), 5)
    assert first.pending == stay
    passing = np.empty(0, np.int64)
    bytes_written, rows = [], []
    for batch_id in range(1, 400, 2):
        run(batch_id, Kind.OK, passing, 5)
        passing = rng.integers(stay, 2**62, each)
        _, report = run(batch_id + 1, Kind.TRACK, passing, 5)
        bytes_written.append(report.bytes_written)
        rows.append(decode_head(store.get(HEAD_KEY)).log_rows)
    assert report.pending == stay + each
    assert max(rows) < 3 * stay + 4 * CHUNK_ROWS_MAX
    assert report.state_bytes < 44 * max(rows)
    # Four rows are looked at for each that is written, and each takes at most 44 bytes; a chunk goes in one piece.
    assert max(bytes_written) < 44 * (5 * each + CHUNK_ROWS_MAX) + 1000
    assert max(bytes_written[100:]) <= 1.5 * max(bytes_written[:100])
    # And the log still tells all.
    _, report, _ = update(store, TableCache(None), "key", 0, ShardBatch(401, [], 401), rules)
    assert (report.rebuilt, report.pending) == (1, stay + each)


def test_small_micro_batches_do_not_leave_small_chunks(cache):
    rules, store = ShardRules(1, 2), Store()
    for batch_id in range(600):
        messages = [Message(Kind.TRACK, batch_id * 10 + i, 5, 0, 0) for i in range(10)]
        _, report, _ = update(store, cache, "key", 0, ShardBatch(batch_id, blocks_of(messages), batch_id), rules)
    assert report.pending == 6000
    assert report.chunks < 70
    assert (
        sum(len(decode_chunk(store.get(number))[0].root_id) for number in store.written if number != HEAD_KEY) < 12_000
    )


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"shards": 2}, "shards: the checkpoint was made with 1, the query asks for 2"),
        ({"partitions": 3}, "spark.sql.shuffle.partitions: the checkpoint was made with 2, the query asks for 3"),
        (
            {"event_time": True},
            "event_time: trees of the checkpoint expire by the clock, the query asks for the waterm",
        ),
    ],
)
def test_what_the_checkpoint_fixes_cannot_be_changed(change, text, cache):
    store = Store()
    update(store, cache, "key", 0, ShardBatch(0, [], 0), ShardRules(1, 2))
    with pytest.raises(CheckpointError, match=text):
        update(store, cache, "key", 0, ShardBatch(1, [], 1), ShardRules(**{"shards": 1, "partitions": 2} | change))


def test_damage_is_refused():
    rules, store = ShardRules(1, 2), Store()
    update(store, TableCache(None), "key", 0, ShardBatch(0, blocks_of([Message(Kind.TRACK, 7, 5, 1, 42)]), 0), rules)
    good = dict(store.written)
    head = decode_head(good[HEAD_KEY])

    def expect(text):
        with pytest.raises(CheckpointError, match=text):
            update(store, TableCache(None), "key", 0, ShardBatch(1, [], 1), rules)
        store.written = dict(good)

    for name in (HEAD_KEY, 1):
        for place in range(0, len(good[name]), 7):
            damaged = bytearray(good[name])
            damaged[place] ^= 4
            store.written[name] = bytes(damaged)
            expect("head|chunk")
        store.written[name] = good[name][:-9]
        expect("bytes|checksum")
    del store.written[1]
    expect("chunk 1 of the log is missing")
    store.written[HEAD_KEY] = encode_head(head._replace(entries=2))
    expect("the log holds 1 entries, 1 of them tracked, and the head says 2 and 1")
    # No memory for what the head claims, before the log has shown it; its chunks may claim as much as they like.
    store.written[HEAD_KEY] = encode_head(head._replace(entries=2**61, chunks=(ChunkSize(2**32 - 1, 2**32 - 1),)))
    expect(f"the log holds 1 entries, 1 of them tracked, and the head says {2**61} and 1")
    store.written[HEAD_KEY] = encode_head(head._replace(shard=3))
    expect("expected the state of shard 0, got that of shard 3")


def test_a_block_of_another_shard_is_refused(cache):
    roots = np.arange(100)
    other = int(roots[shard_of(roots, 2) == 1][0])
    combiner = Combiner()
    combiner.add([Kind.OK], [other], [5])
    block = next(encode_blocks(combiner, 1))[1]
    with pytest.raises(ArgumentValueError, match="a block of shard 0 of 2 holds other trees"):
        update(Store(), cache, "key", 0, ShardBatch(0, [block], 0), ShardRules(2, 2))


def test_rows_of_a_pipeline_that_share_a_message_id_are_named_and_nothing_is_written(cache):
    store, rules = Store(), ShardRules(1, 2, Fraction(1000), ids="bigint")
    update(store, cache, "key", 0, ShardBatch(0, blocks_of([Message(Kind.TRACK, 7, 5, 0, 42)]), 0), rules)
    store.commit()
    twice = [Message(Kind.TRACK, 8, 5, 0, 43), Message(Kind.TRACK, 8, 5, 0, 43), Message(Kind.TRACK, 9, 5, 0, 44)]
    with pytest.raises(
        ArgumentValueError, match="message_id: 2 rows of one batch have the message id 43\\. They would"
    ):
        update(store, cache, "key", 0, ShardBatch(1, blocks_of(twice, tasks=2), 10), rules)
    assert store.written == store.committed
    # A replay of what is still open comes in another micro-batch: it is counted, as everywhere.
    again = blocks_of([Message(Kind.TRACK, 7, 5, 0, 42)])
    assert update(store, cache, "key", 0, ShardBatch(1, again, 10), rules)[1].duplicates == 1


def text_blocks(ids, roots=None):
    """Return the blocks and notes of trees that begin, and that nothing ends."""
    roots = numbers_of(pa.array(ids)) if roots is None else np.array(roots)
    heads = {"root_id": roots, "attempt": np.zeros(len(ids), np.int64), "message_id": pa.array(ids)}
    messages = [Message(Kind.TRACK, root, 5, 0, root) for root in roots.tolist()]
    return [*blocks_of(messages, max(1, len(ids))), encode_note(pa.table(heads))]


def test_text_ids_of_open_trees_are_kept_until_they_end(cache, tmp_path):
    store, rules = Store(), ShardRules(1, 2, Fraction(1000), 3, ids="string")
    ended = []
    for batch in range(70):  # so many that old chunks are removed, and what is open is written again
        ids = [f"order {batch}-{number}" for number in range(3)]
        blocks = text_blocks(ids if batch else [*ids, "first"])
        if batch == 40:
            cache = TableCache(tmp_path / "another worker")
        done, _, _ = update(store, cache, "key", 0, ShardBatch(batch, blocks, 10 * batch), rules)
        store.commit()
        assert len(done) == 0
    assert {number for number in store.written if number != HEAD_KEY and number < 0} == {
        -number for number in store.written if number != HEAD_KEY and number > 0
    }
    assert len(store.written) < 140, "the ids of removed chunks go with them"
    done, _, _ = update(store, cache, "key", 0, ShardBatch(70, text_blocks([]), 10_000), rules)
    ended = dict(zip(done.message_id.tolist(), done.outcome.tolist(), strict=True))
    expected = {"first", *(f"order {batch}-{number}" for batch in range(70) for number in range(3))}
    assert ended == dict.fromkeys(expected, Outcome.TIMED_OUT)


def test_two_text_ids_with_one_hash_are_an_error_that_names_both(cache):
    store, rules = Store(), ShardRules(1, 2, Fraction(1000), ids="string")
    text = r"message_id: the message ids 'a' and 'b' have the same 64-bit hash"
    with pytest.raises(ArgumentValueError, match=text):
        update(store, cache, "key", 0, ShardBatch(0, text_blocks(["a", "b"], [7, 7]), 0), rules)
    with pytest.raises(ArgumentValueError, match=r"2 rows of one batch have the message id 'a'\."):
        update(store, cache, "key", 0, ShardBatch(0, text_blocks(["a", "a"], [7, 7]), 0), rules)
    store.roll_back()
    update(store, cache, "key", 0, ShardBatch(0, text_blocks(["a"], [7]), 0), rules)
    assert update(store, cache, "key", 0, ShardBatch(1, text_blocks(["a"], [7]), 1), rules)[1].duplicates == 1
    with pytest.raises(ArgumentValueError, match=text):
        update(store, cache, "key", 0, ShardBatch(2, text_blocks(["b"], [7]), 2), rules)


def test_rows_of_a_pipeline_that_share_a_message_id_are_named_whatever_their_times(cache):
    rules = ShardRules(1, 2, Fraction(1000), event_time=True, ids="bigint")
    twice = [(Message(Kind.TRACK, 8, 5, 0, 43), 0), (Message(Kind.TRACK, 8, 5, 0, 43), 10**6)]
    with pytest.raises(
        ArgumentValueError, match="message_id: 2 rows of one batch have the message id 43\\. They would"
    ):
        update(Store(), cache, "key", 0, ShardBatch(0, timed_blocks(twice, 2, rules), 0), rules)


def pipeline_blocks(rows, tasks):
    """Return what a pipeline of two stages sends of rows (id, time in ms, text), in so many tasks each."""
    schema = pa.schema({"id": pa.int64(), "at": pa.timestamp("ms", "UTC"), "text": pa.string()})
    word = pa.schema({"word": pa.string()})

    def check(row):
        if row.word == "boom":
            raise ValueError(row.word)

    first = Stage(
        (
            SpoutTransform("rows", 1, "id", None, 0, 0, event_time="at"),
            BoltTransform("split", 1, lambda row: row.text.split(), "row", word, sink=False),
            LossyLink("word", "lost"),
        ),
        word,
        1,
        tracked=False,
        timed=True,
    )
    second = Stage((BoltTransform("check", 1, check, "row", word, sink=True),), word, 1, timed=True)
    batches = [
        pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows[n::tasks]], schema)
        for n in range(tasks)
    ]
    sent = [batch for part in batches for batch in first.run(iter([part]))]
    rng = random.Random(len(rows))
    rng.shuffle(sent)
    out = [batch for n in range(tasks) for batch in second.run(iter(sent[n::tasks]))]
    return [
        block
        for batch in out
        for shard, block in zip(batch.column(SHARD).to_pylist(), batch.column(BLOCK).to_pylist(), strict=True)
        if shard is not None and shard >= 0
    ]


@pytest.mark.parametrize("seed", slow_after(1, range(4)))
def test_trees_of_a_pipeline_expire_by_event_time_however_the_stream_is_cut(seed, cache):
    rng = random.Random(seed)
    timeout_ms, delay_ms = 1000, rng.choice((0, 2500))
    words = ("a", "b", "boom", "lost")
    rows = sorted((rng.randrange(60_000), " ".join(rng.choices(words, (9, 9, 1, 1), k=3))) for _ in range(120))
    rows = [(number, at, text) for number, (at, text) in enumerate(rows)]
    rows.sort(key=lambda row: row[1] + rng.uniform(0, delay_ms))
    rules = ShardRules(1, 2, Fraction(timeout_ms), 3, event_time=True, ids="bigint")
    # Of a tree with a FAIL nothing more is waited for; lost words keep a tree open until the watermark has come by.
    expected = {}
    over = max(at for _, at, _ in rows) - delay_ms
    for number, at, text in rows:
        if "boom" in text:
            expected[number] = Outcome.FAILED
        elif "lost" not in text:
            expected[number] = Outcome.ACKED
        elif over * 2 // timeout_ms >= at * 2 // timeout_ms + 3:
            expected[number] = Outcome.TIMED_OUT
    assert set(expected.values()) == {Outcome.ACKED, Outcome.FAILED, Outcome.TIMED_OUT}
    for micro_batches in (1, 2, 9, 40):
        cuts = sorted(rng.choices(range(len(rows)), k=micro_batches - 1))
        store, found, watermark_ms, latest_ms = Store(), [], 0, 0
        for batch_id, (first, end) in enumerate(zip([0, *cuts, len(rows)], [*cuts, len(rows), len(rows)], strict=True)):
            blocks = pipeline_blocks(rows[first:end], rng.randrange(1, 4)) if end > first else []
            done, _, _ = update(store, cache, "key", 0, ShardBatch(batch_id, blocks, watermark_ms), rules)
            found += [(message_id, outcome) for _, message_id, _, outcome, _ in done.rows()]
            latest_ms = max([latest_ms, *(read_header(block).event_ms for block in blocks)])
            assert latest_ms == max([0, *(at for _, at, _ in rows[:end])]), "blocks say how far the rows are"
            watermark_ms = max(watermark_ms, latest_ms - delay_ms)
        assert sorted(found) == sorted(expected.items())


def test_a_table_gives_memory_back_after_a_peak(cache):
    store, rules = Store(), ShardRules(1, 2, Fraction(10**6))

    def bytes_after(batch_id, messages):
        _, report, _ = update(store, cache, "key", 0, ShardBatch(batch_id, blocks_of(messages), batch_id), rules)
        store.commit()
        return report.table_bytes, report.pending

    small, _ = bytes_after(0, [Message(Kind.TRACK, -1, 5, 0, 0)])
    roots = range(20_000)
    whole = [Message(kind, root, 5, 0, root) for root in roots for kind in (Kind.TRACK, Kind.OK)]
    assert bytes_after(1, whole) == (small, 1), "what ends at once takes no room"
    large, pending = bytes_after(2, whole[::2])
    assert (large > 10 * small, pending) == (True, 20_001)
    assert bytes_after(3, whole[1::2]) == (small, 1)


def timed_stream(rng, trees, timeout_ms, span_ms):
    """Return (message, event time) pairs in order of time; ids are distinct, and what fails is not finished too."""
    stream = []

    def send(at, *message):
        stream.append((Message(*message), max(0, int(at))))

    for number in range(trees):
        root = rng.getrandbits(64) - 2**63
        begin, apart = rng.uniform(0, span_ms), timeout_ms * rng.choice((0.02, 0.3, 0.7))
        ids = [rng.getrandbits(62) + 1 for _ in range(rng.randrange(1, 6))]
        send(begin, Kind.TRACK, root, ids[0], number % 4, number)
        at = begin
        for place, tuple_id in enumerate(ids):
            at += rng.expovariate(1 / apart) - (timeout_ms * rng.random() if rng.random() < 0.1 else 0)
            fate = rng.random()
            if fate < 0.05:
                send(at, Kind.FAIL, root)
            elif fate > 0.1:
                send(at, Kind.OK, root, tuple_id ^ (ids[place + 1] if place + 1 < len(ids) else 0))
            if rng.random() < 0.2:
                send(at + rng.uniform(-apart, apart), Kind.RESET_TIMEOUT, root)
    return sorted(stream, key=lambda pair: pair[1])


def timed_blocks(stream, tasks, rules):
    found = []
    for task in range(tasks):
        part = stream[task::tasks]
        combiner = Combiner(resets=True, cohorts=rules.cohorts)
        if part:
            columns = check_columns(*map(np.array, zip(*(message for message, _ in part), strict=True)))
            combiner.add_unchecked(columns, np.array([at for _, at in part]))
        found += [block for _, block in encode_blocks(combiner, 1)]
    return found


def settled_in(batches, delay_ms, rules, rng, cache):
    """Run a stream in these micro-batches, and one without data in the end, as Spark does; some attempts fail."""
    store, done = Store(), []
    latest_ms, watermark_ms = 0, 0
    for batch_id, stream in enumerate([*batches, []]):
        batch = ShardBatch(batch_id, timed_blocks(stream, rng.randrange(1, 4), rules), watermark_ms)
        if rng.random() < 0.2:
            update(store, cache, "key", 0, batch, rules)
            store.roll_back()
        completions, report, _ = update(store, cache, "key", 0, batch, rules)
        store.commit()
        done += [(root, message, outcome) for root, message, _, outcome, _ in completions.rows()]
        latest_ms = max([latest_ms, *(at for _, at in stream)])
        watermark_ms = max(watermark_ms, latest_ms - delay_ms)
    counts = decode_head(store.get(HEAD_KEY)).counts
    assert counts.tracked == counts.acked + counts.failed + counts.timed_out + counts.rejected + report.open
    return sorted(done)


@pytest.mark.parametrize("protocol", ["storm", "storm-0.9"])
@pytest.mark.parametrize("seed", slow_after(1, range(6)))
def test_by_event_time_the_outcome_does_not_depend_on_how_the_stream_is_cut(seed, protocol, cache):
    rng = random.Random(f"{seed} {protocol}")
    timeout_ms, buckets = rng.choice((1000, 777, 10_000)), rng.randrange(2, 6)
    delay_ms = rng.choice((0, timeout_ms // 3, 3 * timeout_ms))
    rules = ShardRules(1, 2, Fraction(timeout_ms), buckets, None, protocol == "storm-0.9", event_time=True)
    stream = timed_stream(rng, 80, timeout_ms, 20 * timeout_ms)
    # No message comes later than the watermark waits for it.
    stream.sort(key=lambda pair: pair[1] + rng.uniform(0, delay_ms))
    expected = settle_by_event_time(
        stream,
        timeout_ms=timeout_ms,
        buckets=buckets,
        watermark_ms=max(at for _, at in stream) - delay_ms,
        every_message_refreshes=rules.every_message_refreshes,
    )
    assert {outcome for _, _, outcome in expected} == {Outcome.ACKED, Outcome.FAILED, Outcome.TIMED_OUT}
    for micro_batches in (1, 2, 7, 30, len(stream) if seed == 0 else 60):
        cuts = sorted(rng.choices(range(len(stream)), k=micro_batches - 1))
        batches = [stream[first:end] for first, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
        assert settled_in(batches, delay_ms, rules, rng, cache) == sorted(expected)


def test_by_event_time_a_tree_that_is_finished_too_late_timed_out_in_one_micro_batch_and_in_four(cache):
    second = 1000
    stream = [
        (Message(Kind.TRACK, 1, 5, 0, 101), 0),
        (Message(Kind.TRACK, 2, 6, 0, 102), 1000 * second),
        (Message(Kind.TRACK, 3, 7, 0, 103), 1001 * second),
        (Message(Kind.OK, 1, 5), 1005 * second),
    ]
    rules = ShardRules(1, 2, Fraction(10 * second), event_time=True)
    for batches in ([stream], [[pair] for pair in stream], [stream[:2], stream[2:]]):
        assert settled_in(batches, 0, rules, random.Random(0), cache) == [(1, 101, Outcome.TIMED_OUT)]
