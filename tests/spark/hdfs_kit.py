"""A folder on HDFS, of which Spark needs to be told nothing."""

from __future__ import annotations

import getpass
import uuid
from pathlib import Path

from pyarrow.fs import PyFileSystem

from acker._files.paths import Place, path_in_store
from acker.spark.hadoop_files import HadoopFiles, HadoopSetup
from tests.servers import Server
from tests.spark.message_files import write_messages


class Hdfs:
    """A new folder; what it has is what `store_kit.Bucket` has.

    Parameters
    ----------
    server : Server
    """

    def __init__(self, server: Server) -> None:
        self._root = f"{server.url}/acker-{uuid.uuid4().hex}"

    def uri(self, name: str) -> str:
        """Return the URI of a name in the folder."""
        return f"{self._root}/{name}"

    def place(self, name: str) -> Place:
        """Return the same for a process that has no Spark."""
        files = HadoopFiles("hdfs", HadoopSetup(user=getpass.getuser()))
        return Place(self.uri(name), PyFileSystem(files), f"{path_in_store(self._root)}/{name}")

    def spark_conf(self, _: Path) -> dict[str, str]:
        """Return no variables."""
        return {}

    def write_messages(self, name: str, local: Path) -> None:
        """Write files of messages into a folder here and into one of this machine."""
        for below in write_messages(local):
            there = self.place(f"{name}/{below}")
            with there.filesystem.open_output_stream(there.path) as stream:
                stream.write((local / below).read_bytes())
