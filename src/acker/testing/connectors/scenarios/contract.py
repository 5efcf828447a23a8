"""Scenarios that call a source as its contract allows, without a consumer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from acker.connectors.source import Delivery, Source
from acker.errors import AckerError, ConnectionLostError, SourceError
from acker.testing.connectors.consumer_run import ConsumerRun, consume_rest, wait_until
from acker.testing.connectors.harness import NotApplicable, SourceHarness
from acker.testing.connectors.scenarios.scenario import Scenario, numbered
from acker.testing.connectors.watched import WatchedSource


class _NoEvents:
    """A consumer that holds deliveries and does nothing with them."""

    def finish(self, concerned: Callable[[Delivery], bool], secs: float) -> None:
        """Finish nothing."""

    def revoked(self, concerned: Callable[[Delivery], bool]) -> None:
        """Forget nothing."""


@contextmanager
def _opened(harness: SourceHarness, limit: int = 100) -> Iterator[WatchedSource]:
    source = WatchedSource(harness.source())
    source.open(_NoEvents(), limit)
    try:
        yield source
    finally:
        source.close()
    assert not source.violations, "; ".join(source.violations)


def _poll(harness: SourceHarness, source: Source, count: int) -> list[Delivery]:
    """Poll until so many messages have come."""
    found: list[Delivery] = []

    def enough() -> bool:
        found.extend(source.poll(count - len(found), 0.05))
        return len(found) >= count

    wait_until(enough, f"{count} messages are delivered", harness.patience_secs)
    return found


def a_source_opens_and_closes_in_any_order(harness: SourceHarness) -> None:
    """`close` raises nothing before `open`, twice, and at any time; the object can start anew."""
    source = harness.source()
    source.close()
    for _ in range(2):
        source.open(_NoEvents(), 10)
        source.poll(0, 0.0)
        source.close()
        source.close()
    source.wake()


def a_poll_returns_no_more_than_its_limit(harness: SourceHarness) -> None:
    """Nor anything with a limit of 0, as while too many messages are open; the rest comes later."""
    values = numbered(7)
    harness.publish(values)
    with _opened(harness) as source:
        assert not source.poll(0, 0.0)
        deliveries = [_poll(harness, source, 1)[0] for _ in range(3)]
        for _ in range(3):
            assert not source.poll(0, 0.0)
        deliveries += _poll(harness, source, 4)
        assert {delivery.value for delivery in deliveries} == set(values)
        source.ack(deliveries)
    wait_until(lambda: harness.left() == 0, "all messages are acked", harness.patience_secs)


def a_wait_for_messages_can_be_ended(harness: SourceHarness) -> None:
    """Any thread may call `wake`, at any time; a poll ends then, or after `wait_secs_max` at the latest."""
    source = harness.source()
    source.wake()
    ended: list[object] = []

    def poll() -> None:
        try:
            source.open(_NoEvents(), 10)
            for _ in range(3):
                assert not source.poll(10, source.wait_secs_max), "a message came from nowhere"
            source.close()
            ended.append(None)
        except BaseException as error:  # noqa: BLE001 - raised below
            ended.append(error)

    def is_over() -> bool:
        source.wake()
        return bool(ended)

    # Not a pool: a source that never returns must not keep the process alive.
    threading.Thread(target=poll, daemon=True).start()
    wait_until(is_over, "poll returns", harness.patience_secs)
    if isinstance(ended[0], BaseException):
        raise ended[0]
    source.wake()


def what_a_closed_source_held_is_delivered_again(harness: SourceHarness) -> None:
    """An acked message is gone, and the others come to the next one, counted where the broker counts."""
    values = numbered(4)
    harness.publish(values)
    with _opened(harness) as source:
        deliveries = _poll(harness, source, 4)
        first = next(each for each in deliveries if each.value == values[0])
        assert all(source.holds(delivery) for delivery in deliveries)
        source.ack([first])
        source.release([each for each in deliveries if each is not first])
    wait_until(lambda: harness.left() == 3, "the acked message is gone", harness.patience_secs)
    with _opened(harness) as source:
        again = _poll(harness, source, 3)
        assert {delivery.value for delivery in again} == set(values[1:])
        if harness.counts_attempts and harness.counts_releases:
            assert all(delivery.attempt > 1 for delivery in again), [delivery.attempt for delivery in again]
        source.ack(again)
    wait_until(lambda: harness.left() == 0, "all messages are acked", harness.patience_secs)


def a_commit_never_passes_an_open_message(harness: SourceHarness) -> None:
    """Acks in reverse order, and the first message never: it must come again."""
    values = numbered(6)
    harness.publish(values)
    with _opened(harness) as source:
        deliveries = sorted(_poll(harness, source, 6), key=lambda each: values.index(each.value))
        for delivery in reversed(deliveries[1:]):
            source.ack([delivery])
            source.poll(0, 0.0)
            assert harness.left() >= 1
    assert harness.left() >= 1, "an open message was committed"
    assert values[0] in consume_rest(harness)


def a_message_of_a_standing_consumer_goes_to_another(harness: SourceHarness) -> None:
    """A process that was paused, or hangs: another consumer gets its messages after a while."""
    if harness.takes_over_secs is None:
        raise NotApplicable("the broker leaves messages with a consumer that stands still")
    values = numbered(3)
    harness.publish(values)
    standing = harness.source()
    standing.open(_NoEvents(), 10)
    try:
        _poll(harness, standing, 3)
        with ConsumerRun(harness, lambda message: message.ack()) as run:
            wait_until(
                lambda: set(values) <= set(run.values()),
                "another consumer gets the messages",
                harness.patience_secs + harness.takes_over_secs,
            )
            run.wait_empty()
    finally:
        standing.close()


def a_mistake_ends_the_consumer_with_an_error(harness: SourceHarness) -> None:
    """An unknown queue or wrong credentials are a `SourceError` where messages are taken, without the password."""
    for source in harness.mistakes():
        try:
            with ConsumerRun(harness, source=source, drain_secs=0.05) as run:
                run.wait(lambda: False, "the mistake is reported")
        except SourceError as error:
            assert str(error), f"{source.name}: an error without a text"
            assert harness.secret is None or harness.secret not in str(error), "the error names the password"
        else:
            raise AssertionError(f"{source.name}: no error")


def no_secret_is_shown(harness: SourceHarness) -> None:
    """Names and reprs of sources and publishers do not show the password."""
    if harness.secret is None:
        raise NotApplicable(f"{type(harness).__name__} names no secret")
    shown = [harness.source()]
    texts = [text for each in shown for text in (each.name, repr(each), str(each))]
    try:
        publisher = harness.publisher()
    except NotApplicable:
        pass
    else:
        texts += [publisher.name, repr(publisher), str(publisher)]
    for text in texts:
        assert harness.secret not in text, "the password is shown in a name or repr"


def a_broker_out_of_reach_is_a_lost_connection(harness: SourceHarness) -> None:
    """`open` raises `ConnectionLostError`, without the password, and works as soon as the broker is back."""
    harness.needs("unreachable")
    source = harness.source()
    with harness.unreachable():
        try:
            source.open(_NoEvents(), 10)
            # Some clients connect within the first calls only.
            for _ in range(100):
                source.poll(10, 0.05)
        except ConnectionLostError as error:
            assert harness.secret is None or harness.secret not in str(error), "the error names the password"
        except AckerError as error:
            raise AssertionError(f"expected ConnectionLostError, got {error!r}") from error
        else:
            raise AssertionError("the source reports no lost connection")
        finally:
            source.close()
    harness.publish(numbered(2))
    assert consume_rest(harness) == set(numbered(2))


SCENARIOS: Final[tuple[Scenario, ...]] = (
    a_source_opens_and_closes_in_any_order,
    a_poll_returns_no_more_than_its_limit,
    a_wait_for_messages_can_be_ended,
    what_a_closed_source_held_is_delivered_again,
    a_commit_never_passes_an_open_message,
    a_message_of_a_standing_consumer_goes_to_another,
    a_mistake_ends_the_consumer_with_an_error,
    no_secret_is_shown,
    a_broker_out_of_reach_is_a_lost_connection,
)
