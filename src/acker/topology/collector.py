"""Collectors: the interface through which a component talks to its runtime."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from acker.observe.reasons import Reason
from acker.topology.tuples import Tuple


class Collector(Protocol):
    """The runtime as any task sees it."""

    def now_ms(self) -> int:
        """Return the time of the runtime's monotonic clock in milliseconds."""

    def wall_ms(self) -> int:
        """Return the time of day by the runtime's clock, in milliseconds since 1970, UTC."""

    def count(self, name: str, n: int = 1) -> None:
        """Add to a counter that the component defines."""

    def add_hook(self, hook: Any) -> None:
        """Add a hook that sees what the task does."""


class SpoutCollector(Collector, Protocol):
    """The runtime as a spout task sees it."""

    def emit(
        self,
        tup: Sequence[Any],
        tup_id: Any = None,
        stream: str | None = None,
        direct_task: int | None = None,
        need_task_ids: bool = False,
    ) -> list[int] | None:
        """Emit; with a tup_id, track the tree and report its outcome by `Spout.ack` or `Spout.fail`."""

    def emit_again(
        self, tup: Sequence[Any], tup_id: Any, stream: str | None = None, direct_task: int | None = None
    ) -> None:
        """Emit the next attempt of a tuple."""

    def leaves_out(self, tup: Any, tup_id: Any) -> bool:
        """Return whether `emit` leaves a tuple out, since it came in an earlier run and has not ended for the spout."""


class BoltCollector(Collector, Protocol):
    """The runtime as a bolt task sees it.

    Attributes
    ----------
    inputs : tuple of Tuple
        The default anchors of an emission, if the bolt has auto_anchor.
    """

    inputs: tuple[Tuple, ...]

    def emit(
        self,
        tup: Sequence[Any],
        stream: str | None = None,
        anchors: Iterable[Tuple] | None = None,
        direct_task: int | None = None,
        need_task_ids: bool = False,
    ) -> list[int] | None:
        """Emit, anchored to `anchors`; None: to `inputs`, if the bolt has auto_anchor."""

    def ack(self, tup: Tuple) -> None:
        """Ack an input of this bolt."""

    def fail(self, tup: Tuple, reason: str | BaseException | Reason | None) -> None:
        """Fail the trees of an input of this bolt."""

    def reset_timeout(self, tup: Tuple) -> None:
        """Give the trees of an input more time."""
