"""A bolt that publishes: its tuple is acked when the broker has confirmed the message."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from acker.connectors.publisher import Outgoing, Publisher
from acker.errors import AckerError, PublishError, RuntimeStateError, TopologyError, TupleStateError
from acker.topology.bolt import Bolt
from acker.topology.specs import ComponentSpec
from acker.topology.tuples import Tuple

_PUBLISHER: Final = "user.acker.publisher"
# The most messages of one call of the publisher, and how many may wait for the next one.
_BATCH_MAX: Final = 500
_WAITING_MAX: Final = 2000
_PUT_SECS: Final = 10.0
_CLOSE_SECS: Final = 5.0


class PublishingBolt(Bolt):
    """A bolt with a publisher in each task, which `spec` or the method `publisher` makes."""

    @classmethod
    def spec(
        cls,
        name: str | None = None,
        inputs: Any = None,
        par: int | Mapping[str, int] | None = None,
        config: Mapping[str, Any] | None = None,
        executors: int | None = None,
        *,
        publisher: Callable[[], Publisher] | None = None,
    ) -> ComponentSpec:
        """Return this bolt's place in a topology.

        Parameters
        ----------
        name, inputs, par, config, executors
            See `Bolt.spec`.
        publisher : callable, optional
            Returns a new publisher; called once in each task. By default the method `publisher`.
        """
        if publisher is not None and (not callable(publisher)):
            raise TopologyError(
                f"{cls.__name__}.spec: publisher has to be a function that returns a new publisher, since each task"
                f" needs its own: write publisher=lambda: ...; got {type(publisher).__name__}"
            )
        own: dict[str, Any] = dict(config or {})
        if publisher is not None:
            own[_PUBLISHER] = publisher
        return ComponentSpec(
            cls,
            name=name,
            inputs=inputs,
            par=par,
            executors=executors,
            config=own,
        )

    def publisher(self) -> Publisher:
        """Return a new publisher, for one task."""
        raise NotImplementedError(f"{type(self).__name__} has no publisher(); override it, or use spec(publisher=...)")

    def _make_publisher(self, conf: Mapping[str, Any]) -> Publisher:
        made: Publisher = conf.get(_PUBLISHER, self.publisher)()
        return made


class PublishBolt(PublishingBolt):
    """Publishes each tuple on a thread of the task, and acks it when the broker has confirmed it.

    The thread takes all tuples that wait in one call of the publisher, so batches grow with the load. A tuple whose
    message is not confirmed fails, and with it its tree; the spout tries again. So a message can be published twice.

    Use `spec` with a function that makes the publisher; or derive a class and override `publisher` and `message`.
    """

    auto_ack = False

    def message(self, tup: Tuple) -> Outgoing:
        """Return the message of a tuple.

        By default the field ``value`` is the body: bytes, a str, or else what becomes JSON. The fields ``key``,
        ``headers`` and ``to`` are used where the tuple has them.
        """
        fields: dict[str, Any] = tup.values._asdict()  # type: ignore[attr-defined]
        if "value" not in fields:
            raise TopologyError(
                f"{self.component_name}: tuples of {tup.component} have the fields {list(fields)}, and none is named"
                " 'value'; name one so, or override message(self, tup)"
            )
        key = fields.get("key")
        return Outgoing(
            to_bytes(fields["value"]),
            key=None if key is None else to_bytes(key),
            headers=fields.get("headers") or {},
            to=fields.get("to"),
        )

    def initialize(self, conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """Connect, and start the thread. A subclass that overrides it has to call it."""
        super().initialize(conf, context)
        self._publisher = self._make_publisher(conf)
        self._publisher.open()
        self._is_closing = threading.Event()
        self._waiting: queue.Queue[tuple[Tuple, Outgoing] | None] = queue.Queue(_WAITING_MAX)
        self._thread = threading.Thread(target=self._run, name=f"acker {self._publisher.name}", daemon=True)
        self._thread.start()

    def process(self, tup: Tuple) -> None:
        """Hand a tuple to the thread; wait while it has many. A tuple for which the wait takes too long fails."""
        try:
            self._waiting.put((tup, self.message(tup)), timeout=_PUT_SECS)
        except queue.Full:
            raise PublishError(
                f"{self._publisher.name} has confirmed nothing for {_PUT_SECS:g} s, and {_WAITING_MAX} messages wait"
            ) from None

    def _settle_held(self) -> None:
        """Wait for the confirms, as long as one comes in time."""
        waiting = self._waiting
        with waiting.all_tasks_done:
            while left := waiting.unfinished_tasks:
                waiting.all_tasks_done.wait_for(lambda: waiting.unfinished_tasks == 0, _PUT_SECS)
                if waiting.unfinished_tasks == left:
                    self.logger.error("%s has confirmed nothing for %g s", self._publisher.name, _PUT_SECS)
                    return

    def close(self) -> None:
        """End the thread, after the call of the publisher that it has begun, and disconnect.

        Tuples that still wait are tried again. A subclass that overrides this has to call it.
        """
        if "_thread" in vars(self):
            self._is_closing.set()
            with suppress(queue.Full):  # a full queue wakes the thread, too
                self._waiting.put_nowait(None)
            self._thread.join(_CLOSE_SECS)
            if self._thread.is_alive():
                text = (
                    "%s: no answer within %g s; its thread is left behind, and the tuples that it holds are tried again"
                )
                self.logger.error(text, self._publisher.name, _CLOSE_SECS)
        elif "_publisher" in vars(self):
            self._publisher.close()
        super().close()

    def _run(self) -> None:
        try:
            while not self._is_closing.is_set():
                batch = [self._waiting.get()]
                with suppress(queue.Empty):
                    while len(batch) < _BATCH_MAX:
                        batch.append(self._waiting.get_nowait())
                self._publish([each for each in batch if each is not None])
        finally:
            self._publisher.close()

    def _publish(self, batch: list[tuple[Tuple, Outgoing]]) -> None:
        if not batch:
            return
        answers: list[tuple[tuple[Tuple, Outgoing], BaseException | None]]
        try:
            errors = self._publisher.publish([message for _, message in batch])
            answers = list(zip(batch, errors, strict=True))
        except BaseException as error:
            # Whatever it is, this thread has to go on: without it, all tuples would time out without a word.
            if not isinstance(error, AckerError):
                self.logger.exception("%s failed", self._publisher.name)
            answers = [(each, error) for each in batch]
        for (tup, _), refusal in answers:
            self._settle(tup, refusal)
            self._waiting.task_done()

    def _settle(self, tup: Tuple, refusal: BaseException | None) -> None:
        try:
            if refusal is None:
                self.ack(tup)
            else:
                self.report_metric("unconfirmed")
                self.fail(tup, refusal)
        except (TupleStateError, RuntimeStateError):
            pass  # its tree has ended meanwhile: the topology restarts or stops
        except BaseException:  # of a hook
            self.logger.exception("%s: could not settle %r, which will time out", self.component_name, tup)


def to_bytes(value: Any) -> bytes:
    """Return a value as the body of a message: bytes as they are, text as UTF-8, anything else as JSON."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    return (value if isinstance(value, str) else json.dumps(value)).encode()
