"""The partitions that a Kafka consumer holds, and its commits, which never pass an open message."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from acker.connectors.kafka_client import LOGGER, KafkaFaults
from acker.offsets import OffsetTracker

# The client answers for each commit, but may try for long before it does; another attempt does no harm.
_ANSWER_SECS: Final = 30.0


class Assignment:
    """One assignment of a partition, from the rebalance that gives it to the one that takes it.

    Attributes
    ----------
    next : int
        One more than the highest offset that was read.
    is_held : bool
        False from the end of the assignment on: its outcomes no longer count, even if the partition comes back.
    """

    __slots__ = ("is_held", "next", "partition", "topic", "tracker")

    def __init__(self, topic: str, partition: int, tracker: OffsetTracker) -> None:
        self.topic = topic
        self.partition = partition
        self.tracker = tracker
        self.next = 0
        self.is_held = True

    def at(self, offset: int) -> TopicPartition:
        """Return the place of an offset, as the client wants it."""
        return TopicPartition(self.topic, self.partition, offset)

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


class Assignments:
    """The assignments of now, with one `OffsetTracker` for each topic.

    Attributes
    ----------
    is_complete : bool
        Whether each message that the client handed out has been entered. Where it is not, because reading raised an
        error, the client's positions may have passed messages that nobody saw.
    """

    def __init__(self) -> None:
        self.is_complete = True
        self.by_place: dict[tuple[str, int], Assignment] = {}
        self._trackers: dict[str, OffsetTracker] = {}

    def __len__(self) -> int:
        return len(self.by_place)

    def __iter__(self) -> Iterator[Assignment]:
        return iter(list(self.by_place.values()))

    def places(self) -> list[TopicPartition]:
        """Return the partitions, as the client wants them."""
        return [TopicPartition(topic, partition) for topic, partition in self.by_place]

    def find(self, partitions: Iterable[TopicPartition]) -> set[Assignment]:
        """Return the assignments of those of these partitions that are assigned."""
        found = (self.by_place.get((each.topic, each.partition)) for each in partitions)
        return {each for each in found if each is not None}

    def begin(self, partitions: Iterable[TopicPartition]) -> None:
        """Begin with partitions, whose first offset the first message tells."""
        for topic, partition in ((each.topic, each.partition) for each in partitions):
            tracker = self._trackers.setdefault(topic, OffsetTracker())
            tracker.assign(partition)
            if (before := self.by_place.get((topic, partition))) is not None:
                before.is_held = False
            self.by_place[topic, partition] = Assignment(topic, partition, tracker)

    def end(self, ended: Iterable[Assignment]) -> None:
        """Forget assignments."""
        for each in ended:
            if each.is_held:
                each.is_held = False
                each.tracker.revoke(each.partition)
                del self.by_place[each.topic, each.partition]

    def follow(self, consumer: Consumer) -> None:
        """Take over the positions of the client: they pass markers of transactions, which are no messages."""
        if not self.is_complete:
            return
        places = [each.at(-1) for each in self if not each.tracker.open(each.partition)]
        for place in consumer.position(places) if places else ():
            if place.error is None and place.offset > 0:
                assignment = self.by_place[place.topic, place.partition]
                assignment.tracker.read_up_to(place.partition, place.offset)

    def moved(self, among: Iterable[Assignment] | None = None) -> dict[Assignment, int]:
        """Return the offsets to commit, of those partitions where it is another one than the last one committed."""
        offers = {topic: tracker.committable() for topic, tracker in self._trackers.items()}
        found = {}
        for each in self if among is None else among:
            if each.is_held and (offset := offers[each.topic].get(each.partition)) is not None:
                found[each] = offset
        return found

    def open(self, assignments: Iterable[Assignment]) -> int:
        """Return how many messages of these assignments are open."""
        return sum(each.tracker.open(each.partition) for each in assignments if each.is_held)


@dataclass
class KafkaStats:
    """Counts of a `Kafka` source since its creation.

    Attributes
    ----------
    commits, commits_failed : int
        Commits of one partition each. A failed one is tried again.
    revoked, lost : int
        Partitions that a rebalance took in good order, or that went without notice because this consumer was away.
    left_open : int
        Messages of them that were not done. They are delivered again, maybe to another consumer.
    errors : int
        What the client reported, such as a broker that does not answer.
    """

    commits: int = 0
    commits_failed: int = 0
    revoked: int = 0
    lost: int = 0
    left_open: int = 0
    errors: int = 0


class Commits:
    """Commits what is done, for one client: one asynchronous commit at a time, and a last one where partitions go.

    Parameters
    ----------
    faults : KafkaFaults
    stats : KafkaStats
        Counts the commits.
    secs : float
        Between two commits.
    on_commit : callable, optional
        The user's, called with each result.
    """

    def __init__(
        self, faults: KafkaFaults, stats: KafkaStats, secs: float, on_commit: Callable[..., object] | None
    ) -> None:
        self._faults = faults
        self._stats = stats
        self._secs = secs
        self._on_commit = on_commit
        self._in_flight: dict[Assignment, int] = {}
        self._due = time.monotonic() + secs
        self._answer_by = 0.0

    def send_when_due(self, consumer: Consumer, assignments: Assignments) -> None:
        """Send what is done, once in a while, and never two commits at once."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + self._secs
        self._in_flight = {each: offset for each, offset in self._in_flight.items() if each.is_held}
        if self._in_flight:
            if now < self._answer_by:
                return
            self._fail(self._in_flight, None)
            self._in_flight = {}
        self._answer_by = now + _ANSWER_SECS
        self._send(consumer, assignments)

    def _send(self, consumer: Consumer, assignments: Assignments) -> None:
        try:
            assignments.follow(consumer)
            offsets = assignments.moved()
            if offsets:
                consumer.commit(offsets=[each.at(offset) for each, offset in offsets.items()], asynchronous=True)
                self._in_flight |= offsets
        except KafkaException as fault:
            self._fail(assignments.moved(), self._faults.error_of(fault))

    def send_last(self, consumer: Consumer, assignments: Assignments, secs: float) -> None:
        """Send what is done, and wait for the answer for a while; a broker that does not answer would hold up `close`.

        Messages that come meanwhile are dropped.
        """
        self._send(consumer, assignments)
        until = time.monotonic() + secs
        while self._in_flight and time.monotonic() < until:
            consumer.poll(0.05)
        self._fail(self._in_flight, None)
        self._in_flight = {}

    def send_now(self, consumer: Consumer, assignments: Assignments, among: set[Assignment]) -> None:
        """Commit what is done of some partitions, and wait for the answer."""
        offsets = assignments.moved(among)
        if not offsets:
            return
        places = [each.at(offset) for each, offset in offsets.items()]
        try:
            answers = consumer.commit(offsets=places, asynchronous=False)
        except KafkaException as fault:
            self._fail(offsets, self._faults.error_of(fault))
        else:
            self._settle(offsets, None, answers)

    def on_commit(self, error: KafkaError | None, places: Sequence[TopicPartition]) -> None:
        """Take the answer to a commit. The client passes those of synchronous ones, too; they are known already."""
        asked = {(each.topic, each.partition, offset): each for each, offset in self._in_flight.items()}
        answered = {}
        for place in places:
            if (each := asked.get((place.topic, place.partition, place.offset))) is not None:
                answered[each] = self._in_flight.pop(each)
        self._settle(answered, error, places)
        if self._on_commit is not None:
            self._faults.call(self._on_commit, error, places)

    def _settle(
        self, offsets: Mapping[Assignment, int], error: KafkaError | None, places: Iterable[TopicPartition]
    ) -> None:
        errors = {(place.topic, place.partition): place.error or error for place in places}
        for each, offset in offsets.items():
            if (failed := errors.get((each.topic, each.partition), error)) is not None:
                self._fail({each: offset}, failed)
                continue
            self._stats.commits += 1
            if each.is_held:
                each.tracker.committed({each.partition: offset})

    def _fail(self, offsets: Mapping[Assignment, int], error: KafkaError | None) -> None:
        why = "no answer" if error is None else self._faults.text(error)
        for each, offset in offsets.items():
            self._stats.commits_failed += 1
            then = "it is tried again" if each.is_held else "messages from there on may be delivered again"
            LOGGER.warning("%s: the commit of %s@%d failed: %s; %s", self._faults.name, each, offset, why, then)
