"""Hadoop's configuration in a session, which says where object stores are and how they are entered."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from acker._files.paths import Place, is_uri, locate
from acker.spark.session_checks import is_classic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from acker._files.object_stores import Settings

# Values that Hadoop may have in a file of its own, which is encrypted.
_SECRETS: Final = (".key", ".token", ".password")
_AZURE_KEY: Final = "fs.azure.account.key"


def settings_of(spark: SparkSession | None = None) -> Settings | None:
    """Return Hadoop's configuration as Spark itself would use it now; None in a session without a JVM of its own.

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

    return get


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
    scheme, _, rest = text.partition(":")
    # Options of pyarrow's, behind a question mark, stand for themselves.
    filesystem, root = locate(text if "?" in rest else f"{scheme}:{quote(rest)}", settings_of(spark))
    return Place(text, filesystem, root.rstrip("/"))
