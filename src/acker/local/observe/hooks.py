"""What a program may watch: each emit, execute, ack and fail, as it happens, on the thread where it happens."""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from acker.errors import ArgumentTypeError
from acker.topology.reasons import Reason
from acker.topology.tuples import Tuple


class Hook:
    """Base of hooks: does nothing. Override what you want to see, after Storm's ITaskHook.

    One that a runtime is given hears of all tasks; one that a component adds by `add_task_hook` hears of that task. A
    hook runs inside the executor that it watches, or in the thread of a user's own that emits, acks or fails, so it
    should be quick. What it raises counts as raised by the component.
    """

    def prepare(self, component: str, task: int, conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """See a task that begins, before its `initialize`, and what that will be given."""

    def cleanup(self, component: str, task: int) -> None:
        """See a task that has ended, after its `close`."""

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


def check_hook(hook: object) -> None:
    """Refuse what is no hook, or one with a method that would be called and never run.

    Raises
    ------
    ArgumentTypeError
    """
    if isinstance(hook, type):
        raise ArgumentTypeError(f"hooks: expected instances, got the class {hook.__name__}: call it")
    if not isinstance(hook, Hook):
        raise ArgumentTypeError(f"hooks: expected instances of classes that derive from Hook, got {hook!r}")
    for name, base in vars(Hook).items():
        method = getattr(hook, name)
        if not inspect.isfunction(base) or name.startswith("_"):
            continue
        if inspect.iscoroutinefunction(method) or inspect.isgeneratorfunction(method):
            kind = type(hook).__name__
            raise ArgumentTypeError(f"hooks: {kind}.{name} is `async def` or has a yield: it would never run")
