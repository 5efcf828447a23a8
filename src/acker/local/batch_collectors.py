"""The collector of an ArrowBolt, which emits, acks and fails rows as columns.

Outputs of `process_rows` are held back until it returns: if it raises, they are dropped, and it is called again for
parts of its batch. Each delivery of an output row has a tuple id for each pair of a parent and a tree, as each delivery
of a tuple has for each anchor. These ids are new, but for the last one below each input: that is chosen so that their
xor is the input's own id. So an input that has led to anything needs no OK.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from acker._flow import Route, output_ids, xor_at
from acker.errors import ArgumentTypeError, ArgumentValueError, RuntimeStateError, TopologyError
from acker.local.batch_routes import ALL_ROWS, BatchRoute, TaskRows
from acker.local.collectors import LocalBoltCollector
from acker.observe.reasons import Reason
from acker.topology.anchors import Anchors, Int64s, Parents, by_row, spread, starts_of
from acker.topology.arrow_columns import read_parents
from acker.topology.bad_rows import RowFault
from acker.topology.tuple_batch import TupleBatch, value_rows

if TYPE_CHECKING:
    import pyarrow as pa


class Emission(NamedTuple):
    """Rows that a call of `process_rows` has emitted; without `parents` they join no tree."""

    route: Route
    columns: pa.RecordBatch
    parents: Parents | None
    parts: list[TaskRows]


class _Edges(NamedTuple):
    """The pairs of an output row of one task and a tree of one of its parents.

    Attributes
    ----------
    anchor : (k,) int64
        Which of the ids of the input batch is that of the parent in the tree.
    output : (k,) int64, or None
        The output row; None: each has one edge, in their order.
    """

    anchor: Int64s
    output: Int64s | None


_NO_EDGES: Final = _Edges(np.empty(0, np.int64), None)


class BatchCall:
    """What one call of `process_rows` does with its rows.

    Parameters
    ----------
    batch : TupleBatch
        The input rows.

    Attributes
    ----------
    faults : dict of int to RowFault
        The rows for which user code raised, where the bolt calls it for one row alone.
    sole_parent : int or None
        The row to which everything is anchored that is emitted now.
    """

    def __init__(self, batch: TupleBatch) -> None:
        rows = len(batch)
        self.batch = batch
        self.rows = rows
        self.emissions: list[Emission] = []
        self.failed: dict[int, Any] = {}
        self.faults: dict[int, RowFault] = {}
        self.sole_parent: int | None = None
        # The rows that user code was given, if not all: it counts in them.
        self._given: Int64s | None = None
        self._mark = 0
        self._is_failed = np.zeros(rows, bool)
        self._is_parent = np.zeros(0, bool)
        self._new_parents: list[Int64s] = []  # that are not in `_is_parent` yet: most calls fail no row

    def give(self, rows: Int64s | None) -> None:
        """Take note that user code is given some of the rows; None: all."""
        self._given = rows

    @property
    def given_count(self) -> int:
        """How many rows user code was given."""
        return self.rows if self._given is None else self._given.size

    def place(self, rows: Int64s) -> Int64s:
        """Return where rows that user code was given are in the batch."""
        return rows if self._given is None else self._given[rows]

    def anchor_to(self, row: int) -> None:
        """Anchor what is emitted from now on to one row, until `release`."""
        self.sole_parent, self._mark = row, len(self.emissions)

    def undo(self) -> None:
        """Drop what was emitted since `anchor_to`."""
        del self.emissions[self._mark :]

    def release(self) -> None:
        """End what `anchor_to` has begun."""
        self.sole_parent = None

    def add(self, emission: Emission) -> None:
        """Add rows; refuse those with a parent that has failed."""
        if emission.parents is not None:
            bad = np.flatnonzero(self._is_failed[emission.parents.row]) if self.failed else _NO_EDGES.anchor
            if bad.size:
                output, row = int(emission.parents.output[bad[0]]), int(emission.parents.row[bad[0]])
                raise ArgumentValueError(f"parents: input row {row} has failed and is a parent of output row {output}")
            if self.sole_parent is None:  # else it may still fail
                self._new_parents.append(emission.parents.row)
        self.emissions.append(emission)

    def fail(self, rows: Any, reason: Any) -> None:
        """Fail rows; refuse those that are parents."""
        found = self.place(self._rows_of(rows))
        if isinstance(reason, Sequence) and not isinstance(reason, str):
            if len(reason) != found.size:
                raise ArgumentValueError(f"fail_rows: {len(reason)} reasons for {found.size} rows")
            reasons = list(reason)
        else:
            reasons = [reason] * found.size
        parents = self._parents_among(found)
        if parents.size:
            raise ArgumentValueError(f"fail_rows: row {parents[0]} is a parent of what was emitted")
        self._is_failed[found] = True
        self.failed.update(zip(found.tolist(), reasons, strict=True))

    def _parents_among(self, rows: Int64s) -> Int64s:
        if self._new_parents:
            if not self._is_parent.size:
                self._is_parent = np.zeros_like(self._is_failed)
            for new in self._new_parents:
                self._is_parent[new] = True
            self._new_parents.clear()
        return rows[self._is_parent[rows]] if self._is_parent.size else rows[:0]

    def _rows_of(self, rows: Any) -> Int64s:
        import pyarrow as pa

        if isinstance(rows, (pa.Array, pa.ChunkedArray)):
            if pa.types.is_boolean(rows.type) and rows.null_count:
                rows = pa.array([bool(each) for each in rows.to_pylist()])
            rows = rows.to_numpy(zero_copy_only=False) if isinstance(rows, pa.Array) else rows.to_numpy()
        found = np.atleast_1d(np.asarray(rows))
        if found.dtype == bool:
            if found.size != self.given_count:
                raise ArgumentValueError(f"fail_rows: a mask of {found.size} for {self.given_count} rows")
            return np.flatnonzero(found)
        if found.size and found.dtype.kind not in "iu":
            raise ArgumentTypeError(f"fail_rows: expected rows or a mask, got {found.dtype}")
        found = found.astype(np.int64)
        bad = found[(found < 0) | (found >= self.given_count)]
        if bad.size:
            raise ArgumentValueError(f"fail_rows: there is no row {bad[0]}, the batch has {self.given_count} rows")
        return found


class ArrowBoltCollector(LocalBoltCollector):
    """Collector of one task of an ArrowBolt."""

    def __init__(self, *arguments: Any, auto_anchor: bool, **options: Any) -> None:
        super().__init__(*arguments, auto_anchor=False, **options)
        self._anchors = auto_anchor
        self._call: BatchCall | None = None

    @property
    def is_in_batch(self) -> bool:
        """Whether a batch is being processed."""
        return self._call is not None

    def begin(self, batch: TupleBatch) -> BatchCall:
        """Begin a call of `process_rows`."""
        self._call = BatchCall(batch)
        return self._call

    @property
    def rows(self) -> TupleBatch:
        """The rows that are being processed."""
        assert self._call is not None
        return self._call.batch

    def give(self, rows: Int64s | None) -> None:
        """Take note that user code is given some rows of the batch; None: all."""
        assert self._call is not None
        self._call.give(rows)

    def anchor_to(self, row: int) -> BatchCall:
        """Anchor what is emitted from now on to one row of the batch; return the call, which ends that."""
        assert self._call is not None
        self._call.anchor_to(row)
        return self._call

    def end(self) -> None:
        """End the call of `process_rows`."""
        self._call = None

    def emit_batch(self, columns: Any, parents: Any, stream: str | None, direct_task: int | None) -> None:
        """Emit rows: at once if no batch is being processed, else when `process_rows` has returned."""
        self._check_thread("emit_batch")
        route = self.route_for(stream)
        batches: BatchRoute = route.batches
        read = batches.read(columns)
        direct = self.direct_outlet(route, direct_task)
        call = self._call
        if call is None and parents is not None:
            raise TopologyError(f"{batches.where}: parents: no batch is being processed")
        try:
            pairs = None if call is None else self._parents_of(parents, read.num_rows, call)
            emission = Emission(route, read, pairs, batches.split(read, direct))
            if call is None:
                self._send(emission, [TupleBatch(route.source, part.columns) for part in emission.parts])
            else:
                call.add(emission)
        except (ArgumentTypeError, ArgumentValueError) as error:
            raise TopologyError(f"{batches.where}: {error}") from None

    def _parents_of(self, parents: Any, outputs: int, call: BatchCall) -> Parents | None:
        if call.sole_parent is not None:
            if parents is not None:
                raise ArgumentValueError("parents: the rows of a window were acked before; leave it out")
            outputs_of_one = np.arange(outputs if self._anchors else 0)
            return Parents(outputs_of_one, np.full(outputs_of_one.size, call.sole_parent))
        if parents is not None:
            read = read_parents(parents, outputs, call.given_count, "parents")
            return Parents(read.output, call.place(read.row))
        if not self._anchors:
            return None
        if outputs != call.given_count:
            raise ArgumentValueError(
                f"{outputs} rows for a batch of {call.given_count} rows; write parents=... for their rows"
            )
        same = np.arange(outputs)
        return Parents(same, call.place(same))

    def fail_rows(self, rows: Any, reason: Any) -> None:
        """Fail rows of the batch that is being processed."""
        self._check_thread("fail_rows")
        if self._call is None:
            raise TopologyError(f"{self.component}: fail_rows outside of process_rows")
        if self._call.sole_parent is not None:
            raise TopologyError(f"{self.component}: fail_rows: the rows of a window were acked before; raise instead")
        if hasattr(reason, "__array__"):  # a column is no Sequence
            reason = np.asarray(reason).tolist()
        if not isinstance(reason, Sequence) or isinstance(reason, str):
            reason = self._reason_of(reason)
        else:
            reason = [self._reason_of(each) for each in reason]
        try:
            self._call.fail(rows, reason)
        except (ArgumentTypeError, ArgumentValueError) as error:
            raise TopologyError(f"{self.component}: {error}") from None

    def _check_thread(self, what: str) -> None:
        if not self.on_executor_thread:
            raise RuntimeStateError(
                f"{self.component}: {what} from another thread; call it in process_rows(), process_tick() or activate()"
            )

    def deliver(self, call: BatchCall, batch: TupleBatch, left: Int64s) -> None:
        """Send what a call of `process_rows` has emitted.

        Parameters
        ----------
        call : BatchCall
        batch : TupleBatch
            Its rows.
        left : (m,) int64
            The tuple ids of the rows; becomes what their OKs have to say, of those that emitted anything 0.
        """
        if self._sampler is None and _goes_on(call, batch):
            (emission,) = call.emissions
            source, columns = emission.route.source, emission.columns
            self._send(emission, [TupleBatch(source, columns, batch.root_ids, batch.tuple_ids)])
            left[:] = 0
            return
        edges = [_edges_of(part, emission, batch) for emission in call.emissions for part in emission.parts]
        anchor = edges[0].anchor if len(edges) == 1 else np.concatenate([_NO_EDGES.anchor, *(e.anchor for e in edges)])
        ids = self._ids_of_outputs(left, anchor)
        begin, remaining = 0, iter(edges)
        for emission in call.emissions:
            sent = []
            for part in emission.parts:
                of_part = next(remaining)
                end = begin + of_part.anchor.size
                sent.append(_joined(part.columns, emission.route.source, of_part, batch, ids[begin:end]))
                begin = end
            self._send(emission, sent)

    def _ids_of_outputs(self, left: Int64s, anchor: Int64s) -> Int64s:
        if self._sampler is None:
            return output_ids(left, anchor, self.take_ids)
        # A trace knows the tuples of a tree by their ids, so the outputs get none that an input has.
        ids = self.take_ids(anchor.size)
        xor_at(left, anchor, ids)
        return ids

    def _send(self, emission: Emission, sent: Sequence[TupleBatch]) -> None:
        route, columns, _, parts = emission
        for part, rows in zip(parts, sent, strict=True):
            self.output.put_batches([(part.outlet, rows)])
            if self._sampler is not None and rows.root_ids is not None:
                self._sampler.record_rows(rows.anchors(), part.outlet.task, self.component)
        route.emitted += columns.num_rows
        if self._hooks:
            self._tell_emits(route, columns, parts)

    def settle(self, batch: TupleBatch, left: Int64s, failed: dict[int, Reason]) -> None:
        """Ack the rows of a batch, without those that failed; `left` is what their OKs have to say."""
        if batch.root_ids is not None:
            self._settle_trees(batch, batch.root_ids, left, failed)
        self.acked += len(batch) - len(failed)
        self.failed += len(failed)
        if self.has_observers:
            self._tell_settled(batch, batch.anchors(), failed)

    def _settle_trees(self, batch: TupleBatch, root_ids: Int64s, left: Int64s, failed: dict[int, Reason]) -> None:
        if not failed:
            self.ack_sender.ack_rows(root_ids, left)
            return
        anchors = batch.anchors()
        is_failed = np.zeros(len(batch), bool)
        is_failed[list(failed)] = True
        good = ~is_failed[anchors.row_of_each()]
        self.ack_sender.ack_rows(root_ids[good], left[good])
        for row, reason in failed.items():
            self.ack_sender.fail(root_ids[batch.bounds(row, row + 1)].tolist(), reason)

    def _tell_settled(self, batch: TupleBatch, anchors: Anchors, failed: dict[int, Reason]) -> None:
        if self._sampler is not None:
            self._sampler.record_settled_rows(anchors, failed)
        if self._hooks:
            for row, tup in enumerate(batch.tuples()):
                self._on_execute(tup)
                for hook in self._hooks:
                    if row in failed:
                        hook.fail(self.component, self.task, tup, failed[row])
                    else:
                        hook.ack(self.component, self.task, tup)

    def _tell_emits(self, route: Route, columns: pa.RecordBatch, parts: Sequence[TaskRows]) -> None:
        receivers: list[list[int]] = [[] for _ in range(columns.num_rows)]
        for part in parts:
            for row in np.arange(columns.num_rows)[part.rows].tolist():
                receivers[row].append(part.outlet.task)
        for row, tasks in zip(value_rows(columns), receivers, strict=True):
            for hook in self._hooks:
                hook.emit(self.component, self.task, route.source.stream, route.source.make_values(row), tasks)


def _of_rows(parents: Parents, rows: slice | Int64s, outputs: int) -> Parents:
    """Return the parents of some output rows, which come in the order of `rows`."""
    if isinstance(rows, slice) and rows == ALL_ROWS:
        return parents
    chosen = np.arange(outputs)[rows]
    counts = np.bincount(parents.output, minlength=outputs)
    taken = counts[chosen]
    row = parents.row[spread(starts_of(counts)[chosen], taken)]
    return Parents(np.repeat(np.arange(chosen.size), taken), row)


def _edges_of(part: TaskRows, emission: Emission, batch: TupleBatch) -> _Edges:
    """Return the edges of the rows of one task."""
    parents = emission.parents
    if parents is None or batch.root_ids is None or not parents.row.size:
        return _NO_EDGES
    outputs = emission.columns.num_rows
    is_simple = parents.row.size == outputs and (parents.output is parents.row or _are_all(parents.output, outputs))
    if batch.starts is None and is_simple:
        return _Edges(parents.row[part.rows], None)
    pairs = _of_rows(parents, part.rows, outputs)
    starts = batch.anchors().starts
    counts = np.diff(starts)[pairs.row]
    return _Edges(spread(starts[pairs.row], counts), np.repeat(pairs.output, counts))


def _goes_on(call: BatchCall, batch: TupleBatch) -> bool:
    """Return whether each row has one output, for the same task, so that it is the same tuple for an acker."""
    if batch.root_ids is None or batch.starts is not None or len(call.emissions) != 1:
        return False
    ((_, _, parents, parts),) = call.emissions
    if parents is None or parents.output is not parents.row or len(parts) != 1:
        return False
    rows = parts[0].rows
    return isinstance(rows, slice) and rows == ALL_ROWS and parents.row.size == len(batch)


def _are_all(rows: Int64s, count: int) -> bool:
    """Return whether rows are 0, 1, 2 and so on."""
    return bool((rows == np.arange(count)).all())


def _joined(columns: pa.RecordBatch, source: Any, edges: _Edges, batch: TupleBatch, ids: Int64s) -> TupleBatch:
    """Return rows in the trees of their parents."""
    if batch.root_ids is None or not edges.anchor.size:
        return TupleBatch(source, columns)
    root_ids = batch.root_ids[edges.anchor]
    if edges.output is None:
        return TupleBatch(source, columns, root_ids, ids)
    return TupleBatch.of_anchors(source, columns, by_row(edges.output, root_ids, ids, columns.num_rows))
