"""What a program may watch: each emit, execute, ack and fail, as it happens, on the thread where it happens."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from acker.topology.reasons import Reason
from acker.topology.tuples import Tuple


class Hook:
    """Base of hooks: does nothing. Override what you want to see, after Storm's ITaskHook.

    A hook runs inside the executor that it watches, or in the thread of a user's own that emits, acks or fails, so it
    should be quick. What it raises counts as raised by the component.
    """

    def emit(self, component: str, task: int, stream: str, values: tuple[object, ...], tasks: Sequence[int]) -> None:
        """See a tuple that was emitted, and to which tasks."""

    def execute(self, component: str, task: int, tup: Tuple) -> None:
        """See a tuple after `process` returned."""

    def ack(self, component: str, task: int, tup: Tuple) -> None:
        """See a tuple that a bolt acked."""

    def fail(self, component: str, task: int, tup: Tuple, reason: Reason) -> None:
        """See a tuple that a bolt failed."""

    def spout_ack(self, component: str, task: int, tup_id: Hashable, complete_ms: int) -> None:
        """See a tracked tuple whose tree is finished, and how long that took."""

    def spout_fail(self, component: str, task: int, tup_id: Hashable, reason: Reason) -> None:
        """See a tracked tuple whose tree failed, timed out or was rejected, and why."""
