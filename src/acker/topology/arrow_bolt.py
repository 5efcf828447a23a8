"""ArrowBolt: a bolt that processes rows as Arrow batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from acker.errors import TopologyError
from acker.observe.reasons import Reason
from acker.topology.bolt import Bolt
from acker.topology.tuples import Tuple

if TYPE_CHECKING:
    import pyarrow as pa

    Columns = pa.RecordBatch | pa.Table | Mapping[str, Any]


class ArrowBolt(Bolt):
    """A bolt that gets the rows that are there as one Arrow batch. Override `process_rows`; needs pyarrow.

    Its input may be emitted row by row, or in batches, and so may be read what it emits. All rows that it did not fail
    are acked when `process_rows` returns.

    Attributes
    ----------
    auto_anchor : bool
        False: what `emit_batch` emits without `parents` joins no tree.
    auto_fail : bool
        False: an exception of `process_rows` restarts the topology.
    finds_bad_rows : bool
        If `process_rows` raises, call it again for parts of the batch until the bad rows are found, which fail alone.
        What it emitted in a call that raised is dropped. Other effects are not, so a bolt with `self.state` always
        fails the whole batch: let it call `fail_rows`.
    """

    finds_bad_rows: bool = True

    # The runtime acks whole batches.
    _settles_itself: ClassVar[bool] = True

    def process_rows(self, batch: pa.RecordBatch) -> Any:
        """Process some rows.

        Parameters
        ----------
        batch : pyarrow.RecordBatch
            At least one row of one input stream, with its fields; at most topology.arrow.batch.rows.
        """
        raise NotImplementedError(f"{type(self).__name__} has no process_rows()")

    def process(self, tup: Tuple) -> None:
        """Do not override it: rows come to `process_rows`."""
        raise NotImplementedError(f"{type(self).__name__} processes {tup!r} by process_rows()")

    def emit_batch(
        self, columns: Columns, parents: Any = None, stream: str | None = None, direct_task: int | None = None
    ) -> None:
        """Emit rows.

        Parameters
        ----------
        columns : RecordBatch, Table, or dict of field to array-like
            The fields of the stream. If `outputs` gives no types, those of the first batch count.
        parents : integers or lists of integers, optional
            The row of the batch (0-based) from which each row derives; a list anchors it to several, null or an empty
            list to none. By default row i derives from row i, so there are as many.
        stream : str, optional
            "default" when left out.
        direct_task : int, optional
            The task that receives the rows; for direct streams only.

        Raises
        ------
        TopologyError
            A column is missing or has another type, the numbers of rows differ, or a parent is no row of the batch or
            has failed. The text names component, stream, field and row.
        """
        self._collector.emit_batch(columns, parents, stream, direct_task)

    def fail_rows(self, rows: Any, reason: str | BaseException | Reason | Sequence[Any] | None = None) -> None:
        """Fail some rows of the batch; the others are acked when `process_rows` returns.

        Parameters
        ----------
        rows : array-like of int or of bool
            The rows, 0-based, or a mask of all rows; null in a mask is false. No row may be a parent of what was
            emitted.
        reason : str, exception or Reason, or a sequence of one for each of these rows, optional
            Passed to the spout.
        """
        self._collector.fail_rows(rows, reason)

    def emit(
        self,
        tup: Sequence[Any],
        stream: str | None = None,
        anchors: Iterable[Tuple] | None = None,
        direct_task: int | None = None,
        need_task_ids: bool = False,
    ) -> list[int] | None:
        """Emit one tuple without an anchor, in `process_tick`, `activate` or `deactivate`; see `Bolt.emit`."""
        if self._collector.is_in_batch and anchors is None:
            raise TopologyError(
                f"{self.component_name}: emit() in process_rows: which row it derives from is unknown; write "
                "emit_batch(columns, parents=...), or anchors=[] for none"
            )
        return super().emit(tup, stream, () if anchors is None else anchors, direct_task, need_task_ids)
