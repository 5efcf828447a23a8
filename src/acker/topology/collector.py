"""Collectors: the interface through which a component talks to its runtime."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from acker.topology.reasons import Reason
from acker.topology.tuples import Tuple


class Collector(Protocol):
    """What a runtime gives to a task, spout or bolt."""

    def now_ms(self) -> int:
        """Return the milliseconds of the runtime's clock, which never goes back."""

    def count(self, name: str, n: int = 1) -> None:
        """Add to a counter of the user's, shown among those of the component."""

    def add_hook(self, hook: Any) -> None:
        """Let a hook see what the task does."""


class SpoutCollector(Collector, Protocol):
    """What a runtime gives to a spout task."""

    def emit(
        self,
        tup: Sequence[Any],
        tup_id: Any = None,
        stream: str | None = None,
        direct_task: int | None = None,
        need_task_ids: bool = False,
    ) -> list[int] | None:
        """Emit; with a tup_id, track the tree, whose outcome is told by `Spout.ack` or `Spout.fail`."""


class BoltCollector(Collector, Protocol):
    """What a runtime gives to a bolt task.

    Attributes
    ----------
    inputs : tuple of Tuple
        What an emission is anchored to when the bolt names no anchors and has auto_anchor.
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
        """Emit, anchored to `anchors`; None: to `inputs` if the bolt has auto_anchor."""

    def ack(self, tup: Tuple) -> None:
        """Settle an input of this bolt."""

    def fail(self, tup: Tuple, reason: str | BaseException | Reason | None) -> None:
        """Fail the trees of an input of this bolt."""

    def reset_timeout(self, tup: Tuple) -> None:
        """Give the trees of an input more time."""
