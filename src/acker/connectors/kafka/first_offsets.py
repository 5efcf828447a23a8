"""Where a Kafka consumer group begins that skips what its topics hold already (``auto.offset.reset=latest``).

The client would begin at the end of each partition without a commit, whenever it gets one: then messages are skipped
that came between two members, or before a new partition was noticed. So each partition gets a commit at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from confluent_kafka import Consumer, KafkaException, TopicPartition

from acker.connectors.kafka.client import LOGGER, KafkaFaults


class FirstOffsets:
    """Commits the first offsets of partitions that have none.

    A topic of which the group has no commit begins at its end, in all of its partitions. A partition that is added
    later, or a topic that is made while this member is at work, begins with its first message: its messages came after
    the group's begin.

    Parameters
    ----------
    faults : KafkaFaults
    secs : float
        For each answer of a broker.
    """

    def __init__(self, faults: KafkaFaults, secs: float) -> None:
        self._faults = faults
        self._secs = secs
        self._old_topics: frozenset[str] = frozenset()

    def begin(self, client: Consumer) -> None:
        """Note the topics that exist before this member joins its group."""
        self._old_topics = frozenset(client.list_topics(timeout=self._secs).topics)

    def commit(self, client: Consumer, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Commit first offsets for the topics of partitions that this member gets; return the commits of these.

        Raises
        ------
        KafkaException
        """
        assigned: dict[str, set[int]] = {}
        for each in partitions:
            assigned.setdefault(each.topic, set()).add(each.partition)
        commits: list[TopicPartition] = []
        new: list[TopicPartition] = []
        for topic, numbers in assigned.items():
            known = self._commits_of(client, topic, numbers)
            new += self._begin_without_commit(client, topic, known)
            commits += [commit for commit in known if commit.partition in numbers]
        if new:
            client.commit(offsets=new, asynchronous=False)
        return commits

    def _commits_of(self, client: Consumer, topic: str, assigned: set[int]) -> list[TopicPartition]:
        """Return the commits of all partitions of a topic; the offset is negative where there is none."""
        numbers = sorted(assigned | set(client.list_topics(topic, timeout=self._secs).topics[topic].partitions))
        known = client.committed([TopicPartition(topic, number) for number in numbers], timeout=self._secs)
        for commit in known:
            if commit.error is not None:
                raise KafkaException(commit.error)
        return list(known)

    def _begin_without_commit(
        self, client: Consumer, topic: str, known: Sequence[TopicPartition]
    ) -> list[TopicPartition]:
        """Set the offset to begin at for each partition of a topic that has no commit; return these."""
        new = [commit for commit in known if commit.offset < 0]
        is_late = len(new) < len(known) or topic not in self._old_topics
        for commit in new:
            commit.offset = client.get_watermark_offsets(commit, timeout=self._secs)[0 if is_late else 1]
        if new and is_late:
            named = ", ".join(f"{topic}/{commit.partition}" for commit in new)
            LOGGER.info("%s: %s came after the group's begin; it reads all of it", self._faults.name, named)
        return new
