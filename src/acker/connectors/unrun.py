"""Work that a call would only make and not run: coroutines and generators, which nobody awaits or iterates over."""

from __future__ import annotations

import inspect
from functools import partial
from types import AsyncGeneratorType, CodeType, CoroutineType, GeneratorType
from typing import Any, Final

from acker.errors import ArgumentTypeError

_RESULTS: Final = (CoroutineType, GeneratorType, AsyncGeneratorType)
_FLAGS: Final = {
    inspect.CO_COROUTINE: "a coroutine",
    inspect.CO_ASYNC_GENERATOR: "an async generator",
    inspect.CO_GENERATOR: "a generator",
}
_ANY: Final = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_GENERATOR
# For `decode`.
DECODE_FIX: Final = "nobody awaits it, so give a plain function that returns the value"
_FIX: Final = "its call runs none of its lines, so take the yield out, or loop over it in a plain function"


def unrun_kind(work: Any) -> str | None:
    """Return what a call of this makes, such as "a generator", as far as its code tells; None if the call runs it."""
    while isinstance(work, partial):
        work = work.func
    if isinstance(work, type):
        return None
    code = getattr(work, "__code__", None) or getattr(getattr(work, "__call__", None), "__code__", None)  # noqa: B004
    if not isinstance(code, CodeType) or not code.co_flags & _ANY:
        return None
    return next(kind for flag, kind in _FLAGS.items() if code.co_flags & flag)


def refuse_unrun(where: str, work: Any, coroutine_fix: str) -> None:
    """Refuse a function whose call would not run it.

    Parameters
    ----------
    where : str
        The argument.
    work : Any
    coroutine_fix : str
        What to do with a coroutine function.

    Raises
    ------
    ArgumentTypeError
    """
    code = getattr(work, "__code__", None)
    if type(code) is CodeType and not code.co_flags & _ANY:
        return  # a plain function, as nearly all are
    if (kind := unrun_kind(work)) is not None:
        fix = coroutine_fix if kind == "a coroutine" else _FIX
        raise ArgumentTypeError(f"{where}: {name_of(work)} is {kind} function: {fix}")


def unrun_error(where: str, result: object, coroutine_fix: str) -> ArgumentTypeError | None:
    """Return the error of a call that returned a coroutine or a generator: the work has not begun."""
    if not isinstance(result, _RESULTS):
        return None
    if not isinstance(result, CoroutineType):
        kind = "an async generator" if isinstance(result, AsyncGeneratorType) else "a generator"
        return ArgumentTypeError(f"{where} returned {result.__qualname__}, {kind}: {_FIX}")
    result.close()  # else Python warns too that it was never awaited
    return ArgumentTypeError(f"{where} returned {result.__qualname__}, a coroutine: {coroutine_fix}")


def name_of(work: Any) -> str:
    """Return the name of a function, or the class of another callable."""
    while isinstance(work, partial):
        work = work.func
    name = getattr(work, "__qualname__", None)
    return name if isinstance(name, str) else type(work).__qualname__
