"""Scenarios in which connections, assignments and leases are lost while messages are open."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from acker.connectors.handles import Message
from acker.testing.connectors.consumer_run import ConsumerRun, ack_all, consume_rest, wait_until
from acker.testing.connectors.harness import NotApplicable, SourceHarness
from acker.testing.connectors.publisher import MemoryPublisher
from acker.testing.connectors.scenarios.scenario import Scenario, numbered


def outcomes_of_a_lost_connection_settle_no_other_message(harness: SourceHarness) -> None:
    """Acks of old deliveries on a new connection, where numbers may begin anew: each message needs its own work."""
    harness.needs("cut")
    values = numbered(6)
    harness.publish(values)
    with ConsumerRun(harness, drain_secs=0.05) as run:
        old = run.wait_for(values)
        ack_all(old[:2])
        run.wait(lambda: len(run.source.acked) == 2, "two messages are acked")
        run.wait_polls(2)
        harness.cut()
        if not harness.is_stateless:
            run.wait(lambda: run.source.lost, "the source notices the lost connection")
            run.wait(lambda: run.source.calls["open"] > 1, "the source connects again")
        run.wait_polls(2)
        # One ends now. It is acked, if its claim is as good as before, or it comes again. The others are open.
        old[2].ack()
        run.wait_polls(2)
        assert harness.left() >= 3, "a message was acked that is open"
    rest = consume_rest(harness)
    assert set(values[3:]) <= rest, "an outcome of the old connection has acked another message"


def work_goes_on_after_a_lost_connection(harness: SourceHarness) -> None:
    """The connection breaks again and again, while messages are open, fail and wait for a retry: nothing is lost."""
    harness.needs("cut")
    values = numbered(300)
    harness.publish(values)
    finished: set[bytes] = set()
    failed: set[bytes] = set()

    def work(message: Message[bytes]) -> None:
        if message.value not in failed and message.value.endswith(b"7"):
            failed.add(message.value)
            message.fail("not yet")
        else:
            finished.add(message.value)
            message.ack()

    with ConsumerRun(harness, work, threads=2, open_max=20) as run:
        for cut in range(1, 4):
            run.wait(lambda: len(finished) >= 60 * cut, f"{60 * cut} messages are finished")  # noqa: B023 - now
            harness.cut()
        run.wait(lambda: finished == set(values), "all messages are finished")
        run.wait_empty()


def nothing_is_lost_when_the_broker_restarts(harness: SourceHarness) -> None:
    """With messages open, finished while it was away, and waiting."""
    harness.needs("restart")
    values = numbered(40)
    harness.publish(values)
    with ConsumerRun(harness, open_max=10) as run:
        run.wait(lambda: len(run.messages) == 10, "the first messages come")
        restart = threading.Thread(target=harness.restart)
        restart.start()
        ack_all(run.messages[:5])
        restart.join()
        if not harness.is_stateless:
            run.wait(lambda: run.source.calls["open"] > 1, "the source connects again")
        run.ack_rest(5)
        assert set(run.values()) == set(values)


def acks_wait_while_the_network_stands_still(harness: SourceHarness) -> None:
    """No byte passes, and messages end meanwhile: all are acked when the network works again."""
    harness.needs("stalled")
    values = numbered(10)
    harness.publish(values)
    with ConsumerRun(harness) as run:
        messages = run.wait_for(values)
        with harness.stalled():
            ack_all(messages)
        # A client may have taken the silence for a lost connection: then the messages come again.
        run.ack_rest(len(values))


def two_consumers_share_a_queue(harness: SourceHarness) -> None:
    """One joins, and one leaves in the middle of its work: nothing is lost."""
    values = numbered(harness.many)
    harness.publish(values[: len(values) // 2])
    finished: set[bytes] = set()

    def leaf(message: Message[bytes]) -> None:
        with message:
            finished.add(message.value)

    with ThreadPoolExecutor(2) as pool:

        def work(message: Message[bytes]) -> None:
            pool.submit(leaf, message)

        with ConsumerRun(harness, work, open_max=10) as one:
            one.wait(lambda: len(finished) >= 20, "the first messages are finished")
            with ConsumerRun(harness, work, open_max=10, drain_secs=0.05) as two:
                two.wait_polls(5)
                harness.publish(values[len(values) // 2 :])
                two.wait(lambda: len(finished) >= len(values) // 2, "both have worked")
            one.wait(lambda: finished == set(values), "all messages are finished")
            one.wait_empty()


def a_rebalance_commits_what_is_done_and_forgets_the_rest(harness: SourceHarness) -> None:
    """Messages that end in time are acked once; later outcomes settle nothing, and open messages come again."""
    harness.needs("rebalance")
    values = numbered(6)
    harness.publish(values)
    with ConsumerRun(harness) as run:
        messages = run.wait_for(values)
        ack_all(messages[:3])
        harness.rebalance()
        run.wait(lambda: not any(message.alive for message in messages), "the messages are forgotten")
        again = [run.wait_again(message) for message in messages[3:]]
        ack_all(messages[3:])
        run.wait_polls(2)
        assert harness.left() >= 3, "a late outcome was acked on a new assignment"
        ack_all(again)
        if not harness.is_log:
            run.wait_empty()
    consume_rest(harness)


def leases_are_renewed_while_messages_are_open(harness: SourceHarness) -> None:
    """Also while the limit of open messages is reached: nobody else gets them."""
    _needs_leases(harness)
    values = numbered(6)
    harness.publish(values)
    with ConsumerRun(harness, open_max=2) as run:
        run.wait(lambda: len(run.messages) == 2, "the limit of open messages is reached")
        held = list(run.messages)
        _hold_for_leases(run, held)
        assert all(message.alive for message in held)
        assert run.values() == [message.value for message in held]
        run.ack_rest(0)


def leases_are_renewed_while_messages_wait_for_a_retry(harness: SourceHarness) -> None:
    """The consumer keeps a message that has failed, and nobody else gets it before its back-off is over."""
    _needs_leases(harness)
    harness.publish([b"waits"])
    with ConsumerRun(harness, backoff_secs=300.0, backoff_secs_max=300.0, drain_secs=0.05) as run:
        (message,) = run.wait_for([b"waits"])
        message.fail("not yet")
        run.wait(lambda: run.source.retries, "the message waits for its retry")
        if any(run.source.retries):
            raise NotApplicable("the broker itself delays a retry")
        _hold_for_leases(run, [message])
    assert consume_rest(harness) == {b"waits"}


def leases_are_renewed_while_dead_letters_are_written(harness: SourceHarness) -> None:
    """A slow place for dead letters: nobody else gets the message meanwhile."""
    _needs_leases(harness)
    harness.publish([b"poison"])
    publisher = MemoryPublisher()
    publisher.block()
    try:
        with ConsumerRun(harness, attempts_max=1, dead_letters=publisher) as run:
            (message,) = run.wait_for([b"poison"])
            message.fail("cannot be digested")
            run.wait(lambda: publisher.calls["publish"], "the dead letter is written")
            _hold_for_leases(run, [message])
            publisher.unblock()
            run.wait_empty()
    finally:
        publisher.unblock()
    assert [letter.value for letter in publisher.published] == [b"poison"]


def leases_are_renewed_while_a_consumer_closes(harness: SourceHarness) -> None:
    """It waits for an open message for longer than a lease: nobody else gets it."""
    _needs_leases(harness)
    harness.publish([b"slow"])
    with ConsumerRun(harness, drain_secs=harness.patience_secs) as run:
        (message,) = run.wait_for([b"slow"])
        run.consumer.stop()
        _hold_for_leases(run, [message])
        assert message.alive
        message.ack()
        run.close()
    wait_until(lambda: harness.left() == 0, "the message is acked", harness.patience_secs)


def _hold_for_leases(run: ConsumerRun, held: Sequence[Message[bytes]]) -> None:
    """Let another consumer look for messages for longer than a lease; fail if one that is held is delivered again."""
    values = {message.value for message in held}
    others: list[bytes] = []

    def take(message: Message[bytes]) -> None:
        others.append(message.value)
        message.ack()

    with ConsumerRun(run.harness, take) as second:
        deliveries = [delivery for delivery in run.source.delivered if delivery.value in values]
        before = Counter({delivery: run.source.extended[delivery] for delivery in deliveries})
        # Three renewals a lease.
        run.wait(
            lambda: all(run.source.extended[each] - before[each] >= 5 for each in deliveries), "the leases are renewed"
        )
        second.wait_polls(2)
    taken = values & set(others)
    assert not taken, f"another consumer got {sorted(taken)}"
    again = [each for each in run.source.delivered if each.value in values and each not in deliveries]
    assert not again, f"{len(again)} messages that are held were delivered again"


def _needs_leases(harness: SourceHarness) -> None:
    if harness.source().lease_secs is None:
        raise NotApplicable("the broker leaves messages with a consumer as long as it is connected")


def outcomes_of_a_lost_lease_are_dropped(harness: SourceHarness) -> None:
    """The broker has given the messages away: they are not alive any more, and come again."""
    harness.needs("take_back")
    values = numbered(3)
    harness.publish(values)
    with ConsumerRun(harness) as run:
        old = run.wait_for(values)
        harness.take_back()
        for message in old:
            run.wait_again(message)
        run.wait(lambda: not any(message.alive for message in old), "the old ones are forgotten")
        ack_all(old)
        run.wait_polls(2)
        assert harness.left() == 3, "an outcome of a lost lease was acked"
        run.ack_rest(len(old))


SCENARIOS: Final[tuple[Scenario, ...]] = (
    outcomes_of_a_lost_connection_settle_no_other_message,
    work_goes_on_after_a_lost_connection,
    nothing_is_lost_when_the_broker_restarts,
    acks_wait_while_the_network_stands_still,
    two_consumers_share_a_queue,
    a_rebalance_commits_what_is_done_and_forgets_the_rest,
    leases_are_renewed_while_messages_are_open,
    leases_are_renewed_while_messages_wait_for_a_retry,
    leases_are_renewed_while_dead_letters_are_written,
    leases_are_renewed_while_a_consumer_closes,
    outcomes_of_a_lost_lease_are_dropped,
)
