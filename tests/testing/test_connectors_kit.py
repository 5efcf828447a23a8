"""The conformance kit: sources in memory pass it, and each source that breaks a promise fails a scenario."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from acker.errors import ConnectionLostError, PublishError, SourceError
from acker.testing.connectors import (
    SCENARIOS,
    MemoryBroker,
    MemoryPublisher,
    MemorySource,
    NotApplicable,
    SourceContract,
    SourceHarness,
)
from tests.marks import slow_after

SECRET = "s3cret"


class QueueHarness(SourceHarness):
    """A queue whose deliveries live as long as their connection."""

    patience_secs = 60.0
    secret = SECRET
    lag = False
    source_type: type[MemorySource] = MemorySource

    def __init__(self) -> None:
        self.broker = MemoryBroker(dead_letters=True)
        self.sources: list[MemorySource] = []

    def source(self):
        source = self.source_type(self.broker, lag=self.lag)
        self.sources.append(source)
        return source

    def publish(self, values, headers=None):
        self.broker.publish(values, headers)

    def left(self):
        return self.broker.left()

    def cut(self):
        self.broker.cut()

    def restart(self):
        self.broker.stop()
        self.broker.start()

    @contextlib.contextmanager
    def stalled(self) -> Iterator[None]:
        answers = [source.stall("any") for source in self.sources]
        try:
            yield
        finally:
            for answer in answers:
                answer.set()

    @contextlib.contextmanager
    def unreachable(self) -> Iterator[None]:
        self.broker.stop()
        try:
            yield
        finally:
            self.broker.start()

    def rebalance(self):
        for source in self.sources:
            source.rebalance(secs=0.1)

    def mistakes(self):
        source = MemorySource(self.broker)
        source.mistake()
        return [source]

    def given_up(self):
        return [message.value for message, _ in self.broker.given_up]

    def publisher(self):
        return MemoryPublisher(self.broker)

    def publisher_to_nowhere(self):
        publisher = MemoryPublisher()
        publisher.refuse(10**9)
        return publisher


class LagHarness(QueueHarness):
    """A queue whose acks are sent later."""

    lag = True


class SteadyClock:
    """The monotonic clock without the seconds in which this process stands still, such as beside too much work."""

    step_secs_max = 0.05

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.now_secs, self.last_secs = 0.0, time.monotonic()

    def __call__(self) -> float:
        with self.lock:
            now = time.monotonic()
            self.now_secs += min(now - self.last_secs, self.step_secs_max)
            self.last_secs = now
            return self.now_secs


class LeaseHarness(QueueHarness):
    """A queue with leases, as a stream of Redis."""

    takes_over_secs = 4.0
    delays = False

    def __init__(self) -> None:
        super().__init__()
        self.broker = MemoryBroker(lease_secs=1.0, delays=self.delays, clock=self.clock())

    def clock(self) -> Callable[[], float]:
        return SteadyClock()

    def take_back(self):
        self.broker.take_back()


class DelayHarness(LeaseHarness):
    """A queue with leases and delays, as in the cloud."""

    delays = True


class TestQueue(SourceContract):
    """The broker in memory keeps the promises, and nobody does to it what a real one would refuse."""

    harness_type: type[QueueHarness] = QueueHarness

    @pytest.fixture(autouse=True)
    def _kept(self):
        self.harnesses: list[QueueHarness] = []
        yield
        assert not [harness.broker.violations for harness in self.harnesses if harness.broker.violations]

    def harness(self):
        self.harnesses.append(self.harness_type())
        return self.harnesses[-1]


class TestQueueWithLag(TestQueue):
    harness_type = LagHarness


class TestQueueWithLeases(TestQueue):
    harness_type = LeaseHarness


@pytest.mark.slow
class TestQueueWithDelays(TestQueue):
    harness_type = DelayHarness


def test_each_scenario_has_a_name_and_a_promise():
    names = [scenario.__name__ for scenario in SCENARIOS]
    assert len(set(names)) == len(names) > 30
    assert all(scenario.__doc__ for scenario in SCENARIOS)


def test_a_harness_without_abilities_says_which_are_missing():
    class Bare(SourceHarness):
        def __init__(self):
            self.broker = MemoryBroker()

        def source(self):
            return MemorySource(self.broker)

        def publish(self, values, headers=None):
            self.broker.publish(values, headers)

        def left(self):
            return self.broker.left()

    reasons = {}
    for scenario in SCENARIOS:
        if scenario.__name__ in NEEDS:
            with pytest.raises(NotApplicable) as caught:
                scenario(Bare())
            reasons[scenario.__name__] = str(caught.value)
    assert reasons == {name: f"Bare has no {method}()" for name, method in NEEDS.items()}


NEEDS = {
    "a_mistake_ends_the_consumer_with_an_error": "mistakes",
    "a_broker_out_of_reach_is_a_lost_connection": "unreachable",
    "outcomes_of_a_lost_connection_settle_no_other_message": "cut",
    "work_goes_on_after_a_lost_connection": "cut",
    "nothing_is_lost_when_the_broker_restarts": "restart",
    "acks_wait_while_the_network_stands_still": "stalled",
    "a_rebalance_commits_what_is_done_and_forgets_the_rest": "rebalance",
    "outcomes_of_a_lost_lease_are_dropped": "take_back",
    "a_publisher_opens_and_closes_in_any_order": "publisher",
    "what_a_publisher_confirms_arrives": "publisher",
    "threads_share_a_publisher": "publisher",
    "a_forked_process_leaves_a_publisher_to_its_parent": "publisher",
    "a_publisher_connects_again": "publisher",
    "a_refused_message_has_an_error": "publisher_to_nowhere",
}


# ---- sources that break a promise, each with a scenario that must notice ----


class AcksAtDelivery(MemorySource):
    def poll(self, limit, wait_secs):
        deliveries = super().poll(limit, wait_secs)
        for delivery in deliveries:
            self.broker.ack(delivery.receipt)
        return deliveries

    def ack(self, deliveries):
        pass

    def holds(self, delivery):
        return True


class AcksAllOlder(MemorySource):
    """As `basic_ack` with multiple, or a commit of the newest offset."""

    taken: list = []

    def poll(self, limit, wait_secs):
        deliveries = super().poll(limit, wait_secs)
        self.taken = [*self.taken, *deliveries]
        return deliveries

    def ack(self, deliveries):
        newest = max(delivery.receipt.tag for delivery in deliveries)
        older = [each for each in self.taken if each.receipt.tag <= newest]
        super().ack([each for each in older if self.broker.knows(each.receipt)])


class AcksNothing(MemorySource):
    def ack(self, deliveries):
        pass


class AcksItsNeighbour(MemorySource):
    def ack(self, deliveries):
        super().ack(deliveries)
        for delivery in deliveries:
            self.broker.ack(type(delivery.receipt)(delivery.receipt.session, delivery.receipt.tag - 1))


class ForgetsAcksAtTheEnd(MemorySource):
    def close(self):
        self._acks = []
        super().close()


class ForgetsRetries(MemorySource):
    def retry(self, delivery, delay_secs):
        return True


class AcksRetries(MemorySource):
    """As Storm does when its retries are used up."""

    def retry(self, delivery, delay_secs):
        self.broker.ack(delivery.receipt)
        return True


class HoldsWhatIsGone(MemorySource):
    """Knows its deliveries by their tags alone, and the tags begin at 1 again."""

    def holds(self, delivery):
        return True

    def ack(self, deliveries):
        for delivery in deliveries:
            self.broker.ack(type(delivery.receipt)(self._session, delivery.receipt.tag))


class NeverExtends(MemorySource):
    def extend(self, deliveries):
        return []


class HidesLostLeases(MemorySource):
    def extend(self, deliveries):
        super().extend(deliveries)
        return []

    def holds(self, delivery):
        return True


class IgnoresTheLimit(MemorySource):
    def poll(self, limit, wait_secs):
        return super().poll(limit + 1, wait_secs)


class DeliversAnObjectTwice(MemorySource):
    last: list = []

    def poll(self, limit, wait_secs):
        again, self.last = self.last, []
        if again and limit:
            return again
        deliveries = super().poll(limit, wait_secs)
        self.last = list(deliveries[:1])
        return deliveries


class WaitsForEver(MemorySource):
    given_up = False

    def poll(self, limit, wait_secs):
        while not self.given_up:
            if deliveries := super().poll(limit, wait_secs):
                return deliveries
        raise ConnectionLostError("the test is over")


class RaisesFromClose(MemorySource):
    def close(self):
        super().close()
        raise ConnectionLostError("it is closed already")


class RaisesItsClientsErrors(MemorySource):
    def poll(self, limit, wait_secs):
        try:
            return super().poll(limit, wait_secs)
        except ConnectionLostError as lost:
            raise OSError(str(lost)) from None


class OpensOnce(MemorySource):
    def open(self, events, limit):
        if self.calls["open"]:
            raise SourceError("this object cannot start anew")
        super().open(events, limit)


class ShowsItsPassword(MemorySource):
    def __init__(self, broker, **options):
        super().__init__(broker, name=f"memory://user:{SECRET}@localhost", **options)


class StripsBodies(MemorySource):
    def poll(self, limit, wait_secs):
        deliveries = super().poll(limit, wait_secs)
        for delivery in deliveries:
            delivery.value = delivery.value.strip(b"\0")
        return deliveries


class LosesHeaders(MemorySource):
    def poll(self, limit, wait_secs):
        deliveries = super().poll(limit, wait_secs)
        for delivery in deliveries:
            delivery.headers = {}
        return deliveries


class CountsNoAttempts(MemorySource):
    def poll(self, limit, wait_secs):
        deliveries = super().poll(limit, wait_secs)
        for delivery in deliveries:
            delivery.attempt = 1
        return deliveries


class TellsNobodyOfARebalance(MemorySource):
    def open(self, events, limit):
        class Deaf:
            def finish(self, concerned, secs):
                pass

            def revoked(self, concerned):
                # The broker has to know nevertheless what it takes back.
                for delivery in taken:
                    concerned(delivery)

        taken = self.taken = []
        super().open(Deaf(), limit)

    def poll(self, limit, wait_secs):
        deliveries = super().poll(limit, wait_secs)
        self.taken.extend(deliveries)
        return deliveries

    def holds(self, delivery):
        return True


class DropsDeadLetters(MemorySource):
    def give_up(self, delivery, reason):
        self.broker.ack(delivery.receipt)


class TakesAMistakeForALostConnection(MemorySource):
    def open(self, events, limit):
        try:
            super().open(events, limit)
        except SourceError as error:
            raise ConnectionLostError(str(error)) from None


class WritesNothing(MemoryPublisher):
    def publish(self, messages):
        return [None for _ in messages]


class RaisesRefusals(MemoryPublisher):
    def publish(self, messages):
        for answer in super().publish(messages):
            if answer is not None:
                raise answer
        return []


BROKEN = [
    (QueueHarness, AcksAtDelivery, "a_commit_never_passes_an_open_message"),
    (QueueHarness, AcksAtDelivery, "an_open_message_survives_the_end_of_its_consumer"),
    (QueueHarness, AcksAtDelivery, "many_messages_pass_through_several_threads"),
    (QueueHarness, AcksAllOlder, "a_commit_never_passes_an_open_message"),
    (QueueHarness, AcksAllOlder, "no_commit_passes_a_failed_message"),
    (QueueHarness, AcksNothing, "bodies_arrive_unchanged"),
    (QueueHarness, AcksItsNeighbour, "a_message_is_acked_when_its_last_descendant_is_done"),
    (LagHarness, ForgetsAcksAtTheEnd, "what_a_closed_source_held_is_delivered_again"),
    (QueueHarness, ForgetsRetries, "a_failed_message_comes_again"),
    (QueueHarness, AcksRetries, "no_commit_passes_a_failed_message"),
    (QueueHarness, HoldsWhatIsGone, "outcomes_of_a_lost_connection_settle_no_other_message"),
    (LeaseHarness, NeverExtends, "leases_are_renewed_while_messages_are_open"),
    (LeaseHarness, NeverExtends, "leases_are_renewed_while_messages_wait_for_a_retry"),
    (LeaseHarness, NeverExtends, "leases_are_renewed_while_dead_letters_are_written"),
    (LeaseHarness, NeverExtends, "leases_are_renewed_while_a_consumer_closes"),
    (LeaseHarness, HidesLostLeases, "outcomes_of_a_lost_lease_are_dropped"),
    (QueueHarness, IgnoresTheLimit, "a_poll_returns_no_more_than_its_limit"),
    (QueueHarness, IgnoresTheLimit, "open_messages_are_bounded"),
    (QueueHarness, DeliversAnObjectTwice, "messages_end_in_any_order"),
    (QueueHarness, WaitsForEver, "a_wait_for_messages_can_be_ended"),
    (QueueHarness, RaisesFromClose, "a_source_opens_and_closes_in_any_order"),
    (QueueHarness, RaisesItsClientsErrors, "outcomes_of_a_lost_connection_settle_no_other_message"),
    (QueueHarness, OpensOnce, "a_source_opens_and_closes_in_any_order"),
    (QueueHarness, OpensOnce, "nothing_is_lost_when_the_broker_restarts"),
    (QueueHarness, ShowsItsPassword, "no_secret_is_shown"),
    (QueueHarness, StripsBodies, "bodies_arrive_unchanged"),
    (QueueHarness, LosesHeaders, "headers_arrive"),
    (QueueHarness, CountsNoAttempts, "what_a_closed_source_held_is_delivered_again"),
    (QueueHarness, TellsNobodyOfARebalance, "a_rebalance_commits_what_is_done_and_forgets_the_rest"),
    (QueueHarness, DropsDeadLetters, "the_brokers_own_place_keeps_dead_letters"),
    (QueueHarness, TakesAMistakeForALostConnection, "a_mistake_ends_the_consumer_with_an_error"),
    (QueueHarness, WritesNothing, "what_a_publisher_confirms_arrives"),
    (QueueHarness, RaisesRefusals, "a_refused_message_has_an_error"),
]


@pytest.mark.parametrize(
    ("harness_type", "broken", "name"), slow_after(6, BROKEN), ids=lambda value: getattr(value, "__name__", value)
)
def test_a_source_that_breaks_a_promise_fails(harness_type, broken, name):
    class BrokenHarness(harness_type):
        patience_secs = 2.0
        drain_secs = 0.2

        def clock(self):
            return time.monotonic  # what is not renewed has to end, also while this process stands still

        def source(self):
            source = broken(self.broker, lag=self.lag) if issubclass(broken, MemorySource) else super().source()
            self.sources.append(source)
            return source

        def mistakes(self):
            source = self.source()
            source.mistake()
            return [source]

        def publisher(self):
            return broken(self.broker)

        def publisher_to_nowhere(self):
            publisher = broken()
            publisher.refuse(10**9)
            return publisher

    (scenario,) = [scenario for scenario in SCENARIOS if scenario.__name__ == name]
    harness = BrokenHarness()
    try:
        with pytest.raises((AssertionError, OSError, PublishError, SourceError)):
            scenario(harness)
    finally:
        for source in harness.sources:
            source.given_up = True  # let its thread end
