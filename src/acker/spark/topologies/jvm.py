"""The JVM of a session, which may die below the program: how that is found out, and told."""

from __future__ import annotations

import socket
import subprocess
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from acker.errors import RuntimeStateError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH_BYTES: Final = "topology.spark.batch.bytes"
_MEMORY: Final = "spark.driver.memory"
_MEMORY_DEFAULT: Final = "1g"
_OUT_OF_MEMORY: Final = "OutOfMemoryError"
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
    """

    def __init__(self, spark: SparkSession) -> None:
        context: Any = spark.sparkContext
        self._gateway = context._gateway
        # Asked for now: a dead JVM would not answer.
        self._memory = context.getConf().get(_MEMORY, _MEMORY_DEFAULT)

    def has_died(self, fault: BaseException | None = None) -> bool:
        """Return whether it has died; after a fault of its connection, wait a moment for its end."""
        process: subprocess.Popen[bytes] | None = getattr(self._gateway, "proc", None)
        if process is None:  # started by spark-submit
            return not self._accepts()
        if process.poll() is None and fault is not None and _is_of_connection(fault):
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

    def is_to_blame(self, fault: BaseException) -> bool:
        """Return whether a fault comes from a JVM that has died, or that has no memory left."""
        return _OUT_OF_MEMORY in str(fault) or self.has_died(fault)

    def death(self, load: Load, batch_bytes: int) -> RuntimeStateError:
        """Return the error for a micro-batch that a JVM did not do; `batch_bytes` is its bound."""
        what = "died in it" if self.has_died() else "had no memory left for it"
        return RuntimeStateError(
            f"{load}: Spark's JVM {what}; {_MEMORY} is {self._memory}. If its log above has {_OUT_OF_MEMORY}, or the"
            f" system has killed it for its memory, set {_MEMORY} higher before the session starts, or {BATCH_BYTES}"
            f" (now {batch_bytes:,}) lower. Nothing of the micro-batch counts; with checkpoint= the next start runs the"
            " same tuples again"
        )


def _is_of_connection(fault: BaseException) -> bool:
    from py4j.protocol import Py4JError, Py4JJavaError

    return isinstance(fault, (OSError, EOFError)) or (
        isinstance(fault, Py4JError) and not isinstance(fault, Py4JJavaError)
    )
