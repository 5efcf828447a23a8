"""One client's stay in a Kafka consumer group: what it reads, and the rebalances that give and take partitions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from acker._handles import deliveries_of, run_of
from acker.connectors.kafka.assignments import Assignment, Assignments, Commits, KafkaStats
from acker.connectors.kafka.client import LOGGER, MISTAKES, KafkaFaults
from acker.connectors.kafka.first_offsets import FirstOffsets
from acker.connectors.source import Delivery, SourceEvents
from acker.errors import AckerError, ConnectionLostError

# Without room, the client is called so often nevertheless: for rebalances, and as max.poll.interval.ms wants it. What
# comes is kept. At one of these limits the partitions are paused; a pause makes the client throw away what it has
# fetched ahead, and it takes a second until messages flow again.
LOOK_SECS: Final = 0.5
SURPLUS_MAX: Final = 16
SURPLUS_BYTES_MAX: Final = 1_000_000
# The longest wait for the last commit, and then for the client's end, while no broker answers.
CLOSE_SECS: Final = 5.0
_FROM_THE_START: Final = ("earliest", "smallest", "beginning", "error")


@dataclass(frozen=True, slots=True)
class MembershipOptions:
    """The arguments of a `Kafka` source, checked."""

    config: Mapping[str, Any]
    topics: Sequence[str]
    commit_secs: float
    rebalance_secs: float
    connect_secs: float

    @property
    def is_incremental(self) -> bool:
        """Whether a rebalance tells the partitions that change, and not all of them."""
        strategy = str(self.config.get("partition.assignment.strategy", ""))
        return "cooperative" in strategy or self.config.get("group.protocol") == "consumer"

    @property
    def starts_at_the_end(self) -> bool:
        """Whether a group without a commit begins with the messages that come from then on."""
        fallback = self.config.get("default.topic.config", {}).get("auto.offset.reset", "largest")
        return str(self.config.get("auto.offset.reset", fallback)).lower() not in _FROM_THE_START


class KafkaDelivery(Delivery):
    """A delivery whose key and headers are made when somebody asks for them: few messages need them."""

    __slots__ = ()

    def _make_key(self) -> str:
        return f"{self.receipt}@{self.raw.offset()}"

    def _make_headers(self) -> dict[str, Any]:
        return dict(self.raw.headers() or ())


def holds(delivery: Delivery) -> bool:
    """Return whether the assignment of a delivery goes on."""
    assignment: Assignment = delivery.receipt
    return assignment.is_held


class Membership:
    """A client from its start to its end. After `close`, whatever it calls back concerns nobody.

    Attributes
    ----------
    is_member : bool
        Whether the group has assigned partitions to it, or none because others have all.

    Parameters
    ----------
    options : MembershipOptions
    events : SourceEvents
    faults : KafkaFaults
    stats : KafkaStats
    woken : threading.Event
        Ends waits.

    Raises
    ------
    SourceError
        The client refuses the configuration.
    """

    def __init__(
        self,
        options: MembershipOptions,
        events: SourceEvents,
        faults: KafkaFaults,
        stats: KafkaStats,
        woken: threading.Event,
    ) -> None:
        self._options = options
        self._events = events
        self._faults = faults
        self._stats = stats
        self._woken = woken
        self.assignments = Assignments()
        self.surplus: list[Delivery] = []
        self.is_paused = self.is_member = False
        self._look_at = 0.0
        self._fault: BaseException | None = None
        self._is_closed = False
        self._first_offsets = FirstOffsets(faults, options.connect_secs)
        self._commits = Commits(faults, stats, options.commit_secs, options.config.get("on_commit"))
        callbacks = {"error_cb": faults.on_error, "on_commit": self._commits.on_commit}
        try:
            self._client = Consumer({**options.config, **callbacks})
        except (KafkaException, TypeError, ValueError) as error:
            raise faults.refused(error) from None

    def join(self) -> None:
        """Look for the topics, and join the group.

        Raises
        ------
        SourceError, ConnectionLostError
        """
        plain = [topic for topic in self._options.topics if not topic.startswith("^")]
        self._faults.check_topics(self._client, plain, self._options.connect_secs)
        try:
            self._first_offsets.begin(self._client)
            self._client.subscribe(
                list(self._options.topics),
                on_assign=self._guarded(self._assign),
                on_revoke=self._guarded(self._revoke),
                on_lost=self._guarded(self._lose),
            )
        except KafkaException as error:
            raise self._faults.raised(self._faults.error_of(error), "subscribe") from None

    def poll(self, limit: int, wait_secs: float) -> list[Delivery]:
        """Return what was read; see `Source.poll`."""
        deliveries: list[Delivery] = []
        if limit <= 0:
            self._idle(wait_secs)
        elif self.surplus:
            deliveries, self.surplus = self.surplus[:limit], self.surplus[limit:]
        else:
            self._resume()
            deliveries = self._read(limit, wait_secs)
        self._commits.send_when_due(self._client, self.assignments)
        return deliveries

    @property
    def is_receiving(self) -> bool:
        """Whether the group has assigned partitions, and the broker has answered for each how far it goes."""
        return self.is_member and all(
            self._client.get_watermark_offsets(each, cached=True)[1] >= 0
            for each in self.assignments.topic_partitions()
        )

    def count_uncommitted(self) -> int:
        """Return how many messages are acked and not committed."""
        return _uncommitted(list(self.assignments))

    def close(self) -> int:
        """Commit what is done, and leave the group; a broker that does not answer holds it up for a few seconds.

        Returns how many messages were acked and are not committed.
        """
        self._is_closed = True
        try:
            self._commits.send_last(self._client, self.assignments, CLOSE_SECS)
        except Exception as error:  # noqa: BLE001  A callback of the configuration may raise anything.
            LOGGER.warning("%s: the last commit: %s", self._faults.name, self._faults.hide(error))
        # On a thread of its own, since the client waits without an end for a broker that hangs.
        leaving = threading.Thread(target=self._leave, name=f"acker {self._faults.name} close", daemon=True)
        leaving.start()
        leaving.join(CLOSE_SECS)
        if leaving.is_alive():
            LOGGER.warning("%s: no broker lets it leave its group; it goes on without", self._faults.name)
        uncommitted = self.count_uncommitted()
        self._end(list(self.assignments))
        return uncommitted

    def _leave(self) -> None:
        try:
            self._client.close()
        except Exception as error:  # noqa: BLE001  A callback of the configuration may raise anything.
            LOGGER.warning("%s: close: %s", self._faults.name, self._faults.hide(error))

    # ---- reading -----------------------------------------------------------------------------------------------------

    def _read(self, limit: int, wait_secs: float) -> list[Delivery]:
        """Return deliveries; wait for the first one only."""
        deliveries: list[Delivery] = []
        self.assignments.is_complete = False  # and remains so if an error leaves this method
        try:
            messages = self._client.consume(limit, 0)
            if not messages and (first := self._client.poll(wait_secs)) is not None:
                deliveries = self._enter([first])  # now, since a rebalance within the next call may concern it
                messages = self._client.consume(limit - 1, 0) if limit > 1 else []
        except AckerError:
            raise
        except KafkaException as error:
            raise self._faults.raised(self._faults.error_of(error), "reading") from None
        except Exception as error:  # noqa: BLE001  A callback of the configuration may raise anything.
            # The client drops the messages that it held at that time, so only a new one goes on at the right offset.
            text = f"{self._faults.name}: reading: {type(error).__name__}: {self._faults.hide(error)}"
            raise ConnectionLostError(text) from None
        if messages:
            deliveries += self._enter(messages)
        self.assignments.is_complete = True
        if deliveries and not holds(deliveries[0]):
            del deliveries[0]
        if self._fault is not None:
            raise self._fault
        if self._faults.fatal is not None:
            raise self._faults.fatal
        return deliveries

    def _enter(self, messages: list[Any]) -> list[Delivery]:
        """Note offsets as open, and return their deliveries."""
        deliveries: list[Delivery] = []
        start = 0
        while start < len(messages):
            end, offset, latest_ms = run_of(messages, start, self.assignments.are_of_one_topic)
            first = messages[start]
            if end == start:
                self._judge(first.error(), first)
                start += 1
                continue
            assignment = self.assignments.by_partition.get((first.topic(), first.partition()))
            if assignment is not None:  # else it was revoked by a rebalance within the same call
                deliveries += self._enter_run(assignment, offset, messages[start:end], latest_ms)
            start = end
        if deliveries:
            self._faults.on_success()
        return deliveries

    def _enter_run(self, assignment: Assignment, offset: int, run: list[Any], latest_ms: int) -> Sequence[Delivery]:
        """Note messages of a partition whose offsets follow each other; return those that are not done before."""
        if offset < assignment.next:
            self._refuse_older(assignment, offset)
        assignment.latest_ms = max(assignment.latest_ms, latest_ms)
        assignment.tracker.emitted_run(assignment.partition, offset, offset + len(run))
        assignment.next = offset + len(run)
        if not assignment.done:
            return deliveries_of(run, offset, assignment, KafkaDelivery)
        unread: list[Delivery] = []
        for at, message in enumerate(run, offset):
            if assignment.done.has(at, message.timestamp()[1]):
                assignment.tracker.acked(assignment.partition, at)
                self._stats.skipped += 1
            else:
                unread += deliveries_of([message], at, assignment, KafkaDelivery)
        return unread

    def _refuse_older(self, assignment: Assignment, offset: int) -> None:
        """Raise: the log lost its end, or the topic was made anew, so old offsets are those of new messages."""
        was = assignment.next
        self._end([assignment])  # without a commit, which could skip new messages
        raise ConnectionLostError(
            f"{self._faults.name}: the offsets of {assignment} went back from {was} to {offset}: it was truncated or"
            " made anew; reading starts again at the last commit"
        )

    def _judge(self, error: KafkaError, message: Message) -> None:
        """Raise if an error of the client needs a new one; else note it."""
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            return
        if code == KafkaError._MAX_POLL_EXCEEDED:
            LOGGER.error(
                "%s: it was not polled for longer than 'max.poll.interval.ms', so the group gave its partitions away;"
                " raise it, or find what blocks this process",
                self._faults.name,
            )
        if error.fatal() or code in MISTAKES or code == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise self._faults.raised(error, message.topic() or "the group")
        self._faults.on_error(error)

    def _idle(self, wait_secs: float) -> None:
        """Hand out nothing, but let the client see to its group."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_SECS
            size = sum(len(delivery.value) for delivery in self.surplus)
            if not self.is_paused and (len(self.surplus) >= SURPLUS_MAX or size >= SURPLUS_BYTES_MAX):
                self._client.pause(self.assignments.topic_partitions())
                self.is_paused = True
            read = self._read(1, 0)  # first, since a rebalance within it replaces the list
            self.surplus += read
        self._woken.wait(wait_secs)
        self._woken.clear()

    def _resume(self) -> None:
        if self.is_paused:
            self.is_paused = False
            self._client.resume(self.assignments.topic_partitions())

    # ---- rebalances, within calls of the client ---------------------------------------------------------------------

    def _guarded(self, act: Callable[[Sequence[TopicPartition]], None]) -> Callable[[Consumer, Any], None]:
        """Return a callback that keeps what it raises for the end of `poll`: the client would drop messages with it."""

        def callback(_: Consumer, partitions: Sequence[TopicPartition]) -> None:
            if self._is_closed:
                return  # it is being closed
            try:
                act(partitions)
            except KafkaException as error:
                self._fault = self._faults.raised(self._faults.error_of(error), "rebalance")
            except Exception as error:  # noqa: BLE001  `poll` raises it.
                self._fault = error

        return callback

    def _assign(self, partitions: Sequence[TopicPartition]) -> None:
        if self._options.starts_at_the_end:
            commits = self._first_offsets.commit(self._client, partitions)
        else:
            commits = self._commits_of(partitions)
        if self._options.is_incremental:
            self._client.incremental_assign(list(partitions))
        else:
            self._client.assign(list(partitions))
        if self.is_paused and partitions:
            self._client.pause(list(partitions))
        self.assignments.begin(partitions, commits)
        self.is_member = True

    def _commits_of(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Return the commits of the group, which say what is done above them; none if no broker tells."""
        try:
            return (
                list(self._client.committed(list(partitions), timeout=self._options.connect_secs)) if partitions else []
            )
        except KafkaException as error:
            text = self._faults.text(self._faults.error_of(error))
            LOGGER.warning(
                "%s: what is done above the commits is not known, and is done again: %s", self._faults.name, text
            )
            return []

    def _revoke(self, partitions: Sequence[TopicPartition]) -> None:
        ended = self.assignments.find(partitions)
        self._events.finish(lambda delivery: delivery.receipt in ended, self._options.rebalance_secs)
        self._commits.send_now(self._client, self.assignments, ended)
        self._stats.revoked += len(ended)
        self._forget(ended)

    def _lose(self, partitions: Sequence[TopicPartition]) -> None:
        lost = self.assignments.find(partitions)
        uncommitted = _uncommitted(lost)
        LOGGER.warning(
            "%s: lost %s without notice: %d messages were done and not committed, and come again",
            self._faults.name,
            ", ".join(sorted(map(str, lost))),
            uncommitted,
        )
        self._stats.lost += len(lost)
        self._stats.uncommitted += uncommitted
        self._forget(lost)

    def _forget(self, ended: set[Assignment]) -> None:
        """End assignments whose messages others will read."""
        if self.is_paused:
            self._client.resume([each.at(-1) for each in ended])  # or else it would stay so when it comes back
        self._end(ended)
        self._events.revoked(lambda delivery: delivery.receipt in ended)

    def _end(self, ended: Iterable[Assignment]) -> None:
        self._stats.left_open += self.assignments.open(ended)
        self.assignments.end(ended)
        self.surplus = [delivery for delivery in self.surplus if holds(delivery)]


def _uncommitted(assignments: Iterable[Assignment]) -> int:
    """Return how many messages of some partitions are acked and not committed."""
    return sum(each.acked - each.committed for each in assignments)
