"""Scenarios in which messages fail: retries, dead letters, time-outs and lost handles."""

from __future__ import annotations

import gc
from collections import Counter
from typing import Any, Final

from acker.connectors.handles import Message
from acker.testing.connectors.consumer_run import ConsumerRun, ack_all, consume_rest
from acker.testing.connectors.harness import NotApplicable, SourceHarness
from acker.testing.connectors.publisher import MemoryPublisher
from acker.testing.connectors.scenarios.scenario import Scenario, numbered


def a_failed_message_comes_again(harness: SourceHarness) -> None:
    """With a higher attempt, as often as it fails."""
    harness.publish([b"bad", b"good"])
    with ConsumerRun(harness) as run:
        first, good = run.wait_for([b"bad", b"good"])
        good.ack()
        first.fail("not yet")
        second = run.wait_again(first)
        assert second.attempt > first.attempt, f"attempts {first.attempt}, {second.attempt}"
        assert not first.alive
        with_child = second.child()
        second.ack()
        with_child.fail("a child fails its tree")
        third = run.wait_again(second)
        assert third.attempt > second.attempt
        assert harness.left() >= 1
        third.ack()
        run.wait_empty()


def many_messages_fail_now_and_then(harness: SourceHarness) -> None:
    """Every tenth first attempt fails, on four threads: each message is done in the end."""
    values = numbered(harness.many)
    harness.publish(values)
    failed: set[bytes] = set()
    finished: set[bytes] = set()

    def work(message: Message[bytes]) -> None:
        with message:
            if message.value.endswith(b"3") and message.value not in failed:
                failed.add(message.value)
                raise ValueError("not yet")
            finished.add(message.value)

    with ConsumerRun(harness, work, threads=4, open_max=50) as run:
        run.wait(lambda: finished == set(values), "all messages are finished")
        run.wait_empty()
        assert len(failed) == len(values) // 10


def no_commit_passes_a_failed_message(harness: SourceHarness) -> None:
    """One message waits for its retry, all others are done, and the consumer ends: it is not lost."""
    values = numbered(8)
    harness.publish(values)
    # Short enough for brokers that delay the retry themselves.
    with ConsumerRun(harness, backoff_secs=2.0, backoff_secs_max=2.0, drain_secs=0.05) as run:
        messages = run.wait_for(values)
        messages[2].fail("poison")
        ack_all([message for message in messages if message.value != values[2]])
        run.wait(lambda: len(run.source.acked) == 7, "the other messages are acked")
        run.wait_polls(2)
        assert harness.left() >= 1, "the failed message was acked"
    assert harness.left() >= 1, "the failed message was acked at the end"
    assert values[2] in consume_rest(harness)


def replays_go_on_at_the_limit_of_open_messages(harness: SourceHarness) -> None:
    """Every first attempt fails and `open_max` is small: all messages are done in the end."""
    values = numbered(12)
    harness.publish(values)
    failed: Counter[bytes] = Counter()

    def work(message: Message[bytes]) -> None:
        if message.value != values[0] and failed[message.value] < 2:
            failed[message.value] += 1
            message.fail("not yet")
        elif message.value != values[0]:
            message.ack()

    with ConsumerRun(harness, work, open_max=3) as run:
        # One message stays open all the time.
        (held,) = run.wait_for([values[0]])
        run.wait(lambda: len({each.value for each in run.source.acked}) == 11, "the other messages are acked")
        assert held.alive
        held.ack()
        run.wait_empty()


