"""The methods that a runtime calls: what they are called with, which may be coroutines, and what is wrong with one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final

from acker.errors import TopologyError

# A runtime waits for these. Nobody would wait for another method that is a coroutine.
MAY_BE_ASYNC: Final = ("process", "next_tuple", "ack", "fail", "keep_alive")
_NEVER_ASYNC: Final = (
    *("initialize", "close", "activate", "deactivate", "dead_letter"),
    *("process_tick", "tick_secs", "group_key", "process_batch"),
)
_LAZY: Final = (map, filter)


def written(method: str, arguments: Sequence[str]) -> str:
    """Return the first line of a method, as a user would write it."""
    return f"def {method}({', '.join(('self', *arguments))})"


def takes(component: type[object], method: str, arguments: Sequence[str]) -> bool:
    """Say whether a method of an instance can be called with so many arguments, as far as Python can tell."""
    found = inspect.getattr_static(component, method)
    binds = getattr(found, "__get__", None)
    return _binds(found if binds is None else binds(object(), component), arguments)


def _binds(function: Callable[..., Any], arguments: Sequence[str]) -> bool:
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return False
    except ValueError:  # it is not written in Python and has no signature
        return True
    return True


def unmade(component: type[object]) -> str | None:
    """Say why a runtime cannot make a task of a component, which it does without arguments; None: it can."""
    kind = component.__name__
    abstract = sorted(getattr(component, "__abstractmethods__", ()))
    if abstract:
        return f"{kind} is abstract; define {', '.join(f'{name}()' for name in abstract)}"
    if _binds(component, ()):
        return None
    return (
        f"{kind} takes arguments{inspect.signature(component)} and a runtime makes each task by {kind}(); give them "
        "default values, or read them from conf in initialize(self, conf, context): options of your own begin with "
        "'user.'"
    )


def half_made(component: object) -> str | None:
    """Say which `__init__` left out that of the class it derives from, where that is needed; None: none."""
    for base in type(component).__mro__:
        needed = vars(base).get("_SET_BY_INIT", ())
        if any(name not in vars(component) for name in needed):
            # The first class that has one: it did not pass the call on.
            init = type(component).__init__.__qualname__
            return f"{init} does not call super().__init__(), which {base.__name__} needs; make it the first line"
    return None


def never_runs(component: type[object]) -> str | None:
    """Say which method of a component would be called and never run; None: none."""
    for name in (*MAY_BE_ASYNC, *_NEVER_ASYNC):
        method = getattr(component, name, None)
        if inspect.isgeneratorfunction(method) or inspect.isasyncgenfunction(method):
            return (
                f"{component.__name__}.{name} is a generator: it has a yield, so a call runs nothing of it; "
                "call self.emit([...]) for each tuple in the place of yield"
            )
        if name in _NEVER_ASYNC and inspect.iscoroutinefunction(method):
            return (
                f"{component.__name__}.{name} cannot be `async def`, nobody would wait for it; write `def {name}`. "
                f"{', '.join(MAY_BE_ASYNC[:-1])} and {MAY_BE_ASYNC[-1]} can be"
            )
    return None


def refuse_unrun(component: str, method: str, returned: object) -> None:
    """Refuse what a plain method returned if it is work that nobody will do: a coroutine, a generator, a lazy map.

    Raises
    ------
    TopologyError
    """
    if inspect.iscoroutine(returned):
        returned.close()  # else Python warns that nobody awaited it, after this has said so
    elif not (
        inspect.isgenerator(returned)
        or inspect.isasyncgen(returned)
        or inspect.isawaitable(returned)
        or isinstance(returned, _LAZY)
    ):
        return
    mend = f"; write `async def {method}` and await it there" * (method in MAY_BE_ASYNC)
    raise TopologyError(
        f"{component}: {method} returned a {type(returned).__name__}, of which nothing has run"
        + (mend if inspect.isawaitable(returned) else "; use a loop that runs it")
    )
