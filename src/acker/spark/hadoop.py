"""Hadoop's configuration in a session, which says where object stores are and how they are entered."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Final

from acker._files.object_stores import AZURE_SCHEMES, S3_SCHEMES, open_store
from acker._files.paths import Place, is_uri, locate, quote_uri
from acker.spark.session_checks import is_classic

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem
    from pyspark.sql import SparkSession

    from acker._files.paths import Opener
    from acker.spark.hadoop_files import HadoopSetup

# Values that Hadoop may have in a file of its own, which is encrypted.
_SECRETS: Final = (".key", ".token", ".password")
_AZURE_KEY: Final = "fs.azure.account.key"
# What pyarrow opens by itself. It has hdfs, too, but cannot replace a file in one step there.
_PYARROW_SCHEMES: Final = frozenset({"file", "gcs", "gs", *AZURE_SCHEMES, *S3_SCHEMES})


def opener_of(spark: SparkSession | None = None) -> Opener | None:
    """Return what opens URIs as Spark itself would now; None in a session without a JVM of its own.

    Object stores are pyarrow's, by Hadoop's settings. What else Spark opens is reached through Hadoop.

    Parameters
    ----------
    spark : SparkSession, optional
        By default the one of this thread, else that of this process.
    """
    from pyspark.sql import SparkSession as Session

    session = spark or Session.getActiveSession() or Session._instantiatedSession
    if session is None or not is_classic(session):
        return None
    found = session._jsparkSession.sessionState().newHadoopConf()

    def get(name: str) -> str | None:
        is_secret = name.endswith(_SECRETS) or name.startswith(_AZURE_KEY)
        value = found.getPassword(name) if is_secret else found.get(name)
        return None if value is None else "".join(value)

    @functools.cache
    def setup() -> HadoopSetup:
        from acker.spark.hadoop_files import setup_of

        return setup_of(session)

    def open_uri(uri: str) -> FileSystem | None:
        store = open_store(uri, get)
        is_pyarrows = "?" in uri or uri.partition(":")[0] in _PYARROW_SCHEMES
        if is_pyarrows or store is not None:
            return store
        from acker.spark.hadoop_files import open_hadoop

        return open_hadoop(uri, setup())

    return open_uri


def place_of(path: str | os.PathLike[str] | Place, spark: SparkSession | None = None) -> Place:
    """Return the place of a directory that Spark may write to, too; in its URI nothing is escaped, as in Hadoop's.

    Raises
    ------
    ArgumentValueError
        See `locate`.
    """
    if isinstance(path, Place):
        return path
    text = os.fspath(path)
    if not is_uri(text):
        return Place(text, *locate(text))
    # Options of pyarrow's, behind a question mark, stand for themselves.
    filesystem, root = locate(text if "?" in text else quote_uri(text), opener_of(spark))
    return Place(text, filesystem, root.rstrip("/"))