def a_dead_letter_is_confirmed_before_the_ack(harness: SourceHarness) -> None:
    """As long as nobody has confirmed it, the broker keeps the message; a refused one is written again."""
    harness.publish([b"poison", b"good"], {"kind": "letter"} if harness.keeps_headers else None)
    publisher = MemoryPublisher()
    publisher.block()
    publisher.refuse(2)

    def work(message: Message[bytes]) -> None:
        if message.value == b"poison":
            message.fail("cannot be digested")
        else:
            message.ack()

    try:
        with ConsumerRun(harness, work, attempts_max=3, dead_letters=publisher) as run:
            run.wait(lambda: publisher.calls["publish"], "the dead letter is written")
            run.wait(lambda: len(run.source.acked) == 1, "the other message is acked")
            run.wait_polls(2)
            assert harness.left() >= 1, "it was acked before its dead letter was confirmed"
            publisher.unblock()
            run.wait_empty()
    finally:
        publisher.unblock()
    letters = [each for each in publisher.published if each.value == b"poison"]
    assert len(letters) == 1, f"{len(letters)} dead letters"
    headers = letters[0].headers
    assert "cannot be digested" in str(headers["acker-reason"])
    assert str(headers["acker-attempts"]) == "3", headers["acker-attempts"]
    assert headers["acker-key"]
    assert headers["acker-source"]
    assert not harness.keeps_headers or headers["kind"] in ("letter", b"letter")


def the_brokers_own_place_keeps_dead_letters(harness: SourceHarness) -> None:
    """`dead_letters="broker"` moves them there."""
    source = harness.source()
    if not source.can_give_up:
        raise NotApplicable("the broker has no place for dead letters of its own")
    harness.needs("given_up")
    harness.publish([b"poison", b"good"])

    def work(message: Message[bytes]) -> None:
        if message.value == b"poison":
            message.fail("cannot be digested")
        else:
            message.ack()

    with ConsumerRun(harness, work, source=source, attempts_max=2, dead_letters="broker") as run:
        run.wait_empty()
        run.wait(lambda: list(harness.given_up()) == [b"poison"], "the dead letter is in its place")
        assert Counter(run.values())[b"poison"] == 2


def a_message_that_cannot_be_decoded_goes_to_the_dead_letters(harness: SourceHarness) -> None:
    """At once, with the reason; the messages behind it are not blocked."""
    harness.publish([b"7", b"seven", b"8"])
    publisher = MemoryPublisher()
    with ConsumerRun(harness, lambda message: message.ack(), decode=int, dead_letters=publisher) as run:
        run.wait(lambda: {7, 8} <= {message.value for message in run.messages}, "the others arrive")
        run.wait_empty()
    (letter,) = publisher.published
    assert letter.value == b"seven"
    assert "invalid literal" in str(letter.headers["acker-reason"])


def a_tree_that_times_out_comes_again(harness: SourceHarness) -> None:
    """Its late ack changes nothing for the new attempt."""
    harness.publish([b"slow"])
    with ConsumerRun(harness, timeout_secs=0.5) as run:
        (first,) = run.wait_for([b"slow"])
        second = run.wait_again(first)
        assert not first.alive
        assert second.attempt > first.attempt
        first.ack()
        run.wait_polls(2)
        assert not run.source.acked, "the late ack of the first attempt acked the second one"
        assert harness.left() >= 1
    # Whoever waits no longer than the time-out can still finish it.
    assert consume_rest(harness) == {b"slow"}


def a_lost_handle_fails_its_tree(harness: SourceHarness) -> None:
    """A child that is forgotten without an end: the message comes again, long before its time-out."""
    harness.publish([b"forgotten"])

    def forget(message: Message[bytes]) -> None:
        child: Any = message.child()
        message.ack()
        del child
        gc.collect()
        forgotten.append(message)

    forgotten: list[Message[bytes]] = []
    with ConsumerRun(harness, lambda message: None if forgotten else forget(message)) as run:
        run.wait(lambda: forgotten, "the message arrives")
        # Not `wait_for`: it returns the latest message, and the next attempt may have come already.
        second = run.wait_again(forgotten[0])
        assert second.attempt > forgotten[0].attempt
        second.ack()
        run.wait_empty()


SCENARIOS: Final[tuple[Scenario, ...]] = (
    a_failed_message_comes_again,
    many_messages_fail_now_and_then,
    no_commit_passes_a_failed_message,
    replays_go_on_at_the_limit_of_open_messages,
    a_dead_letter_is_confirmed_before_the_ack,
    the_brokers_own_place_keeps_dead_letters,
    a_message_that_cannot_be_decoded_goes_to_the_dead_letters,
    a_tree_that_times_out_comes_again,
    a_lost_handle_fails_its_tree,
)
