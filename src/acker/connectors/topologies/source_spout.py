"""A spout over any source: its tuples are acked, retried and given up as the messages of a consumer are."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, Self

from acker.connectors.attempts import Attempt
from acker.connectors.dead_letters import why_no_replay
from acker.connectors.decoding import decoder_of
from acker.connectors.io_thread import IoThread
from acker.connectors.message_store import MessageStore
from acker.connectors.options import BROKER, MessageOptions
from acker.connectors.publisher import Publisher
from acker.connectors.source import Delivery, Source
from acker.connectors.unrun import DECODE_FIX, refuse_unrun, unrun_error
from acker.errors import AckerError, TopologyError, exception_text
from acker.observe.reasons import Reason, ReasonKind
from acker.topology.component import Outputs
from acker.topology.specs import ComponentSpec
from acker.topology.spout import Spout

_SOURCE: Final = "user.acker.source"
_OPTIONS: Final = "user.acker.options"
# The options that are numbers; the attributes of the class are their defaults.
_NUMBERS: Final = ("open_max", "attempts_max", "deliveries_max", "backoff_secs", "backoff_secs_max", "drain_secs")
# The counts of messages that the component's figures show.
_SHOWN: Final = ("delivered", "redelivered", "retried", "revoked", "released", "unacked", "dead_letters")
_TURN_SECS: Final = 60.0


class MessageNumber(int):
    """The number of a message in this process; as text it is the key by which the broker knows the message."""

    key: str

    @classmethod
    def of(cls, attempt: Attempt) -> Self:
        """Return the number of an attempt."""
        number = cls(attempt.message_id)
        number.key = attempt.delivery.key
        return number

    def __str__(self) -> str:
        return self.key


class SourceSpout(Spout):
    """A spout that reads a source on an I/O thread of each task, so that leases live while the topology is busy.

    A message is emitted as the values ``value``, ``key`` and ``headers``, and acked at the broker when its tuple tree
    is acked; on Spark, after the commit of the micro-batch. A tree that fails or times out is tried again after a
    back-off, and after `attempts_max` attempts its message becomes a dead letter. Trees that a restart or a stop ends
    go back to the broker, and count as no attempt.

    Use `spec` with a function that makes the source; or derive a class, override `source`, and set the attributes.

    Attributes
    ----------
    open_max : int
        The most messages of one task that are not settled; further ones stay with the broker. More than
        ``topology.max.spout.pending`` of them wait in the process.
    attempts_max, deliveries_max : int or None
    backoff_secs, backoff_secs_max : float
    drain_secs : float
        As for `acker.connectors.Consumer`.
    """

    outputs: ClassVar[Outputs | None] = ["value", "key", "headers"]
    journaled = False  # the broker keeps what is open
    open_max: int = 1000
    attempts_max: int | None = None
    deliveries_max: int | None = None
    backoff_secs: float = 1.0
    backoff_secs_max: float = 60.0
    drain_secs: float = 5.0

    @classmethod
    def spec(
        cls,
        name: str | None = None,
        par: int | Mapping[str, int] | None = None,
        config: Mapping[str, Any] | None = None,
        executors: int | None = None,
        *,
        source: Callable[[], Source] | None = None,
        **options: Any,
    ) -> ComponentSpec:
        """Return this spout's place in a topology.

        Parameters
        ----------
        name, par, config, executors
            See `Spout.spec`.
        source : callable, optional
            Returns a new source; called once in each task. By default the method `source`.
        **options
            `open_max`, `attempts_max`, `deliveries_max`, `backoff_secs`, `backoff_secs_max`, `drain_secs`; also
            `decode`, which makes the value of the body, and `dead_letters`: a function that returns a new publisher, or
            "broker".

        Raises
        ------
        TopologyError
            An option is unknown or has a wrong value, or the source is no function.
        """
        known = {*_NUMBERS, "decode", "dead_letters"}
        if unknown := sorted(options.keys() - known):
            raise TopologyError(f"{cls.__name__}.spec: unknown option {unknown[0]!r}; known are {sorted(known)}")
        if source is not None and (not callable(source)):
            raise TopologyError(
                f"{cls.__name__}.spec: source has to be a function that returns a new source, since each task and each"
                f" restart needs its own: write source=lambda: ...; got {type(source).__name__}"
            )
        numbers = {name: options.get(name, getattr(cls, name)) for name in _NUMBERS}
        try:
            MessageOptions(**numbers, dead_letters=BROKER)  # those of this call are made in each task
            refuse_unrun("decode", options.get("decode", cls.decode), DECODE_FIX)
        except AckerError as error:
            raise TopologyError(f"{cls.__name__}.spec: {error}") from None
        own: dict[str, Any] = {**(config or {}), _OPTIONS: options}
        if source is not None:
            own[_SOURCE] = source
        return ComponentSpec(cls, name=name, par=par, executors=executors, config=own)

    def source(self) -> Source:
        """Return a new source, for one task."""
        raise NotImplementedError(f"{type(self).__name__} has no source(); override it, or use spec(source=...)")

    def decode(self, body: bytes) -> Any:
        """Return the value of a body. A message for which it raises becomes a dead letter, if there is a place."""
        return body

    def dead_letters(self) -> Publisher | str | None:
        """Return a new publisher for dead letters, "broker", or None."""
        return None

    def values(self, value: Any, delivery: Delivery) -> Sequence[Any]:
        """Return the values to emit for a message."""
        return [value, delivery.key, delivery.headers]

    def initialize(self, conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """Start the I/O thread. A subclass that overrides it has to call it."""
        super().initialize(conf, context)
        options = conf.get(_OPTIONS, {})
        make_source = conf.get(_SOURCE, self.source)
        self._decode = decoder_of(options.get("decode", self.decode))
        dead_letters = options.get("dead_letters", self.dead_letters)
        self._message_options = MessageOptions(
            **{name: options.get(name, getattr(self, name)) for name in _NUMBERS},
            dead_letters=dead_letters() if callable(dead_letters) else dead_letters,
        )
        self._use_options(self._message_options)
        source = make_source()
        self._origin = source.origin
        self._message_store = MessageStore(
            source.name,
            self._message_options,
            self.logger,
            redelivers=source.redelivers,
            on_dead_letter=None if self._on_dead_letter is None else self._show_dead_letter,
        )
        self._inbox: deque[tuple[int, Reason | None, bool]] = deque()  # how messages have ended
        self._io_thread = IoThread(source, self._message_store, self._message_options, self.logger, self._turn)
        self._reported = dict.fromkeys((*_SHOWN, "reconnects"), 0)
        self._io_thread.start()

    def next_tuple(self) -> None:
        """Emit one message that has arrived."""
        try:
            attempt = self._message_store.take(0)
        except queue.Empty:
            return
        if attempt is None:
            return
        delivery = attempt.delivery
        try:
            value = self._decode(delivery.value)
            if (refusal := unrun_error("decode", value, DECODE_FIX)) is not None:
                raise refusal
            values = self.values(value, delivery)
        except Exception as error:  # noqa: BLE001 - whatever a decoder raises is the message's fault
            text = f"the body cannot be decoded: {exception_text(error)}"
            reason = Reason(ReasonKind.FAILED, self.component_name, self.task_id, text, attempt.number)
            self._post(attempt.message_id, reason, is_final=True)
            return
        self.emit(values, tup_id=self._tup_id(attempt))

    def ack(self, tup_id: Any) -> None:
        """Let the broker have the ack."""
        self._post(tup_id, None)

    def fail(self, tup_id: Any, reason: Reason | None = None) -> None:
        """Try the message again later, or give it up."""
        self._post(tup_id, Reason(ReasonKind.FAILED) if reason is None else reason)

    def keep_alive(self) -> None:
        """Show what the I/O thread counts."""
        counts = {name: getattr(self._message_store.counts, name) for name in _SHOWN}
        for name, value in {**counts, "reconnects": self._io_thread.reconnects}.items():
            if value != self._reported[name]:
                self._collector.count(name, value - self._reported[name])
                self._reported[name] = value

    def close(self) -> None:
        """Give back what is not done, and disconnect. A subclass that overrides it has to call it."""
        if "_io_thread" in vars(self):
            # No outcome of these will come: `next_tuple` raised before it emitted them, or the topology gave them up.
            for attempt in self._message_store.oldest():
                self._post(attempt.message_id, Reason(ReasonKind.SHUTDOWN))
            self._io_thread.stop()
            self._io_thread.join()
            self.keep_alive()
        super().close()

    def _tup_id(self, attempt: Attempt) -> Any:
        return MessageNumber.of(attempt)

    def _show_dead_letter(self, attempt: Attempt) -> None:
        assert self._on_dead_letter is not None and attempt.reason is not None
        self._on_dead_letter(MessageNumber.of(attempt), attempt.delivery, attempt.reason)

    @property
    def _away(self) -> tuple[str, float, str] | None:
        away = self._io_thread.away if "_io_thread" in vars(self) else None
        return None if away is None else (self._message_store.name, *away)

    @property
    def _no_replay(self) -> str | None:
        return why_no_replay(self._message_options) if "_io_thread" in vars(self) else None

    def _use_options(self, options: MessageOptions) -> None:
        """Take the options, before the source connects."""

    def _post(self, message_id: int, reason: Reason | None, *, is_final: bool = False) -> None:
        """Let the I/O thread know how a message has ended."""
        self._inbox.append((message_id, reason, is_final))
        self._io_thread.wake()

    def _turn(self) -> float:
        for _ in range(len(self._inbox)):
            message_id, reason, is_final = self._inbox.popleft()
            self._message_store.end(message_id, reason, is_final=is_final)
        return _TURN_SECS
