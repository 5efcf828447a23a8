"""Checks of the methods that a runtime calls: their arguments, and whether they may be coroutines."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from types import CodeType, FunctionType
from typing import Any, Final

from acker.errors import TopologyError
from acker.observe.calls import Line, has_user_code

# A runtime awaits these methods, and no others.
MAY_BE_ASYNC: Final = ("process", "next_tuple", "ack", "fail", "keep_alive")
_NEVER_ASYNC: Final = (
    *("initialize", "close", "activate", "deactivate", "dead_letter"),
    *("process_tick", "tick_secs", "group_key", "process_batch", "init_state", "process_window", "process_late"),
    *("process_rows", "ack_batch", "fail_batch"),
)
_LAZY: Final = (map, filter)


def signature_of(method: str, arguments: Sequence[str]) -> str:
    """Return the first line of a method, as a user would write it."""
    return f"def {method}({', '.join(('self', *arguments))})"


def accepts_arguments(component: type[object], method: str, arguments: Sequence[str]) -> bool:
    """Return whether a method of an instance can be called with these arguments, as far as its signature tells."""
    found = inspect.getattr_static(component, method)
    binds = getattr(found, "__get__", None)
    return _binds(found if binds is None else binds(object(), component), arguments)


def _binds(function: Callable[..., Any], arguments: Sequence[str]) -> bool:
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return False
    except ValueError:  # written in another language, without a signature
        return True
    return True


def instantiation_error(component: type[object]) -> str | None:
    """Return why a component cannot be instantiated without arguments, as runtimes do; None if it can."""
    kind = component.__name__
    abstract = sorted(getattr(component, "__abstractmethods__", ()))
    if abstract:
        return f"{kind} is abstract; define {', '.join(f'{name}()' for name in abstract)}"
    if _binds(component, ()):
        return None
    return (
        f"{kind} takes arguments{inspect.signature(component)} and a runtime makes each task by {kind}(); give them "
        "default values, or read them from conf in initialize(self, conf, context), where your options begin with "
        "'user.'"
    )


def missing_super_init(component: object) -> str | None:
    """Return which `__init__` does not call that of its base class, which needs it; None if all do."""
    for base in type(component).__mro__:
        needed = vars(base).get("_SET_BY_INIT", ())
        if any(name not in vars(component) for name in needed):
            # The first class that defines one did not call its base class.
            init = type(component).__init__.__qualname__
            return f"{init} does not call super().__init__(), which {base.__name__} needs; make it the first line"
    return None


def override_without(component: type[object], base: type[object], method: str, calls: set[str]) -> str | None:
    """Return the override of a method of `base` if it calls none of some methods, as far as its code tells; else None.

    Methods of the same class that it names count as its own code.
    """
    kind = next(each for each in component.__mro__ if method in vars(each))
    functions = {name: inspect.unwrap(each) for name, each in vars(kind).items() if callable(each)}
    codes = {name: each.__code__ for name, each in functions.items() if isinstance(each, FunctionType)}
    # What was made otherwise tells nothing; so does what a decorator has made, which calls what it was given.
    if kind is base or method not in codes or set(codes[method].co_freevars) - {"__class__"}:
        return None
    names = _names_in(codes[method])
    names = names.union(*(_names_in(codes[name]) for name in names & codes.keys()))
    return None if names & calls else f"{kind.__name__}.{method}"


def _names_in(code: CodeType) -> set[str]:
    names = set(code.co_names)
    return names.union(*(_names_in(each) for each in code.co_consts if isinstance(each, CodeType)))


def unrunnable_method(component: type[object]) -> str | None:
    """Return which method of a component could be called but would not run; None if there is none."""
    for name in (*MAY_BE_ASYNC, *_NEVER_ASYNC):
        method = _as_written(component, name)
        if inspect.isgeneratorfunction(method) or inspect.isasyncgenfunction(method):
            return (
                f"{component.__name__}.{name} is a generator: it has a yield, so a call runs nothing of it; "
                "call self.emit([...]) for each tuple in the place of yield"
            )
        if name in _NEVER_ASYNC and inspect.iscoroutinefunction(method):
            return (
                f"{component.__name__}.{name} cannot be `async def`: a runtime does not await it; write `def {name}`. "
                f"{', '.join(MAY_BE_ASYNC[:-1])} and {MAY_BE_ASYNC[-1]} can be"
            )
    return None


def has_async(component: type[object], *methods: str) -> bool:
    """Return whether one of these methods of a component is a coroutine function."""
    return any(inspect.iscoroutinefunction(_as_written(component, method)) for method in methods)


def line_of_work(component: type[object]) -> str | None:
    """Return the line where the method begins that gets the tuples of a bolt, without the folder.

    None where that method is not the user's own, as of batches and windows, which keep tuples by design.
    """
    name = "process_rows" if hasattr(component, "process_rows") else "process"
    method: Any = _as_written(component, name)
    code = None if method is None else getattr(inspect.unwrap(method), "__code__", None)
    line = None if code is None else Line(code.co_filename, code.co_firstlineno, code.co_qualname)
    return line.short if line is not None and has_user_code([line]) else None


def _as_written(component: type[object], name: str) -> object:
    """Return a method without `functools.partialmethod`, into which `inspect` looks from Python 3.13 on only."""
    method = inspect.getattr_static(component, name, None)
    if not isinstance(method, functools.partialmethod):
        return getattr(component, name, None)
    while isinstance(method, functools.partialmethod):
        method = method.func
    return method


def refuse_unrun(component: str, method: str, returned: object) -> None:
    """Refuse a result of a plain method that is work not done: a coroutine, a generator, a lazy map.

    Raises
    ------
    TopologyError
    """
    if inspect.iscoroutine(returned):
        returned.close()  # else Python warns too that it was never awaited
    elif not (
        inspect.isgenerator(returned)
        or inspect.isasyncgen(returned)
        or inspect.isawaitable(returned)
        or isinstance(returned, _LAZY)
    ):
        return
    fix = "; use a loop that runs it"
    if inspect.isawaitable(returned):
        fix = f"; write `async def {method}` and await it there" if method in MAY_BE_ASYNC else ""
    raise TopologyError(f"{component}: {method} returned a {type(returned).__name__}, which has not run{fix}")
