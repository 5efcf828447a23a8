"""A spout over any source whose messages are acked at the broker as soon as the journal of `acker.spark` has them."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from acker.connectors.attempts import Attempt
from acker.connectors.dead_letters import DeadLetterWriter
from acker.connectors.options import BROKER, MessageOptions
from acker.connectors.source import Delivery, Origin
from acker.connectors.topologies.source_spout import SourceSpout
from acker.errors import TopologyError
from acker.observe.reasons import Reason
from acker.topology.spout import ReliableSpout


@dataclass(frozen=True, slots=True)
class JournaledMessage:
    """The id of a tuple that was made of a message, with all that its dead letter needs.

    Attributes
    ----------
    life : str
        Of the spout that took the message: the numbers of another one mean nothing to it.
    number : int
    key : str
    body : bytes
    headers : mapping of str to Any
    origin : Origin
    """

    life: str
    number: int
    key: str = field(compare=False)
    body: bytes = field(compare=False, repr=False)
    headers: Mapping[str, Any] = field(compare=False, repr=False)
    origin: Origin = field(compare=False, repr=False)

    def __str__(self) -> str:
        return self.key


class JournaledSourceSpout(SourceSpout, ReliableSpout):
    """A `SourceSpout` for `acker.spark` that acks a message as soon as the journal has it on disk.

    From then on the message is the journal's: it is tried again from there, also after a crash, and its dead letter is
    written from there. So the broker waits for no micro-batch, and sees no redelivery when the driver is killed. Its
    options are those of `SourceSpout`. Dead letters need a publisher, since the broker no longer has the message.

    `acker.local`, and `acker.spark` without a checkpoint, refuse it: they have no journal on disk.
    """

    journaled: ClassVar[bool] = True
    _needs_journal: ClassVar[bool] = True

    def initialize(self, conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """Start the I/O thread. A subclass that overrides it has to call it."""
        self._letters: DeadLetterWriter | None = None
        self._life = secrets.token_hex(8)
        self._unsettled: set[int] = set()
        self._written: deque[Attempt] = deque()
        super().initialize(conf, context)
        publisher = self._message_options.publisher
        if publisher is not None:
            name = self._message_store.name
            self._letters = DeadLetterWriter(publisher, name, _origin_in, self._confirm, self.logger)

    def _use_options(self, options: MessageOptions) -> None:
        if options.dead_letters == BROKER:
            raise TopologyError(
                f"component {self.component_name!r}: dead_letters='broker' is for a SourceSpout; the broker no longer"
                " has messages that are in the journal, so give a publisher"
            )
        self.attempts_max = options.attempts_max
        self.backoff_secs = options.backoff_secs
        self.backoff_secs_max = options.backoff_secs_max

    def _tup_id(self, attempt: Attempt) -> JournaledMessage:
        delivery = attempt.delivery
        self._unsettled.add(attempt.message_id)
        content = delivery.key, delivery.value, dict(delivery.headers), self._origin(delivery)
        return JournaledMessage(self._life, attempt.message_id, *content)

    def on_journaled(self, tup_ids: Sequence[Hashable]) -> None:
        """Ack messages at the broker."""
        for tup_id in tup_ids:
            assert isinstance(tup_id, JournaledMessage)
            if tup_id.life == self._life and tup_id.number in self._unsettled:
                self._unsettled.discard(tup_id.number)
                self._inbox.append((tup_id.number, None, False))
        self._io_thread.wake()

    def ack(self, tup_id: Any) -> None:
        """Forget a message."""
        ReliableSpout.ack(self, tup_id)

    def fail(self, tup_id: Any, reason: Reason | None = None) -> None:
        """Try a message again later, or write its dead letter."""
        ReliableSpout.fail(self, tup_id, reason)

    def _end_replays(self, tup_id: Any, reason: Reason) -> None:
        """Write a dead letter; until it is confirmed, the message stays in the table, and so in the journal."""
        message, writer = tup_id, self._letters
        self.logger.error("%s: gave up %s: %s", self._message_store.name, message.key, reason)
        assert writer is not None  # attempts_max needs a place for dead letters
        delivery = Delivery(message.key, message.body, message.headers, reason.attempt, message.origin, None)
        attempt = Attempt(message.number, delivery, reason.attempt, reason.attempt, 0, "dead", reason, tree=message)
        writer.write(attempt)

    def _confirm(self, attempt: Attempt) -> None:
        self._written.append(attempt)

    def keep_alive(self) -> None:
        """Forget messages whose dead letters are confirmed, and show what the I/O thread counts."""
        while self._written:
            attempt = self._written.popleft()
            entry = self._replays.forget(attempt.tree)
            if self._on_dead_letter is not None and entry is not None and attempt.reason is not None:
                self._on_dead_letter(attempt.tree, entry, attempt.reason)
            self._collector.count("dead_letters")
        super().keep_alive()

    def close(self) -> None:
        """Give back what is not in the journal, and disconnect. A subclass that overrides it has to call it."""
        letters = vars(self).get("_letters")
        if letters is not None:
            letters.stop()
        super().close()


def _origin_in(delivery: Delivery) -> Origin:
    """Return the origin that a message from the journal has in place of the client's object."""
    assert isinstance(delivery.raw, Origin)
    return delivery.raw
