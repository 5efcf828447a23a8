"""What would end a streaming acker later, and in worse words, told when its plan is made."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import shutil
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING, Final

import acker
from acker.errors import SessionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROVIDER_CONF: Final = "spark.sql.streaming.stateStore.providerClass"
PROVIDER: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PARTITIONS_CONF: Final = "spark.sql.shuffle.partitions"

# State partitions for each core of the session above which a warning is due.
PARTITIONS_PER_CORE_MAX: Final = 4

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
    if _is_classic(spark):
        _check_python(spark.sparkContext.pythonExec)
        _check_partitions(spark, spark.sparkContext.defaultParallelism)


def versions() -> tuple[str, ...]:
    """Return what a driver sends along for `check_worker`."""
    return (acker.__version__,)


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


def _is_classic(spark: SparkSession) -> bool:
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


@functools.cache
def _check_python(worker: str) -> None:
    """Compare the interpreter that Spark will start with the one that runs.

    Spark compares them too; but for stateful operators its answer goes to the standard error of a helper process, and
    the query ends with "Cause: null".
    """
    path = shutil.which(worker)
    if path is None or path == sys.executable:
        return  # Spark says which program it cannot find
    driver = "{}.{}".format(*sys.version_info)
    ask = [path, "-c", "import sys; print('{}.{}'.format(*sys.version_info))"]
    answer = subprocess.run(ask, capture_output=True, text=True, check=False)
    found = answer.stdout.strip()
    if answer.returncode == 0 and found != driver:
        raise SessionError(
            f"Spark's workers would run {path}, which is Python {found}, and this is Python {driver}: before the"
            f" session is made, set the environment variable PYSPARK_PYTHON to {sys.executable} or its like"
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
