"""Hooks, which a runtime calls at each emit, execute, ack and fail, on the thread where it happens."""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from acker.errors import ArgumentTypeError
from acker.observe.reasons import Reason
from acker.topology.tuples import Tuple


class Hook:
    """Base of hooks, like Storm's ITaskHook; override the methods that you need.

    A hook given to a runtime sees all tasks; one added by a component's `add_task_hook` sees that task. It runs on the
    thread of the executor, or on your own thread that emits, acks or fails, so it should be quick. An exception of a
    hook counts as one of the component.
    """

    def prepare(self, component: str, task: int, conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """See a task that starts, before its `initialize`, and the arguments of that."""

    def cleanup(self, component: str, task: int) -> None:
        """See a task that has ended, after its `close`."""

    def emit(self, component: str, task: int, stream: str, values: tuple[object, ...], tasks: Sequence[int]) -> None:
        """See a tuple that was emitted, and the tasks that receive it."""

    def execute(self, component: str, task: int, tup: Tuple) -> None:
        """See a tuple after `process` returned."""

    def ack(self, component: str, task: int, tup: Tuple) -> None:
        """See a tuple that a bolt acked."""

    def fail(self, component: str, task: int, tup: Tuple, reason: Reason) -> None:
        """See a tuple that a bolt failed."""

    def spout_ack(self, component: str, task: int, tup_id: Hashable, complete_ms: int) -> None:
        """See a tracked tuple whose tree is complete, and how long that took."""

    def spout_fail(self, component: str, task: int, tup_id: Hashable, reason: Reason) -> None:
        """See a tracked tuple whose tree failed, timed out or was rejected, and why."""


def check_hook(hook: object) -> None:
    """Refuse anything that is no hook, and hooks with a method whose call would run nothing.

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
            raise ArgumentTypeError(f"hooks: {kind}.{name} is `async def` or has a yield: a call would run nothing")
