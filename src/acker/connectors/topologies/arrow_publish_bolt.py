"""A bolt that publishes the rows of batches: a row is acked when the broker has confirmed its message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from acker.connectors.publisher import Outgoing, Publisher
from acker.connectors.topologies.publish_bolt import PublishingBolt, to_bytes
from acker.errors import AckerError, TopologyError
from acker.topology.arrow_bolt import ArrowBolt

if TYPE_CHECKING:
    import pyarrow as pa

# The most messages of one call of the publisher.
_BATCH_MAX: Final = 500
_COLUMNS: Final = ("value", "key", "headers", "to")


class ArrowPublishBolt(ArrowBolt, PublishingBolt):
    """Publishes the rows of a batch, and waits until the broker has answered for all of them.

    A row whose message is not confirmed fails, and with it its tree; the spout tries again. So a message can be
    published twice. Needs pyarrow.

    Use `spec` with a function that makes the publisher; or derive a class and override `publisher` and `messages`.
    """

    def messages(self, batch: pa.RecordBatch) -> Sequence[Outgoing]:
        """Return the message of each row.

        By default the column ``value`` has the bodies: bytes, a str, or else what becomes JSON. The columns ``key``,
        ``headers`` and ``to`` are used where the batch has them. Rows for which this raises fail alone.
        """
        names = batch.schema.names
        if "value" not in names:
            raise TopologyError(
                f"{self.component_name}: its rows have the columns {names}, and none is named 'value'; name one so, or"
                " override messages(self, batch)"
            )
        rows = batch.num_rows
        columns = (batch.column(name).to_pylist() if name in names else [None] * rows for name in _COLUMNS)
        return [
            Outgoing(to_bytes(value), None if key is None else to_bytes(key), dict(headers or {}), to)
            for value, key, headers, to in zip(*columns, strict=True)
        ]

    def initialize(self, conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """Connect. A subclass that overrides it has to call it."""
        super().initialize(conf, context)
        self._publisher: Publisher = self._make_publisher(conf)
        self._publisher.open()

    def process_rows(self, batch: pa.RecordBatch) -> None:
        """Publish the rows, and fail those that are not confirmed."""
        # All messages first: if this raises, nothing was published that the search for the bad rows would repeat.
        messages = list(self.messages(batch))
        if len(messages) != batch.num_rows:
            raise TopologyError(f"messages() returned {len(messages)} messages for {batch.num_rows} rows")
        refusals: list[BaseException | None] = []
        for begin in range(0, len(messages), _BATCH_MAX):
            refusals += self._publish(messages[begin : begin + _BATCH_MAX])
        refused = {row: refusal for row, refusal in enumerate(refusals) if refusal is not None}
        if refused:
            self.report_metric("unconfirmed", len(refused))
            self.fail_rows(list(refused), list(refused.values()))

    def _publish(self, messages: Sequence[Outgoing]) -> list[BaseException | None]:
        """Return what the broker answers to each message; whatever the publisher raises is the answer to all."""
        try:
            refusals: list[BaseException | None] = list(self._publisher.publish(messages))
            if len(refusals) != len(messages):
                raise ValueError(f"{len(refusals)} answers to {len(messages)} messages")
        except Exception as error:
            if not isinstance(error, AckerError):
                self.logger.exception("%s failed", self._publisher.name)
            return [error] * len(messages)
        return refusals

    def close(self) -> None:
        """Disconnect. A subclass that overrides it has to call it."""
        if "_publisher" in vars(self):
            self._publisher.close()
        super().close()
