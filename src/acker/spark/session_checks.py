"""What would end a job later or in worse words, told when a streaming acker's plan is made, or when a worker starts."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import acker
from acker.errors import SessionError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    ArrowFunction: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

PROVIDER_CONF: Final = "spark.sql.streaming.stateStore.providerClass"
PROVIDER: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PARTITIONS_CONF: Final = "spark.sql.shuffle.partitions"

# State partitions for each core of the session above which a warning is due.
PARTITIONS_PER_CORE_MAX: Final = 4

# What a worker says that has no acker, or another one than the driver. They travel to it, since it may know no better.
MISSING: Final = (
    "acker cannot be imported by the Python of this worker, {version} at {python} on {host} ({fault}): call"
    " acker.spark.ship(spark) before the job, or take another way of docs/shipping.md"
)
OTHER: Final = (
    "the driver has acker {driver} and the worker at {python} on {host} has acker {worker}: install the same release in"
    " both, see docs/shipping.md"
)

# What PySpark's own state client imports first in a worker.
_STATE_CLIENT: Final = "pyspark.sql.streaming.proto.StateMessage_pb2"


def check_streaming_session(spark: SparkSession) -> None:
    """Refuse a session that cannot run a streaming acker; called when its plan is made.

    With Spark Connect the server's Python and its cores are not known here, and are not looked at.

    Raises
    ------
    SessionError
        The state store is not RocksDB, a package is missing or of a wrong version, or the workers would run another
        Python. One sentence that says what to do.

    Warns
    -----
    UserWarning
        Many more state partitions than cores.
    """
    _check_packages()
    provider = spark.conf.get(PROVIDER_CONF) or "not set"
    # Vendors have theirs, in packages of their own.
    if not provider.endswith("RocksDBStateStoreProvider"):
        raise SessionError(
            f"{PROVIDER_CONF} is {provider}, which cannot hold the state of an acker; before the plan is made, call"
            f' spark.conf.set("{PROVIDER_CONF}", "{PROVIDER}")'
        )
    if is_classic(spark):
        context = spark.sparkContext
        paths = (context.environment.get("PYTHONPATH"), os.environ.get("PYTHONPATH"))
        environment = {**context.environment, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        _check_python(context.pythonExec, tuple(sorted(environment.items())))
        _check_partitions(spark, spark.sparkContext.defaultParallelism)


def versions() -> tuple[str, ...]:
    """Return what a driver sends along for `check_worker`."""
    return (acker.__version__,)


class Parcel:
    """Something of acker's that travels to a worker, which opens it only if it has the same acker as the driver.

    Functions and objects travel by the names of their modules, so a worker without acker would end with the traceback
    of an unpickler, and one with another release would do whatever that release does.

    Parameters
    ----------
    content : object
        What the worker gets, in place of the parcel. It is pickled when the parcel is, so that Spark notices broadcast
        variables in it.
    """

    def __init__(self, content: object) -> None:
        self._content = content

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        from pyspark import cloudpickle

        content = cloudpickle.dumps(self._content)  # type: ignore[no-untyped-call]
        return _opener(), (content, acker.__version__, MISSING, OTHER)


def carried(function: ArrowFunction) -> ArrowFunction:
    """Return a function for `mapInArrow` that travels as a parcel."""
    parcel: Any = Parcel(function)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return parcel(batches)  # type: ignore[no-any-return]

    return run


def _opener() -> Callable[..., Any]:
    """Return the function that opens a parcel; being a local one it travels by value, and so may name nothing here."""

    def opened(content: bytes, driver: str, missing: str, other: str) -> Any:
        import pickle
        import platform
        import socket
        import sys

        place = {"python": sys.executable, "host": socket.gethostname()}
        try:
            import acker
        except ImportError as fault:
            raise ImportError(missing.format(version=platform.python_version(), fault=fault, **place)) from None
        if acker.__version__ != driver:
            raise RuntimeError(other.format(driver=driver, worker=acker.__version__, **place))
        return pickle.loads(content)

    return opened


@functools.cache
def check_worker(driver: tuple[str, ...]) -> None:
    """Refuse a worker that has another acker than the driver. Spark itself refuses another Python.

    Parameters
    ----------
    driver : tuple
        The driver's `versions`.

    Raises
    ------
    SessionError
        They differ; it names both.
    """
    if driver != versions():
        raise SessionError(
            f"the driver has acker {', '.join(driver)} and the worker at {sys.executable} has acker"
            f" {', '.join(versions())}: install the same release in both"
        )


def is_classic(spark: SparkSession) -> bool:
    """Tell a session with a JVM of its own from one of Spark Connect."""
    return not type(spark).__module__.startswith("pyspark.sql.connect")


def _check_packages() -> None:
    try:
        importlib.import_module("pandas")
        importlib.import_module("google.protobuf.runtime_version")
    except ImportError as fault:
        package = (fault.name or "pandas").partition(".")[0]
        name = "protobuf" if package == "google" else package
        raise SessionError(f"Spark's state store needs {name}: pip install 'acker[spark]'") from fault
    from google.protobuf.runtime_version import VersionError

    try:
        importlib.import_module(_STATE_CLIENT)
    except (ImportError, VersionError) as fault:
        found = importlib.metadata.version("protobuf")
        raise SessionError(
            f"protobuf {found} does not fit PySpark {importlib.metadata.version('pyspark')}: install another release of"
            f" one of them ({fault})"
        ) from fault


# What the driver's helper process would find; the empty path is there only because of -c.
_ASK: Final = """
import sys
print("{}.{}".format(*sys.version_info))
sys.path = [path for path in sys.path if path]
try:
    import acker
except ImportError as fault:
    print(fault)
"""


@functools.cache
def _check_python(worker: str, environment: tuple[tuple[str, str], ...]) -> None:
    """Ask the interpreter that Spark will start for its version, and whether it has acker.

    Workers are asked too, by Spark and by `Parcel`; but for stateful operators Spark starts one on the driver's machine
    first, whose answer goes to a log, and the query ends with "Cause: null".
    """
    path = shutil.which(worker)
    if path is None or path == sys.executable:
        return  # Spark says which program it cannot find
    driver = "{}.{}".format(*sys.version_info)
    answer = subprocess.run(
        [path, "-c", _ASK], capture_output=True, text=True, check=False, env={**os.environ, **dict(environment)}
    )
    found, _, fault = answer.stdout.strip().partition("\n")
    if answer.returncode == 0 and found != driver:
        raise SessionError(
            f"Spark's workers would run {path}, which is Python {found}, and this is Python {driver}: before the"
            f" session is made, set the environment variable PYSPARK_PYTHON to {sys.executable} or its like"
        )
    if answer.returncode == 0 and fault:
        raise SessionError(
            f"acker cannot be imported by {path}, which Spark starts on this machine too for a streaming acker"
            f" ({fault}): call acker.spark.ship(spark) before the plan is made, or take another way of docs/shipping.md"
        )


def _check_partitions(spark: SparkSession, cores: int) -> None:
    partitions = int(spark.conf.get(PARTITIONS_CONF) or 1)
    if partitions > PARTITIONS_PER_CORE_MAX * cores:
        warnings.warn(
            f"{PARTITIONS_CONF} is {partitions} and the session has {cores} cores; every micro-batch spends about 0.1 s"
            f' of a core on each state partition: spark.conf.set("{PARTITIONS_CONF}", "{cores}") before the first start'
            " of the query (its checkpoint keeps the number)",
            UserWarning,
            stacklevel=3,
        )
