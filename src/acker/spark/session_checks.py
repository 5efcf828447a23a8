"""Checks of a Spark session that fail early, with a clear message."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING, Final

from acker.errors import SessionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROVIDER_CONF: Final = "spark.sql.streaming.stateStore.providerClass"
PROVIDER: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PARTITIONS_CONF: Final = "spark.sql.shuffle.partitions"

_DEFAULT_PARTITIONS: Final = "200"

# With more state partitions than this for each core the check warns.
PARTITIONS_PER_CORE_MAX: Final = 4

# The first import of PySpark's own state client in a worker.
_STATE_CLIENT: Final = "pyspark.sql.streaming.proto.StateMessage_pb2"


def state_partitions(session: SparkSession) -> int:
    """Return the number of state partitions of a query that begins now."""
    return int(session.conf.get(PARTITIONS_CONF) or _DEFAULT_PARTITIONS)


def check_streaming_session(spark: SparkSession) -> None:
    """Refuse a session that cannot run a streaming acker; called when the plan is made.

    With Spark Connect the server's Python and its cores are unknown here, so they are not checked.

    Raises
    ------
    SessionError
        The state store is not RocksDB, a package is missing or of a wrong version, or the workers would run another
        Python. The text says what to do.

    Warns
    -----
    UserWarning
        Many more state partitions than cores.
    """
    _check_packages()
    provider = spark.conf.get(PROVIDER_CONF) or "not set"
    # Vendors ship their own, in other packages.
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


def is_classic(spark: SparkSession) -> bool:
    """Return whether the session has a JVM of its own; a session of Spark Connect has none."""
    return not type(spark).__module__.startswith("pyspark.sql.connect")


def _check_packages() -> None:
    try:
        importlib.import_module("pandas")
        importlib.import_module("google.protobuf.runtime_version")
    except ImportError as error:
        package = (error.name or "pandas").partition(".")[0]
        name = "protobuf" if package == "google" else package
        raise SessionError(f"Spark's state store needs {name}: pip install 'acker[spark]'") from error
    from google.protobuf.runtime_version import VersionError

    try:
        importlib.import_module(_STATE_CLIENT)
    except (ImportError, VersionError) as error:
        found = importlib.metadata.version("protobuf")
        raise SessionError(
            f"protobuf {found} does not fit PySpark {importlib.metadata.version('pyspark')}: install another release of"
            f" one of them ({error})"
        ) from error


# Finds what the driver's helper process would find; -c alone adds the empty path.
_PROBE: Final = """
import sys
print("{}.{}".format(*sys.version_info))
sys.path = [path for path in sys.path if path]
try:
    import acker
except ImportError as error:
    print(error)
"""


@functools.cache
def _check_python(worker: str, environment: tuple[tuple[str, str], ...]) -> None:
    """Run the interpreter that Spark will start, and check its version and whether it can import acker.

    Spark and `VersionedPickle` check workers too. But for a stateful operator Spark first starts one on the driver's
    machine, whose error goes to a log, and the query ends with "Cause: null".
    """
    path = shutil.which(worker)
    if path is None or path == sys.executable:
        return  # Spark names the program that it cannot find.
    driver = "{}.{}".format(*sys.version_info)
    answer = subprocess.run(
        [path, "-c", _PROBE], capture_output=True, text=True, check=False, env={**os.environ, **dict(environment)}
    )
    found, _, error = answer.stdout.strip().partition("\n")
    if answer.returncode == 0 and found != driver:
        raise SessionError(
            f"Spark's workers would run {path}, which is Python {found}, and this is Python {driver}: before the"
            f" session is made, set the environment variable PYSPARK_PYTHON to {sys.executable} or its like"
        )
    if answer.returncode == 0 and error:
        raise SessionError(
            f"acker cannot be imported by {path}, which Spark starts on this machine too for a streaming acker"
            f" ({error}): call acker.spark.ship(spark) before the plan is made, or take another way of docs/shipping.md"
        )


def _check_partitions(spark: SparkSession, cores: int) -> None:
    partitions = int(spark.conf.get(PARTITIONS_CONF) or 1)
    if partitions > PARTITIONS_PER_CORE_MAX * cores:
        warnings.warn(
            f"{PARTITIONS_CONF} is {partitions} and the session has {cores} cores; every micro-batch spends about 0.2 s"
            f' of a core on each state partition: spark.conf.set("{PARTITIONS_CONF}", "{cores}") before the first start'
            " of the query (its checkpoint keeps the number)",
            UserWarning,
            stacklevel=3,
        )
