"""The import of what a command line names as MODULE:NAME: a topology, or a consumer and its handler."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeGuard

from acker.errors import AckerError, ArgumentValueError, SnapshotError, TopologyError

if TYPE_CHECKING:
    from acker.connectors import Consumer, DeadLetters, Publisher
    from acker.topology import Graph, Topology


class UsageError(AckerError):
    """The command line is wrong. The text is one sentence that says how to fix it."""


class _NoModuleError(UsageError):
    """There is no such module."""


def load(name: str) -> type[Topology] | Graph:
    """Import a module, and return a topology in it.

    The current folder is searched first, as by `python -m`.

    Parameters
    ----------
    name : str
        MODULE:TOPOLOGY; the module may have dots, and so may the topology. It may also be a file below the current
        folder, such as jobs/orders.py:Orders for jobs.orders:Orders.

    Raises
    ------
    UsageError
        The module is missing or cannot be imported, or has no topology of that name.
    TopologyError
        The module defines one wrongly.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise UsageError(f"{name!r} names no topology: write MODULE:TOPOLOGY{_those_of(module_name)}")
    module = import_module(module_name, attribute)
    module_name = module.__name__
    found: object = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise UsageError(f"{module_name} has no {attribute}: {_instead(module, attribute)}")
        found = getattr(found, part)
    if _is_topology(found):
        return found
    what = f"the class {found.__name__}" if isinstance(found, type) else f"of type {type(found).__name__}"
    raise UsageError(f"{name} is {what} and no subclass of acker.topology.Topology: {_instead(module, attribute)}")


def load_consumer(name: str, handler: str) -> tuple[Consumer[Any], Callable[..., Any]]:
    """Import a module, and return a consumer and a handler in it.

    Parameters
    ----------
    name : str
        MODULE:CONSUMER, as for `load`.
    handler : str
        The name of a function in the same module.

    Raises
    ------
    UsageError
        The module is missing or cannot be imported, or has no such consumer or function.
    """
    from acker.connectors import Consumer

    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise UsageError(f"{name!r} names no consumer: write MODULE:CONSUMER, such as orders:consumer")
    module = import_module(module_name, attribute)
    found = vars(module).get(attribute)
    if not isinstance(found, Consumer):
        names = [f"{module.__name__}:{each}" for each, value in vars(module).items() if isinstance(value, Consumer)]
        those = f"its consumers are {', '.join(names)}" if names else "it has none at its top level"
        raise UsageError(f"{module.__name__} has no consumer {attribute}: {those}")
    function = vars(module).get(handler)
    if not callable(function):
        raise UsageError(f"{module.__name__} has no function {handler}, which gets the messages: name it by --handler")
    return found, function


def load_letters(place: str, to: str | None, most: int) -> tuple[DeadLetters, Publisher | None]:
    """Return the dead letters at a place, and where they are to go if not to their consumer's source.

    Parameters
    ----------
    place : str
        A file of dead letters, or MODULE:NAME of a consumer or a publisher.
    to : str or None
        MODULE:NAME of a consumer, a source or a publisher.
    most : int
        The most letters to look at.

    Raises
    ------
    UsageError
        There is no such file, module or object.
    ArgumentValueError
        The consumer has no publisher for dead letters.
    """
    from acker.connectors import Consumer, DeadLetterFile, DeadLetters, Publisher, Source

    target = None if to is None else _load_object(to, "--to", (Consumer, Source, Publisher))
    publisher = target if isinstance(target, Publisher) else None
    try:
        is_file = Path(place).is_file()
    except OSError as error:  # as of a folder of another owner
        raise UsageError(f"PLACE: {place}: {error.strerror}") from error
    if is_file:
        found: Any = DeadLetterFile(place)
    else:
        found = _load_object(place, "PLACE", (Consumer, Publisher))
    if isinstance(found, Consumer):
        if target is not None and publisher is None:
            raise UsageError(
                f"--to: the letters of {place} go back to its own source; only a Publisher may say otherwise"
            )
        return found.letters(most=most), publisher
    if isinstance(target, Consumer):
        return target.letters(found, most=most), None
    return DeadLetters(found, source=target if isinstance(target, Source) else None, most=most), publisher


