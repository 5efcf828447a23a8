"""The requirements of a command: optional packages, a JDK, a Spark session. Imports nothing optional itself."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from acker.cli import jdk
from acker.cli.jdk import Jdk
from acker.errors import AckerError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Warnings of a JVM that starts (host names, native Hadoop code) would bury the output; errors stay.
_LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
"""


class SetupError(AckerError):
    """A package, a JDK or Spark is missing. The text is one sentence that says what to do."""


def announce(text: str) -> None:
    """Print on the standard error what the command waits for, before the wait."""
    print(f"{text} ...", file=sys.stderr, flush=True)


def require(*modules: str, extra: str) -> None:
    """Check that optional packages are installed.

    Raises
    ------
    SetupError
        They are not; the text names the extra to install.
    """
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        raise SetupError(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed: pip install 'acker[{extra}]'"
        )


def find_jdk() -> Jdk:
    """Find a JDK of a suitable version: in JAVA_HOME, on PATH, or where systems put them.

    Raises
    ------
    SetupError
        There is none, or those that are here are too old.
    """
    found, refused = jdk.find(os.environ)
    if found is None:
        raise SetupError(
            f"Spark needs a JDK {jdk.OLDEST} or newer, and {'; '.join(refused) or 'there is none'}: install one (such"
            " as openjdk-17-jre-headless) or set JAVA_HOME"
        )
    return found


@contextlib.contextmanager
def spark_session(
    name: str,
    master: str | None,
    *,
    driver_memory: str | None,
    log: Path | None = None,
    conf: Mapping[str, str] | None = None,
    start_conf: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """Start Spark for one command, and stop it in any case.

    The workers run this interpreter, unless spark.pyspark.python or, for a cluster, PYSPARK_PYTHON names another:
    by default Spark would start the first `python3` of PATH.

    Parameters
    ----------
    name : str
    master : str or None
        None: the one in Spark's own settings, such as spark-defaults.conf, or else local[*].
    driver_memory : str or None
        Memory of the driver's JVM, such as "2g". None: as in Spark's own settings.
    log : Path, optional
        File for the standard error of that JVM and of the Python workers.
    conf : mapping, optional
        Settings of the session that the command needs.
    start_conf : mapping, optional
        Settings with which Spark is started; they override the ones set here.

    Raises
    ------
    SetupError
        No PySpark, no JDK, or Spark did not start.
    """
    require("pyspark", "pyarrow", "pandas", extra="spark")
    os.environ["JAVA_HOME"] = str(find_jdk().home)
    local = master is not None and master.startswith("local")
    workers = dict(start_conf or {}).get("spark.pyspark.python")
    if workers is not None:  # which PySpark heeds only where spark-submit started it
        os.environ["PYSPARK_PYTHON"] = workers
    elif local and not str(master).startswith("local-cluster"):
        os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    # For a call that Ctrl-C cuts off Py4J logs a traceback, with the root logger itself.
    logging.getLogger().addFilter(lambda record: "while sending command" not in str(record.msg))
    with tempfile.TemporaryDirectory(prefix="acker-spark-", ignore_cleanup_errors=True) as scratch:
        log4j = Path(scratch, "log4j2.properties")
        log4j.write_text(_LOG4J)
        builder = (
            SparkSession.builder.appName(name)
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={log4j.as_uri()}")
            .config("spark.sql.warehouse.dir", str(Path(scratch, "warehouse")))
            .config("spark.sql.execution.arrow.maxRecordsPerBatch", "50000")
        )
        for key, value in {"spark.master": master, "spark.driver.memory": driver_memory}.items():
            if value is not None:
                builder = builder.config(key, value)
        if local:
            # No look-up of this machine's name, which fails on laptops between networks.
            builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
        for key, value in (start_conf or {}).items():
            builder = builder.config(key, value)
        try:
            with contextlib.nullcontext() if log is None else _stderr_to(log):
                session = builder.getOrCreate()
        except (PySparkException, Py4JError, OSError, RuntimeError) as error:
            # Py4J's first line tells which call failed, the second one why.
            lines = [line.strip(": ") for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
            first = lines[min(1, len(lines) - 1)] if isinstance(error, Py4JError) else lines[0]
            where = "" if log is None else f" (see {log})"
            raise SetupError(f"Spark did not start at {master or 'its master'}: {first}{where}") from error
        try:
            if local:  # Spark's 200 are for clusters.
                session.conf.set("spark.sql.shuffle.partitions", str(2 * session.sparkContext.defaultParallelism))
            for key, value in (conf or {}).items():
                session.conf.set(key, value)
            yield session
        finally:
            session.stop()


def last_line(error: BaseException) -> str:
    """Return the line of a Python or Java traceback that holds the error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


@contextlib.contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    """Redirect the standard error of processes that are started in this context to a file, for their whole life."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with log.open("wb") as stream:
            os.dup2(stream.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
