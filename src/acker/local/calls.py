"""The calls of user code that tasks run now, with the line where each one stands: read only when somebody asks."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from types import FrameType
from typing import Final

from acker.local.executors.asynchronous import AsyncBoltExecutor, AsyncSpoutExecutor, AsyncSpoutTask
from acker.local.executors.base import ComponentExecutor
from acker.observe.calls import Line, UserCall, stack_of_coroutine, stack_of_frame
from acker.topology.tuples import Tuple

_NS_PER_MS: Final = 1_000_000


def running_calls(executors: Iterable[ComponentExecutor], now_ns: int) -> dict[int, UserCall]:
    """Return the longest call of each task that is inside user code, by task. Any thread may ask.

    Of the tasks of one executor it is the one that is in `process`, which has a tuple. If none is, the call may be of
    any of them: of a tick, a window, `next_tuple`, `initialize` or `close`, which `UserCall.what` names.
    """
    found, frames = {}, sys._current_frames()
    for executor in executors:
        since_ns = executor.step_since_ns
        if since_ns is not None:
            for_ms, stack = max(0, now_ns - since_ns) // _NS_PER_MS, _stack_of(executor, frames)
            collectors = [task.collector for task in executor.tasks]
            inputs: dict[int, tuple[Tuple, ...]] = {each.task: getattr(each, "inputs", ()) for each in collectors}
            for each in [each for each in collectors if inputs[each.task]] or collectors:
                first = next(iter(inputs[each.task]), None)
                what = _method(stack) if first is None else _tuple_of(first)
                root_id = None if first is None else _root_of(first)
                who = f"{each.component}[{each.task}]"
                found[each.task] = UserCall(who, what, for_ms, stack=stack, root_id=root_id)
        if isinstance(executor, AsyncBoltExecutor):
            found |= _coroutines(executor, now_ns)
        elif isinstance(executor, AsyncSpoutExecutor):
            found |= _awaited(executor, now_ns)
    return found


def stacks_of(executors: Iterable[ComponentExecutor], component: str) -> list[tuple[Line, ...]]:
    """Return the stacks of all threads and coroutines that work for a component now. Any thread may ask."""
    found, frames = [], sys._current_frames()
    for executor in executors:
        if executor.tasks[0].collector.component == component:
            if executor.step_since_ns is not None:
                found.append(_stack_of(executor, frames))
            if isinstance(executor, AsyncBoltExecutor):
                found += [stack_of_coroutine(each.get_coro()) for each in executor.running.copy()]
    return found


def _coroutines(executor: AsyncBoltExecutor, now_ns: int) -> dict[int, UserCall]:
    """Return the coroutine of each task that has run longest."""
    found: dict[int, UserCall] = {}
    for coroutine, (task, tup, since_ns) in executor.running.copy().items():
        who = task.collector
        if who.task not in found:
            for_ms, stack = max(0, now_ns - since_ns) // _NS_PER_MS, stack_of_coroutine(coroutine.get_coro())
            name = f"{who.component}[{who.task}]"
            found[who.task] = UserCall(name, _tuple_of(tup), for_ms, stack=stack, root_id=_root_of(tup))
    return found


def _awaited(executor: AsyncSpoutExecutor, now_ns: int) -> dict[int, UserCall]:
    """Return the coroutine of `next_tuple` of each task that awaits something in it."""
    found: dict[int, UserCall] = {}
    for task in executor.tasks:
        if isinstance(task, AsyncSpoutTask) and (coroutine := task.next_tuple_call) and not coroutine.done():
            who, for_ms = task.collector, max(0, now_ns - task.asked_ns) // _NS_PER_MS
            stack = stack_of_coroutine(coroutine.get_coro())
            found[who.task] = UserCall(f"{who.component}[{who.task}]", "next_tuple()", for_ms, stack=stack)
    return found


def _tuple_of(tup: Tuple) -> str:
    return f"a tuple of {tup.component}"


def _root_of(tup: Tuple) -> int | None:
    return next(iter(tup._ids or ()), None)


def _method(stack: tuple[Line, ...]) -> str | None:
    """Return the method of the component that runs: the outermost function of user code."""
    return f"{stack[0].function.rpartition('.')[2]}()" if stack else None


def _stack_of(executor: ComponentExecutor, frames: Mapping[int, FrameType]) -> tuple[Line, ...]:
    """Return the stack of an executor's thread; empty if it has none, as under a scheduler."""
    number = None if executor.thread is None else executor.thread.ident
    return stack_of_frame(None if number is None else frames.get(number))


def short_line_of(executor: ComponentExecutor, calls: Mapping[int, UserCall]) -> str | None:
    """Return the line of user code where an executor stands that is in one of these calls, without the folder."""
    call = next((calls[task.collector.task] for task in executor.tasks if task.collector.task in calls), None)
    return None if call is None or call.line is None else call.line.short