def _load_object(name: str, what: str, kinds: tuple[type, ...]) -> Any:
    """Import a module, and return an object of one of these classes in it."""
    named = " or ".join(kind.__name__ for kind in kinds)
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        file = "a file of dead letters, or " if what == "PLACE" else ""
        raise UsageError(f"{what}: {name!r} is no file here: expected {file}MODULE:NAME of a {named}")
    module = import_module(module_name, attribute)
    found = vars(module).get(attribute)
    if isinstance(found, kinds):
        return found
    names = sorted(f"{module.__name__}:{each}" for each, value in vars(module).items() if isinstance(value, kinds))
    those = f"there are {', '.join(names)}" if names else "there is none at its top level"
    raise UsageError(f"{what}: {module.__name__}:{attribute} is no {named}: {those}")


def import_module(name: str, attribute: str) -> ModuleType:
    """Import the module that holds an attribute, by its name or its file; `UsageError` if there is none."""
    return _import(_module_of(name, attribute))


@contextmanager
def blame_state() -> Iterator[None]:
    """Turn what is wrong with the file of a runtime's states into an error of the command line."""
    try:
        yield
    except (SnapshotError, ArgumentValueError) as error:
        raise UsageError(f"--state: {str(error).removeprefix('state: ')}") from error


def _is_topology(value: object) -> TypeGuard[type[Topology] | Graph]:
    from acker.topology import Graph, Topology

    return isinstance(value, Graph) or (
        isinstance(value, type) and issubclass(value, Topology) and value is not Topology
    )


def _import(name: str) -> ModuleType:
    here = str(Path.cwd())
    sys.path[:0] = [folder for folder in (here, *_folders_of_streamparse()) if folder not in sys.path]
    try:
        return importlib.import_module(name)
    except TopologyError:
        raise
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name != missing and not name.startswith(f"{missing}."):
            raise UsageError(f"{name} imports {missing}, which is not installed") from error
        raise _NoModuleError(
            f"there is no module {missing} in {here} or on PYTHONPATH: run acker in the folder that holds it"
        ) from error
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        file, line = (error.filename, error.lineno) if isinstance(error, SyntaxError) else (at.filename, at.lineno)
        text = error.msg if isinstance(error, SyntaxError) else error
        raise UsageError(
            f"{name} cannot be imported: {type(error).__name__}: {text} ({file}, line {line}): fix it there"
        ) from error


def _folders_of_streamparse() -> list[str]:
    """Return the folder that streamparse's own commands import from, if this is a project of that layout."""
    source = Path.cwd() / "src"
    return [str(source)] if any((source / name).is_dir() for name in ("bolts", "spouts")) else []


def _module_of(name: str, attribute: str) -> str:
    """Return the name of a module, also where the command line names its file."""
    path = Path(name)
    if path.suffix != ".py" and "/" not in name and os.sep not in name:
        return name
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    parts = path.with_suffix("").parts if path.suffix == ".py" else path.parts
    if not all(part.isidentifier() for part in parts):
        fix = f"run acker in its folder and write {path.stem or 'MODULE'}:{attribute}"
        raise UsageError(f"{name!r} is no module of this folder: {fix}")
    if not path.with_suffix(".py").is_file():
        raise _NoModuleError(
            f"there is no file {path.with_suffix('.py')} in {Path.cwd()}: run acker in the folder that holds it"
        )
    return ".".join(parts)


def _those_of(name: str) -> str:
    """Return the topologies of a module that was named without one; an example if there is no such module."""
    try:
        module = _import(_module_of(name, "TOPOLOGY")) if name else None
    except _NoModuleError:
        module = None
    if module is None:
        return ", such as wordcount:WordCount"
    names = ", ".join(f"{module.__name__}:{each}" for each in _topologies_of(module))
    return f"; those of {module.__name__} are {names}" if names else f"; {module.__name__} defines none"


def _topologies_of(module: ModuleType) -> list[str]:
    return sorted(name for name, value in vars(module).items() if _is_topology(value))


def _instead(module: ModuleType, attribute: str) -> str:
    """Return a suggestion: a topology of a similar name, or the names of all."""
    names = _topologies_of(module)
    if not names:
        return "it defines no topology"
    near = difflib.get_close_matches(attribute, names, 1)
    return f"did you mean {module.__name__}:{near[0]}?" if near else f"its topologies are {', '.join(names)}"
