"""A spout over any source whose messages are rows of Arrow batches, for ArrowBolts."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

import pyarrow as pa

from acker.connectors.attempts import Attempt
from acker.connectors.source import Delivery, Source
from acker.connectors.topologies.source_spout import SourceSpout
from acker.connectors.unrun import refuse_unrun, unrun_error
from acker.errors import AckerError, TopologyError
from acker.observe.reasons import Reason, ReasonKind, reason_text
from acker.topology.bad_rows import RowFault, fault_of, find_bad_rows
from acker.topology.component import Outputs
from acker.topology.conf import resolve
from acker.topology.specs import ComponentSpec

# A batch that has so many bytes takes no further message.
_BATCH_BYTES: Final = 16_000_000
_FIX: Final = "write decode_rows as a plain function that returns the columns"


class ArrowSourceSpout(SourceSpout):
    """A `SourceSpout` that emits the messages that have arrived as one batch: a column of bodies, and one of keys.

    Each message is acked, tried again or given up by itself, as those of a `SourceSpout` are. Nobody waits to fill a
    batch; it has at most ``topology.arrow.batch.rows`` messages, and about 16 MB. Needs pyarrow.

    To decode, override `decode_rows`, and give `outputs` the types of its columns. The options are those of
    `SourceSpout`, without `decode`.
    """

    outputs: ClassVar[Outputs | None] = {"value": pa.binary(), "key": pa.string()}

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
        """Return this spout's place in a topology; see `SourceSpout.spec`."""
        if "decode" in options:
            raise TopologyError(
                f"{cls.__name__}.spec: decode is for one body; override decode_rows(bodies, deliveries)"
            )
        for unused in ("decode", "values"):
            if getattr(cls, unused) is not getattr(SourceSpout, unused):
                raise TopologyError(
                    f"{cls.__name__}.{unused} is for one message, and nobody would call it; override"
                    " decode_rows(bodies, deliveries)"
                )
        try:
            refuse_unrun("decode_rows", cls.decode_rows, _FIX)
        except AckerError as error:
            raise TopologyError(f"{cls.__name__}.spec: {error}") from None
        return super().spec(name, par, config, executors, source=source, **options)

    def decode_rows(self, bodies: pa.Array[Any], deliveries: Sequence[Delivery]) -> Any:
        """Return the columns of `outputs`, with one row for each message.

        If it raises, it is called again for parts of the batch until the bad messages are found. These become dead
        letters, if there is a place, and the others are emitted.

        Parameters
        ----------
        bodies : pyarrow.BinaryArray
        deliveries : sequence of Delivery
            The same messages, with keys and headers.

        Returns
        -------
        RecordBatch, Table, or dict of field to array-like
        """
        return {"value": bodies, "key": [delivery.key for delivery in deliveries]}

    def initialize(self, conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """Start the I/O thread. A subclass that overrides it has to call it."""
        self._rows_max: int = resolve(conf)["topology.arrow.batch.rows"]
        super().initialize(conf, context)

    def next_tuple(self) -> None:
        """Emit the messages that have arrived."""
        attempts = self._take()
        if not attempts:
            return
        deliveries = [attempt.delivery for attempt in attempts]
        bodies: Any = pa.array([delivery.value for delivery in deliveries], pa.binary())

        def attempt(begin: int, end: int) -> Any:
            try:
                columns = self.decode_rows(bodies[begin:end], deliveries[begin:end])
                if (refusal := unrun_error("decode_rows", columns, _FIX)) is not None:
                    raise refusal
            except MemoryError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever a decoder raises is the fault of messages
                return fault_of(error, reason_text(error))
            return columns

        good, bad = find_bad_rows(attempt, len(attempts), divide=True)
        self._give_up(attempts, bad)
        for begin, end, columns in good:
            rows = _rows_in(columns)
            if rows is not None and rows != end - begin:
                raise TopologyError(
                    f"{self.component_name}: decode_rows returned {rows} rows for {end - begin} messages; return a row"
                    " for each, and raise for a body that has none"
                )
            numbers = pa.array([each.message_id for each in attempts[begin:end]], pa.int64())
            self.emit_batch(columns, tup_ids=numbers)

    def _take(self) -> list[Attempt]:
        """Return the messages that wait, without a wait for further ones."""
        attempts: list[Attempt] = []
        size_bytes = 0
        while len(attempts) < self._rows_max and size_bytes < _BATCH_BYTES:
            try:
                attempt = self._message_store.take(0)
            except queue.Empty:
                break
            if attempt is None:
                break
            attempts.append(attempt)
            size_bytes += len(attempt.delivery.value)
        return attempts

    def _give_up(self, attempts: Sequence[Attempt], bad: Mapping[int, RowFault]) -> None:
        for row, fault in bad.items():
            text = f"the body cannot be decoded: {fault.reason}"
            reason = Reason(ReasonKind.FAILED, self.component_name, self.task_id, text, attempts[row].number)
            self._post(attempts[row].message_id, reason, is_final=True)

    def ack_batch(self, tup_ids: Any) -> None:
        """Let the broker have the acks."""
        self._post_all((number, None) for number in tup_ids.to_pylist())

    def fail_batch(self, tup_ids: Any, reasons: Sequence[Reason]) -> None:
        """Try messages again later, or give them up."""
        self._post_all(zip(tup_ids.to_pylist(), reasons, strict=True))

    def _post_all(self, outcomes: Iterable[tuple[int, Reason | None]]) -> None:
        self._inbox.extend((number, reason, False) for number, reason in outcomes)
        self._io_thread.wake()


def _rows_in(columns: Any) -> int | None:
    """Return the number of rows; None of what is no columns, which `emit_batch` refuses."""
    if isinstance(columns, Mapping):
        return next((len(column) for column in columns.values() if hasattr(column, "__len__")), None)
    return getattr(columns, "num_rows", None)
