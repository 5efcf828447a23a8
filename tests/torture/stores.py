"""Stores for checkpoints under kills: S3, where one request in fifty is refused, and HDFS."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from tests.servers import Server

if TYPE_CHECKING:
    from acker._files.paths import Place

S3, HDFS = "s3", "hdfs"
KINDS: Final = (S3, HDFS)
REFUSED_ONE_IN: Final = 50


class Store(Protocol):
    """A new folder in a store, such as `Bucket` and `Hdfs`."""

    def uri(self, name: str) -> str:
        """Return the URI of a name in the folder."""

    def place(self, name: str) -> Place:
        """Return the same for a process that has no Spark."""

    def spark_conf(self, folder: Path, /) -> dict[str, str]:
        """Write what Spark needs to know into a folder, and return the variables that make it read this."""


@contextlib.contextmanager
def store_maker(kind: str | None) -> Iterator[Callable[[], Store | None]]:
    """Run a server of a kind, and yield a function that makes a new folder there; None makes none."""
    if kind is None:
        yield lambda: None
        return
    with (
        tempfile.TemporaryDirectory(prefix="acker-store-") as folder,
        Server("hadoop" if kind == HDFS else "sqs", Path(folder, "told")) as server,
    ):
        # The kits are imported late: they need clients that a run without a store does not.
        if kind == HDFS:
            from tests.spark.hdfs_kit import Hdfs

            yield lambda: Hdfs(server)
            return
        from tests.spark.store_kit import Bucket, Door

        with Door(server.url) as door:
            door.refused_one_in = REFUSED_ONE_IN
            jars = _find_jars()
            yield lambda: Bucket(door.url, jars)


def _find_jars() -> Path:
    """Return the folder with Hadoop's client of S3, which is downloaded if it is missing."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
    kafka = importlib.import_module("brokers.kafka")
    found: Path = kafka.Jars("hadoop-aws", kafka.S3_JARS).find_or_bring(os.environ)
    return found
