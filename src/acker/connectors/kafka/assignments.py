"""The partitions that a Kafka consumer holds, and its commits, which never pass an open message."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from acker.connectors.kafka.client import LOGGER, KafkaFaults
from acker.connectors.kafka.done import DoneAbove, joined, metadata_of
from acker.offsets import OffsetTracker

# The client answers for each commit, but may try for long before it does; another attempt does no harm.
_ANSWER_SECS: Final = 30.0
_ANSWER_LOOK_SECS: Final = 0.005
# Kafka's own limit for the metadata of a commit (``offset.metadata.max.bytes``).
_METADATA_BYTES_MAX: Final = 4096


class Assignment:
    """One assignment of a partition, from the rebalance that gives it to the one that takes it.

    Attributes
    ----------
    next : int
        One more than the highest offset that was read.
    done : DoneAbove
        What was done above the commit when the assignment began, as far as it has not been read again.
    latest_ms : int
        The latest timestamp of the messages that were read, in this assignment or before it.
    noted : str
        The metadata of the last commit.
    acked, offered, committed : int
        How many messages are done, and how many of these the last commit names: the one that was sent, and the one that
        a broker has confirmed.
    is_held : bool
        False from the end of the assignment on: its outcomes no longer count, even if the partition comes back.
    """

    __slots__ = (
        "acked",
        "committed",
        "done",
        "is_held",
        "latest_ms",
        "next",
        "noted",
        "offered",
        "partition",
        "topic",
        "tracker",
    )

    def __init__(
        self, topic: str, partition: int, tracker: OffsetTracker, commit: TopicPartition | None = None
    ) -> None:
        self.noted = (commit.metadata or "") if commit is not None else ""
        self.done = DoneAbove(self.noted, commit.offset if commit is not None else 0)
        self.latest_ms = self.done.latest_ms
        self.topic = topic
        self.partition = partition
        self.tracker = tracker
        self.next = self.acked = self.offered = self.committed = 0
        self.is_held = True

    def at(self, offset: int) -> TopicPartition:
        """Return an offset of this partition, as the client takes it."""
        return TopicPartition(self.topic, self.partition, offset)

    def commit(self, size_max: int) -> tuple[TopicPartition | None, bool]:
        """Return what to commit now, if it is known, and whether it names all messages that are done."""
        offset = self.tracker.committable(self.partition)
        if offset is None:
            return None, True
        unread = ((max(first, self.next), end) for first, end in self.done.runs if end > self.next)
        runs = joined([*self.tracker.done_above(self.partition), *unread])
        text, is_whole = metadata_of(offset, runs, self.latest_ms, size_max)
        return TopicPartition(self.topic, self.partition, offset, metadata=text), is_whole

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
        self.by_partition: dict[tuple[str, int], Assignment] = {}
        self._trackers: dict[str, OffsetTracker] = {}

    def __len__(self) -> int:
        return len(self.by_partition)

    def __iter__(self) -> Iterator[Assignment]:
        return iter(list(self.by_partition.values()))

    @property
    def are_of_one_topic(self) -> bool:
        """Whether all partitions, those that are gone included, are of one topic."""
        return len(self._trackers) == 1

    def topic_partitions(self) -> list[TopicPartition]:
        """Return the partitions, as the client wants them."""
        return [TopicPartition(topic, partition) for topic, partition in self.by_partition]

    def find(self, partitions: Iterable[TopicPartition]) -> set[Assignment]:
        """Return the assignments of those of these partitions that are assigned."""
        found = (self.by_partition.get((each.topic, each.partition)) for each in partitions)
        return {each for each in found if each is not None}

    def begin(self, partitions: Iterable[TopicPartition], commits: Iterable[TopicPartition] = ()) -> None:
        """Begin with partitions, whose first offset the first message tells; `commits` are those of the group."""
        known = {(each.topic, each.partition): each for each in commits if each.error is None and each.offset >= 0}
        for topic, partition in ((each.topic, each.partition) for each in partitions):
            tracker = self._trackers.setdefault(topic, OffsetTracker())
            tracker.assign(partition)
            if (before := self.by_partition.get((topic, partition))) is not None:
                before.is_held = False
            self.by_partition[topic, partition] = Assignment(topic, partition, tracker, known.get((topic, partition)))

    def end(self, ended: Iterable[Assignment]) -> None:
        """Forget assignments."""
        for each in ended:
            if each.is_held:
                each.is_held = False
                each.tracker.revoke(each.partition)
                del self.by_partition[each.topic, each.partition]

    def follow(self, consumer: Consumer) -> None:
        """Take over the positions of the client: they pass markers of transactions, which are no messages."""
        if not self.is_complete:
            return
        settled = [each.at(-1) for each in self if not each.tracker.open(each.partition)]
        for position in consumer.position(settled) if settled else ():
            if position.error is None and position.offset > 0:
                assignment = self.by_partition[position.topic, position.partition]
                assignment.tracker.read_up_to(position.partition, position.offset)

    def moved(self, size_max: int, among: Iterable[Assignment] | None = None) -> tuple[NewCommits, int]:
        """Return the commits of those partitions where it is another one than the last, and how many are cut short."""
        offers = {topic: tracker.committable() for topic, tracker in self._trackers.items()}
        found, cut = {}, 0
        for each in self if among is None else among:
            commit, is_whole = each.commit(size_max) if each.is_held else (None, True)
            if commit is not None and (each.partition in offers[each.topic] or commit.metadata != each.noted):
                found[each] = commit
                each.offered = each.acked
                cut += not is_whole
        return found, cut

    def open(self, assignments: Iterable[Assignment]) -> int:
        """Return how many messages of these assignments are open."""
        return sum(each.tracker.open(each.partition) for each in assignments if each.is_held)


# The next commit of each assignment.
NewCommits = dict[Assignment, TopicPartition]


@dataclass
class KafkaStats:
    """Counts of a `Kafka` source since its creation.

    Attributes
    ----------
    commits, commits_failed : int
        Commits of one partition each. A failed one is tried again.
    revoked, lost : int
        Partitions that a rebalance took in good order, or that went without notice because this consumer was away.
    uncommitted : int
        Messages of lost partitions that were done, and whose commit no broker had confirmed: they are done again.
    left_open : int
        Messages of partitions that went that were not done. They are delivered again, maybe to another consumer.
    skipped : int
        Messages that were read again and not handed out, since an earlier commit names them as done.
    cut : int
        Commits whose metadata had no room for all messages that are done above the offset; those left out may be
        delivered again.
    errors : int
        What the client reported, such as a broker that does not answer.
    """

    commits: int = 0
    commits_failed: int = 0
    revoked: int = 0
    lost: int = 0
    uncommitted: int = 0
    left_open: int = 0
    skipped: int = 0
    cut: int = 0
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
        self._size_max = _METADATA_BYTES_MAX
        self._in_flight: NewCommits = {}
        self._due = time.monotonic() + secs
        self._answer_by = 0.0

    def send_when_due(self, consumer: Consumer, assignments: Assignments) -> None:
        """Send what is done, once in a while, and never two commits at once."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + self._secs
        self._in_flight = {each: commit for each, commit in self._in_flight.items() if each.is_held}
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
            commits = self._moved(assignments)
            if commits:
                consumer.commit(offsets=list(commits.values()), asynchronous=True)
                self._in_flight |= commits
        except KafkaException as error:
            self._fail(self._moved(assignments), self._faults.error_of(error))

    def _moved(self, assignments: Assignments, among: Iterable[Assignment] | None = None) -> NewCommits:
        commits, cut = assignments.moved(self._size_max, among)
        self._stats.cut += cut
        return commits

    def send_last(self, consumer: Consumer, assignments: Assignments, secs: float) -> None:
        """Send what is done, and wait for the answer for a while; a broker that does not answer would hold up `close`.

        Messages that come meanwhile are dropped.
        """
        self._send(consumer, assignments)
        until = time.monotonic() + secs
        while self._in_flight and time.monotonic() < until:
            consumer.poll(_ANSWER_LOOK_SECS)  # an answer does not end it
        self._fail(self._in_flight, None)
        self._in_flight = {}

    def send_now(self, consumer: Consumer, assignments: Assignments, among: set[Assignment]) -> None:
        """Commit what is done of some partitions, and wait for the answer."""
        commits = self._moved(assignments, among)
        if not commits:
            return
        try:
            answers = consumer.commit(offsets=list(commits.values()), asynchronous=False)
        except KafkaException as error:
            self._fail(commits, self._faults.error_of(error))
        else:
            self._settle(commits, None, answers)

    def on_commit(self, error: KafkaError | None, answers: Sequence[TopicPartition]) -> None:
        """Take the answer to a commit. The client passes those of synchronous ones, too; they are known already."""
        sent = {(each.topic, each.partition, commit.offset): each for each, commit in self._in_flight.items()}
        answered = {}
        for answer in answers:
            if (each := sent.get((answer.topic, answer.partition, answer.offset))) is not None:
                answered[each] = self._in_flight.pop(each)
        self._settle(answered, error, answers)
        if self._on_commit is not None:
            self._faults.call(self._on_commit, error, answers)

    def _settle(
        self, sent: Mapping[Assignment, TopicPartition], error: KafkaError | None, answers: Iterable[TopicPartition]
    ) -> None:
        errors = {(answer.topic, answer.partition): answer.error or error for answer in answers}
        for each, commit in sent.items():
            if (failed := errors.get((each.topic, each.partition), error)) is not None:
                self._fail({each: commit}, failed)
                continue
            self._stats.commits += 1
            each.noted = commit.metadata or ""
            each.committed = each.offered
            if each.is_held:
                each.tracker.committed({each.partition: commit.offset})

    def _fail(self, commits: Mapping[Assignment, TopicPartition], error: KafkaError | None) -> None:
        why = "no answer" if error is None else self._faults.text(error)
        if error is not None and error.code() == KafkaError.OFFSET_METADATA_TOO_LARGE:
            self._size_max //= 2  # the brokers' offset.metadata.max.bytes is smaller than Kafka's own
        for each, offset in ((each, commit.offset) for each, commit in commits.items()):
            self._stats.commits_failed += 1
            then = "it is tried again" if each.is_held else "messages from there on may be delivered again"
            LOGGER.warning("%s: the commit of %s@%d failed: %s; %s", self._faults.name, each, offset, why, then)
