"""Scenarios in which connections, assignments and leases are lost while messages are open."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from acker.connectors.handles import ConsumedMessage as Message
from acker.testing.connectors.consumer_run import ConsumerRun, ack_all, consume_rest
from acker.testing.connectors.harness import NotApplicable, SourceHarness
from acker.testing.connectors.scenarios.registry import Scenario, numbered


def outcomes_of_a_lost_connection_settle_no_other_message(harness: SourceHarness) -> None:
    """Acks of old deliveries on a new connection, where numbers may begin anew: each message needs its own work."""
    harness.needs("cut")
    values = numbered(6)
    harness.publish(values)
    with ConsumerRun(harness, drain_secs=0.05) as run:
        old = run.wait_for(values)
        ack_all(old[:2])
        run.wait(lambda: len(run.source.acked) == 2, "two messages are acked")
        run.wait_polls(3)
        harness.cut()
        if not harness.is_stateless:
            run.wait(lambda: run.source.lost, "the source notices the lost connection")
            run.wait(lambda: run.source.calls["open"] > 1, "the source connects again")
        run.wait_polls(3)
        # One ends now. It is acked, if its claim is as good as before, or it comes again. The others are open.
        old[2].ack()
        run.wait_polls(3)
        assert harness.left() >= 3, "a message was acked that is open"
    rest = consume_rest(harness)
    assert set(values[3:]) <= rest, "an outcome of the old connection has acked another message"


def work_goes_on_after_a_lost_connection(harness: SourceHarness) -> None:
    """The connection breaks again and again in the middle of open trees: nothing is lost."""
    harness.needs("cut")
    values = numbered(300)
    harness.publish(values)
    finished: set[bytes] = set()

    def work(message: Message) -> None:
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

    def leaf(message: Message) -> None:
        with message:
            finished.add(message.value)

    with ThreadPoolExecutor(2) as pool:

        def work(message: Message) -> None:
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
    """What ends in time is acked once; later outcomes settle nothing, and what was open comes again."""
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
        run.wait_polls(3)
        assert harness.left() >= 3, "a late outcome was acked on a new assignment"
        ack_all(again)
        if not harness.is_log:
            run.wait_empty()
    consume_rest(harness)


def leases_are_renewed_while_messages_are_open(harness: SourceHarness) -> None:
    """Also while the limit of open messages is reached: nobody else gets them."""
    if harness.source().lease_secs is None:
        raise NotApplicable("the broker leaves messages with a consumer as long as it is connected")
    values = numbered(6)
    harness.publish(values)
    with ConsumerRun(harness, open_max=2) as run:
        run.wait(lambda: len(run.messages) == 2, "the limit of open messages is reached")
        held = list(run.messages)
        others: list[bytes] = []

        def take(message: Message) -> None:
            others.append(message.value)
            message.ack()

        with ConsumerRun(harness, take) as second:

            def is_old() -> bool:
                # Three renewals a lease: these messages are held for more than two leases.
                deliveries = [each for each in run.source.delivered if each.value in {held[0].value, held[1].value}]
                return all(run.source.extended[delivery] >= 7 for delivery in deliveries)

            run.wait(is_old, "the leases are renewed")
            second.wait_polls(3)
        taken = {message.value for message in held} & set(others)
        assert not taken, f"{len(taken)} open messages were given to another consumer"
        assert all(message.alive for message in held)
        assert [message.value for message in run.messages] == [message.value for message in held]
        run.ack_rest(0)


def outcomes_of_a_lost_lease_are_dropped(harness: SourceHarness) -> None:
    """The broker has given the messages away: they are not alive any more, and come again."""
    harness.needs("take_back")
    values = numbered(3)
    harness.publish(values)
    with ConsumerRun(harness) as run:
        old = run.wait_for(values)
        harness.take_back()
        new = [run.wait_again(message) for message in old]
        run.wait(lambda: not any(message.alive for message in old), "the old ones are forgotten")
        ack_all(old)
        run.wait_polls(3)
        assert harness.left() == 3, "an outcome of a lost lease was acked"
        ack_all(new)
        run.wait_empty()


SCENARIOS: Final[tuple[Scenario, ...]] = (
    outcomes_of_a_lost_connection_settle_no_other_message,
    work_goes_on_after_a_lost_connection,
    nothing_is_lost_when_the_broker_restarts,
    acks_wait_while_the_network_stands_still,
    two_consumers_share_a_queue,
    a_rebalance_commits_what_is_done_and_forgets_the_rest,
    leases_are_renewed_while_messages_are_open,
    outcomes_of_a_lost_lease_are_dropped,
)
