"""Scenarios in which everything ends well: what is acked, when, and how much is open."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from acker.connectors.consumer import Consumer
from acker.connectors.handles import Message
from acker.testing.connectors.consumer_run import ConsumerRun, ack_all, consume_rest, wait_until
from acker.testing.connectors.harness import NotApplicable, SourceHarness
from acker.testing.connectors.scenarios.scenario import Scenario, numbered
from acker.testing.connectors.watched import WatchedSource


def bodies_arrive_unchanged(harness: SourceHarness) -> None:
    """Empty, binary and large bodies."""
    bodies = list(harness.bodies)
    harness.publish(bodies)
    with ConsumerRun(harness) as run:
        ack_all(run.wait_for(bodies))
        run.wait_empty()


def headers_arrive(harness: SourceHarness) -> None:
    """With their values, as text or bytes."""
    if not harness.keeps_headers:
        raise NotApplicable("the broker has no headers")
    harness.publish([b"one"], {"kind": "letter", "number": "7"})
    with ConsumerRun(harness) as run:
        (message,) = run.wait_for([b"one"])
        headers = {key: text.decode() if isinstance(text, bytes) else text for key, text in message.headers.items()}
        assert {key: headers.get(key) for key in ("kind", "number")} == {"kind": "letter", "number": "7"}
        message.ack()
        run.wait_empty()


def messages_from_before_and_after_the_start_arrive(harness: SourceHarness) -> None:
    """A consumer that waits gets what is published later."""
    early, late = numbered(5), numbered(5, 5)
    harness.publish(early)
    with ConsumerRun(harness, lambda message: message.ack()) as run:
        run.wait_for(early)
        run.wait_empty()
        harness.publish(late)
        run.wait_for([*early, *late])
        run.wait_empty()


def a_message_is_acked_when_its_last_descendant_is_done(harness: SourceHarness) -> None:
    """Not before: one grandchild, of another thread, keeps it with the broker."""
    values = numbered(5)
    harness.publish(values)
    grandchildren: list[Any] = []

    def work(message: Message[bytes]) -> None:
        with message:
            pool.submit(branch, message.child(), message.value)

    def branch(child: Any, value: bytes) -> None:
        with child:
            grandchild = child.child()
            if value == values[0]:
                grandchildren.append(grandchild)
            else:
                pool.submit(grandchild.ack)

    with ThreadPoolExecutor(2) as pool, ConsumerRun(harness, work) as run:
        run.wait_for(values)
        run.wait(lambda: len(run.source.acked) == 4, "the other messages are acked")
        run.wait_polls(2)
        assert values[0] not in {delivery.value for delivery in run.source.acked}, "it was acked early"
        assert harness.left() >= 1, "the broker has no open message left"
        assert run.messages[0].alive
        grandchildren.pop().ack()
        run.wait_empty()


def messages_end_in_any_order(harness: SourceHarness) -> None:
    """The newest first; nothing is left in the end, and nothing is acked for another one."""
    values = numbered(20)
    harness.publish(values)
    with ConsumerRun(harness) as run:
        messages = run.wait_for(values)
        for done, message in enumerate(reversed(messages), 1):
            left = harness.left()
            assert left >= len(values) - done + 1, f"{left} messages left, {len(values) - done + 1} are open"
            message.ack()
        run.wait_empty()


def an_open_message_survives_the_end_of_its_consumer(harness: SourceHarness) -> None:
    """The messages before and after it are done; the next consumer gets it."""
    values = numbered(9)
    harness.publish(values)
    with ConsumerRun(harness, drain_secs=0.05) as run:
        messages = run.wait_for(values)
        ack_all([message for message in messages if message.value != values[4]])
        run.wait(lambda: len(run.source.acked) == 8, "the other messages are acked")
    assert harness.left() >= 1, "an open message was acked"
    rest = consume_rest(harness)
    assert values[4] in rest
    assert harness.is_log or rest == {values[4]}, f"acked messages came again: {sorted(rest)}"


def many_messages_pass_through_several_threads(harness: SourceHarness) -> None:
    """Messages of three descendants each, four threads: each comes, none is acked before it is done."""
    values = numbered(harness.many)
    finished: set[bytes] = set()
    looked = threading.Event()

    def leaf(child: Any, value: bytes) -> None:
        with child:
            grandchild = child.child()
        if value == values[0]:
            looked.wait()
        finished.add(value)  # before the last ack of its tree
        grandchild.ack()

    def work(message: Message[bytes]) -> None:
        with message:
            message.child().ack()
            pool.submit(leaf, message.child(), message.value)

    def look() -> None:
        left = harness.left()
        assert left >= len(values) - len(finished), f"{left} left, and only {len(finished)} were finished"

    harness.publish(values[: len(values) // 2])
    with ThreadPoolExecutor(4) as pool, ConsumerRun(harness, work, threads=4, open_max=100) as run:
        try:
            harness.publish(values[len(values) // 2 :])
            for _ in range(5):
                look()
            run.wait(lambda: len(finished) >= len(values) - 1, "all messages but one are finished")
            look()
        finally:
            looked.set()
        run.wait(lambda: len(finished) == len(values), "all messages are finished")
        run.wait_empty()
    assert harness.left() == 0


def open_messages_are_bounded(harness: SourceHarness) -> None:
    """`open_max` of them, although many wait; when these end, the rest comes."""
    values = numbered(60)
    harness.publish(values)
    with ConsumerRun(harness, open_max=7) as run:
        run.wait(lambda: len(run.messages) >= 7, "the first messages come")
        run.wait_polls(5)
        assert len(run.messages) == 7, f"{len(run.messages)} messages are open, 7 may be"
        assert len(run.consumer) == 7
        done = 0
        while len(set(run.values()[:done])) < len(values):
            run.wait(lambda: len(run.messages) > done, "the next message comes")  # noqa: B023 - called at once
            run.messages[done].ack()
            done += 1
        run.wait_empty()


def a_close_waits_for_open_messages(harness: SourceHarness) -> None:
    """Their acks are sent; nothing new is handed out meanwhile."""
    values = numbered(3)
    harness.publish(values)
    with ConsumerRun(harness, open_max=3, drain_secs=harness.patience_secs) as run:
        messages = run.wait_for(values)
        closing = threading.Thread(target=run.consumer.close)
        closing.start()
        run.wait(lambda: run.consumer.stats().state == "draining", "the close begins")
        harness.publish([b"later"])
        ack_all(messages)
        closing.join(harness.patience_secs)
        assert not closing.is_alive(), "close does not return, although all messages have ended"
        assert b"later" not in run.values()
    wait_until(lambda: harness.left() == 1, "the acks of the end are sent", harness.patience_secs)
    assert b"later" in consume_rest(harness)


def a_close_gives_back_what_is_not_done(harness: SourceHarness) -> None:
    """After `drain_secs`; late outcomes change nothing."""
    values = numbered(4)
    harness.publish(values)
    with ConsumerRun(harness, drain_secs=0.05) as run:
        messages = run.wait_for(values)
        run.close()
        assert not any(message.alive for message in messages), "a message is alive after the end"
        ack_all(messages)
    assert harness.left() == 4, "outcomes after the end were acked"
    assert consume_rest(harness) == set(values)


def an_event_loop_consumes_too(harness: SourceHarness) -> None:
    """`aiter`, and `spawn` in `spawn`: the ack waits for the tasks."""
    values = numbered(30)
    harness.publish(values)
    finished: set[bytes] = set()
    source = WatchedSource(harness.source())

    async def leaf(value: bytes) -> None:
        await asyncio.sleep(0)
        finished.add(value)

    async def main(consumer: Consumer[bytes]) -> None:
        taken: set[bytes] = set()
        async for message in consumer.aiter():
            taken.add(message.value)

            async def branch(message: Message[bytes] = message) -> None:
                message.spawn(leaf(message.value))

            with message:
                message.spawn(branch())
            if len(taken) == len(values):
                break
        while await asyncio.to_thread(harness.left):
            await asyncio.sleep(0.02)

    consumer = Consumer(source)
    with consumer:
        asyncio.run(asyncio.wait_for(main(consumer), harness.patience_secs))
    assert finished == set(values)
    assert not source.violations, "; ".join(source.violations)


SCENARIOS: Final[tuple[Scenario, ...]] = (
    bodies_arrive_unchanged,
    headers_arrive,
    messages_from_before_and_after_the_start_arrive,
    a_message_is_acked_when_its_last_descendant_is_done,
    messages_end_in_any_order,
    an_open_message_survives_the_end_of_its_consumer,
    many_messages_pass_through_several_threads,
    open_messages_are_bounded,
    a_close_waits_for_open_messages,
    a_close_gives_back_what_is_not_done,
    an_event_loop_consumes_too,
)
