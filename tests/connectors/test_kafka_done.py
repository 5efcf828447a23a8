"""The text in the metadata of a Kafka commit that names what is done above it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from acker._handles import deliveries_of, run_of
from acker.connectors.kafka import Kafka
from acker.connectors.kafka.assignments import Assignment
from acker.connectors.kafka.done import DoneAbove, joined, metadata_of
from acker.connectors.kafka.membership import KafkaDelivery
from acker.offsets import OffsetTracker


def offsets_of(runs):
    return [offset for first, end in runs for offset in range(first, end)]


def runs_of(offsets):
    return list(joined((offset, offset + 1) for offset in sorted(offsets)))


SETS = st.sets(st.integers(0, 300), max_size=200)


@given(SETS, st.integers(0, 2**48))
def test_what_was_written_is_read(offsets, base):
    runs = runs_of(base + offset for offset in offsets)
    text, is_whole = metadata_of(base, runs, 17, 4096)
    done = DoneAbove(text, base)
    assert is_whole and list(done.runs) == runs and len(text) <= 4096 and (done.latest_ms == 17 or not runs)
    assert [offset for offset in range(base, base + 302) if done.has(offset, 17)] == offsets_of(runs)


@given(SETS, st.integers(40, 200))
def test_what_has_no_place_is_left_out_from_the_end(offsets, size_max):
    runs = runs_of(offsets)
    text, is_whole = metadata_of(0, runs, 17, size_max)
    found = offsets_of(DoneAbove(text, 0).runs)
    assert len(text) <= size_max and found == offsets_of(runs)[: len(found)] and is_whole == (found == offsets_of(runs))


@pytest.mark.parametrize("runs", [[(1, 2_000_000)], [(each, each + 1) for each in range(1, 20_000, 2)]])
def test_a_million_done_messages_or_ten_thousand_gaps_have_a_place(runs):
    text, is_whole = metadata_of(0, runs, 10**12, 4096)
    assert is_whole and list(DoneAbove(text, 0).runs) == runs


def test_a_message_that_is_younger_than_all_that_were_read_is_another_one():
    text, _ = metadata_of(5, [(7, 9)], 1000, 4096)
    done = DoneAbove(text, 5)
    assert not done.has(6, 10) and not done.has(7, 1001) and done.has(8, 1000) and not done.has(9, 10)


@pytest.mark.slow
@given(st.text(max_size=30) | st.just("acker1 r 5 00000000:AQ==") | st.just("acker1 r x 0:!"))
def test_what_acker_has_not_written_says_nothing(text):
    assert not DoneAbove(text, 0) and not DoneAbove(None, 0)


@given(SETS.filter(bool), st.data())
def test_a_damaged_text_says_nothing(offsets, data):
    text, _ = metadata_of(0, runs_of(offsets), 17, 4096)
    body = text.index(":") + 1
    place = data.draw(st.integers(body, len(text) - 1))
    other = data.draw(st.sampled_from("ABCDEFGH+/9!"))
    damaged = text[:place] + other + text[place + 1 :]
    assert damaged == text or not DoneAbove(damaged, 0) or list(DoneAbove(damaged, 0).runs) == runs_of(offsets)


class Read:
    """A message as the client hands it out, or an error in its place."""

    def __init__(self, offset, topic="t", partition=0, ms=7, error=None):
        self.error, self.topic, self.partition = (lambda: error), (lambda: topic), (lambda: partition)
        self.offset, self.timestamp = (lambda: offset), (lambda: (1, ms))


@pytest.mark.parametrize(
    ("messages", "found"),
    [
        ([Read(3), Read(4, ms=9), Read(5)], (3, 3, 9)),
        ([Read(3), Read(5)], (1, 3, 7)),  # a hole of the log
        ([Read(3), Read(2)], (1, 3, 7)),
        ([Read(3), Read(4, partition=1)], (1, 3, 7)),
        ([Read(3), Read(4, topic="u")], (1, 3, 7)),
        ([Read(3), Read(4, error="gone")], (1, 3, 7)),
        ([Read(3, error="gone"), Read(4)], (0, -1, -1)),
        ([Read(3, ms=-1)], (1, 3, -1)),  # without a timestamp
    ],
)
def test_a_run_ends_where_offsets_do_not_follow_each_other(messages, found):
    assert run_of(messages, 0, False) == found
    count, offset, latest_ms = run_of([Read(0), *messages], 1, False)
    assert (count - 1, offset, latest_ms) == found
    if len({message.topic() for message in messages}) == 1:
        assert run_of(messages, 0, True) == found


def test_a_delivery_makes_its_key_and_headers_when_somebody_asks():
    asked = []
    message = SimpleNamespace(
        value=lambda: None, offset=lambda: 17, headers=lambda: asked.append(1) or [("a", b"1"), ("a", b"2")]
    )
    (delivery,) = deliveries_of([message], 17, "orders/3", KafkaDelivery)
    assert (delivery.value, delivery.attempt, delivery.raw, delivery.receipt) == (b"", 1, message, "orders/3")
    assert not asked and delivery.key == "orders/3@17"
    assert delivery.headers == {"a": b"2"} == delivery.headers and asked == [1]


def test_what_goes_with_a_partition_is_not_acked():
    source = Kafka({"bootstrap.servers": "nowhere:9", "group.id": "g"}, "t")
    kept, gone = (Assignment("t", number, OffsetTracker()) for number in range(2))
    reads = [(kept, 3), (gone, 8), (gone, 9), (kept, 4), (kept, 5)]
    deliveries = [deliveries_of([Message("t", value=b"")], at, to, KafkaDelivery)[0] for to, at in reads]
    for each in (kept, gone):
        each.tracker.assign(each.partition)
    for to, at in reads:
        to.tracker.emitted(to.partition, at)
    assert source.held(deliveries) == deliveries
    gone.is_held = False
    assert source.held(deliveries) == [deliveries[0], *deliveries[3:]]
    source.ack(deliveries)
    assert (kept.acked, gone.acked) == (3, 0)
    assert (kept.tracker.committable(0), gone.tracker.committable(1)) == (6, 8)
