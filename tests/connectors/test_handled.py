"""`run_once`: a handler of a consumer, tested without a broker."""

import json
import threading

import pytest

from acker import ArgumentTypeError
from acker.connectors import Outgoing, Reject
from acker.testing.connectors import Handled, MemoryBroker, run_once


def work(message):
    if message.value == b"bad":
        raise Reject("bad")
    if message.value == b"slow" and message.attempt < 3:
        raise LookupError("not yet")


async def work_async(message):
    work(message)


@pytest.mark.parametrize("handler", [work, work_async])
def test_each_body_has_its_outcome_its_attempts_and_its_reason(handler):
    handled = run_once(handler, [b"good", b"bad", b"slow", b"bad"], threads=2)
    assert handled.outcomes == ["acked", "dead letter", "acked", "dead letter"]
    assert handled.attempts == [1, 1, 3, 1]
    reason = "failed: Reject: bad (attempt 1)"
    assert handled.reasons == [None, reason, None, reason]
    assert [letter.headers["acker-key"] for letter in handled.letters] == ["memory/1", "memory/3"]


def test_bodies_may_have_headers_and_options_go_to_the_consumer():
    seen = []
    handled = run_once(
        lambda message: seen.append((message.value, dict(message.headers))),
        [Outgoing(b"[1]", headers={"n": 1}), b"{"],
        decode=json.loads,
    )
    assert seen == [([1], {"n": 1})] and handled.attempts == [1, 1]
    assert "cannot be decoded" in handled.reasons[1]


def test_children_count_for_the_outcome():
    def handle(message):
        threading.Thread(target=message.child().fail, args=("the child",)).start()

    assert run_once(handle, [b"a"], attempts_max=1).reasons == ["failed: the child (attempt 1)"]


def test_no_bodies_are_no_outcomes():
    assert run_once(work, []) == Handled()


@pytest.mark.parametrize(
    ("bodies", "text"),
    [
        (b"abc", r"bodies: expected a list of bodies, got one bytes: write \[body\]"),
        ("abc", r"bodies: expected a list of bodies, got one str: write \[body.encode\(\)\]"),
        ([b"a", "abc"], r"got str: write body.encode\(\)"),
        ([{"n": 1}], r"got dict: write json.dumps\(body\).encode\(\)"),
        ([Outgoing(None)], "got NoneType: write json.dumps"),
    ],
)
def test_bodies_that_no_broker_has_are_refused(bodies, text):
    with pytest.raises(ArgumentTypeError, match=text):
        run_once(work, bodies)


def test_a_broker_in_memory_takes_a_list_of_bytes_or_nothing():
    broker = MemoryBroker()
    for values in (b"abc", "abc", [b"a", "b"]):
        with pytest.raises(ArgumentTypeError, match="write"):
            broker.publish(values)
    assert broker.left() == 0


def test_the_end_of_the_program_is_raised():
    def handle(message):
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        run_once(handle, [b"a"], drain_secs=0.1)
