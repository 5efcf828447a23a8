"""VersionedPickle: a pickle that a Python worker opens only if it has the same acker as the driver."""

from __future__ import annotations

import functools
import gc
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import acker

if TYPE_CHECKING:
    import pyarrow as pa

    ArrowFunction: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

# Errors of a worker without acker, and of one with another release. They travel in the pickle, since such a worker
# may not know them.
MISSING: Final = (
    "acker cannot be imported by the Python of this worker, {version} at {python} on {host} ({error}): if the worker is"
    " on the driver's machine, set PYSPARK_PYTHON to the driver's Python, {driver}, before Spark starts; else call"
    " acker.spark.ship(spark) before the job, or take another way of docs/shipping.md"
)
OTHER: Final = (
    "the driver has acker {driver} and the worker at {python} on {host} has acker {worker}: install the same release in"
    " both, see docs/shipping.md"
)
# Error of a worker that lacks a module of the user's.
ABSENT: Final = (
    "{error}: the driver has this module, and the worker at {python} on {host} has not: call"
    " spark.addArtifacts(path, pyfile=True) with its file, or a zip of its package, before the job"
)


class VersionedPickle:
    """An object of acker's on its way to a Python worker.

    Functions and objects are pickled by the names of their modules, so a worker without acker would end with the
    traceback of an unpickler, and one with another release would run that release's code.

    Parameters
    ----------
    content : object
        The object for the worker. It is pickled together with this one, so that Spark notices broadcast variables in
        it.
    """

    def __init__(self, content: object) -> None:
        self._content = content

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        from pyspark import cloudpickle

        content = cloudpickle.dumps(self._content)  # type: ignore[no-untyped-call]
        missing = MISSING.replace("{driver}", sys.executable)
        return _make_opener(), (content, acker.__version__, missing, OTHER, ABSENT)


def pack_function(function: ArrowFunction, name: str | None = None) -> ArrowFunction:
    """Return a function for `mapInArrow` that travels in a versioned pickle.

    Parameters
    ----------
    function : callable
    name : str, optional
        The name in Spark's plans and its UI; by default the function's own.
    """
    packed: Any = VersionedPickle(function)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return packed(batches)  # type: ignore[no-any-return]

    run.__name__ = run.__qualname__ = str(name or getattr(function, "__name__", type(function).__name__))
    return run


@functools.cache
def freeze_modules() -> None:
    """Hide what a worker has loaded from its garbage collector, if Spark will use the worker again.

    Such a worker looks for cyclic garbage after each task, before it takes the next one: tens of milliseconds for the
    modules alone.
    """
    if os.environ.get("SPARK_REUSE_WORKER"):
        gc.freeze()


def _make_opener() -> Callable[..., Any]:
    """Return the function that opens a versioned pickle.

    As a local function it is pickled by value, so it may use no global name.
    """

    def open_pickle(content: bytes, driver: str, missing: str, other: str, absent: str) -> Any:
        import pickle
        import platform
        import socket
        import sys

        worker = {"python": sys.executable, "host": socket.gethostname()}
        try:
            import acker
        except ImportError as error:
            raise ImportError(missing.format(version=platform.python_version(), error=error, **worker)) from None
        if acker.__version__ != driver:
            raise RuntimeError(other.format(driver=driver, worker=acker.__version__, **worker))
        try:
            opened = pickle.loads(content)
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(absent.format(error=error, **worker), name=error.name) from None
        from acker.spark.versioned_pickle import freeze_modules

        freeze_modules()
        return opened

    return open_pickle
