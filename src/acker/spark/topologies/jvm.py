"""The JVM of a session, which may die below the program: how that is found out, and told."""

from __future__ import annotations

import gc
import socket
import subprocess
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from acker.errors import RuntimeStateError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH_BYTES: Final = "topology.spark.batch.bytes"
# What a micro-batch has by default: this part of the memory of the JVM, which needs its bytes once and those of a large
# tuple several times, and at most so much, since more makes nothing faster.
_BATCH_PART: Final = 10
_BATCH_BYTES_MAX: Final = 64_000_000
_MEMORY: Final = "spark.driver.memory"
_EXECUTOR_MEMORY: Final = "spark.executor.memory"
_MEMORY_DEFAULT: Final = "1g"
_OUT_OF_MEMORY: Final = "OutOfMemoryError"
# Spark's class of an error that it raises itself when an operator gets no memory, and the end of an executor without.
_OUT_OF_MEMORY_TEXTS: Final = (_OUT_OF_MEMORY, "UNABLE_TO_ACQUIRE_MEMORY", "exit code 52")
# Seconds that a process may take to end after its connections broke, and a live one to accept another connection.
_DYING_SECS: Final = 5.0
_CONNECT_SECS: Final = 2.0


class Load(NamedTuple):
    """The load of a micro-batch.

    Attributes
    ----------
    batch : int
    tuples : int
    size_bytes : int
    largest : (str, int) or None
        The component that emitted the largest tuple, and its size.
    """

    batch: int
    tuples: int = 0
    size_bytes: int = 0
    largest: tuple[str, int] | None = None

    def __str__(self) -> str:
        largest = "" if self.largest is None else f", the largest of {self.largest[1]:,} from {self.largest[0]!r}"
        return f"micro-batch {self.batch} ({self.tuples:,} tuples of spouts, {self.size_bytes:,} bytes{largest})"


class Jvm:
    """The JVM of a session.

    Parameters
    ----------
    spark : SparkSession

    Attributes
    ----------
    batch_bytes : int
        How many bytes of tuples a micro-batch has, unless an option says so.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._context: Any = spark.sparkContext
        self._gateway = cast("Any", self._context._gateway)
        # Asked for now: a dead JVM would not answer.
        conf = self._context.getConf()
        self._memory = f"{_MEMORY} is {conf.get(_MEMORY, _MEMORY_DEFAULT)}"
        if not str(conf.get("spark.master", "local")).startswith("local"):
            self._memory += f", {_EXECUTOR_MEMORY} {conf.get(_EXECUTOR_MEMORY, _MEMORY_DEFAULT)}"
        memory = int(self._gateway.jvm.java.lang.Runtime.getRuntime().maxMemory())
        self.batch_bytes = min(memory // _BATCH_PART, _BATCH_BYTES_MAX)

    def has_died(self, error: BaseException | None = None) -> bool:
        """Return whether it has died; after an error that may come from its end, wait a moment for that."""
        process: subprocess.Popen[bytes] | None = getattr(self._gateway, "proc", None)
        if process is None:  # started by spark-submit
            return not self._accepts()
        if process.poll() is None and error is not None and (_is_of_connection(error) or self._has_stopped()):
            try:
                process.wait(_DYING_SECS)
            except subprocess.TimeoutExpired:
                return not self._accepts()
        return process.poll() is not None

    def _accepts(self) -> bool:
        to = self._gateway.gateway_parameters
        try:
            socket.create_connection((to.address, to.port), _CONNECT_SECS).close()
        except TimeoutError:  # it is busy
            return True
        except OSError:
            return False
        return True

    def _has_stopped(self) -> bool:
        """Return whether Spark has stopped in it, though this program has not stopped it.

        Without memory it does: a thread of Spark ends, or the whole JVM does, and its jobs end before its process.
        """
        jsc = self._context._jsc
        if jsc is None:
            return False
        try:
            return bool(jsc.sc().isStopped())
        except Exception:  # noqa: BLE001 - whatever it is, the JVM does not answer
            return True

    @property
    def is_over(self) -> bool:
        """Whether Spark runs no more in it: it has died, or is about to."""
        return self.has_died() or self._has_stopped()

    def is_to_blame(self, error: BaseException) -> bool:
        """Return whether an error comes from a JVM that has died, that has no memory left, or where Spark stopped."""
        return _is_out_of_memory(error) or self.has_died(error) or self.is_over

    def death(self, load: Load, batch_bytes: int, error: BaseException | None = None) -> RuntimeStateError:
        """Return the error for a micro-batch that a JVM did not do; `batch_bytes` is its bound."""
        if self.has_died(error):
            what = "died in it"
        elif error is not None and _is_out_of_memory(error):
            what = "had no memory left for it"
        else:
            what = "stopped Spark in it"
        return RuntimeStateError(
            f"{load}: Spark's JVM {what}; {self._memory}. If its log above has {_OUT_OF_MEMORY}, or the"
            f" system has killed it for its memory, set {_MEMORY} higher before the session starts, or {BATCH_BYTES}"
            f" (now {batch_bytes:,}) lower. Nothing of the micro-batch counts; with checkpoint= the next start runs the"
            " same tuples again"
        )


def free_dropped(spark: SparkSession) -> None:
    """Let the JVM free what Python has dropped, now.

    DataFrames and what Py4J was given are in cycles, and Python looks for cycles by the number of its objects, of which
    large tuples have few. Then Py4J tells the JVM about once a second, in which it could get two micro-batches.
    """
    gc.collect()
    context: Any = spark.sparkContext
    dropped: Any = getattr(context._gateway._gateway_client, "finalizer_deque", ())
    for _ in range(len(dropped)):
        try:
            end = dropped.pop()
        except IndexError:  # Py4J's thread has done it
            return
        if not isinstance(end, tuple):  # the mark that ends Py4J's thread
            dropped.appendleft(end)
            return
        client, target_id = end
        client.garbage_collect_object(target_id, False)


def _is_out_of_memory(error: BaseException) -> bool:
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        try:
            text = str(link)  # Py4J asks the JVM for it, which may be gone
        except Exception:  # noqa: BLE001 - as above
            text = ""
        if any(mark in text for mark in _OUT_OF_MEMORY_TEXTS):
            return True
        link = link.__cause__ or link.__context__
    return False


def _is_of_connection(error: BaseException) -> bool:
    from py4j.protocol import Py4JError, Py4JJavaError

    return isinstance(error, (OSError, EOFError)) or (
        isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError)
    )
