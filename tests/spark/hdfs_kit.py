"""A folder on HDFS, of which Spark needs to be told nothing."""

from __future__ import annotations

import getpass
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSelector, PyFileSystem

from acker._files.paths import Place, path_in_store
from acker.spark.hadoop_files import HadoopFiles, HadoopSetup
from tests.servers import Server


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

    def unfinished(self) -> list[str]:
        """Return the files that were begun and never ended."""
        place = self.place("")
        found = place.filesystem.get_file_info(FileSelector(place.path.rstrip("/"), recursive=True))
        return [each.path for each in found if each.path.endswith(".tmp")]

    def write_messages(self, name: str, local: Path) -> None:
        """Write three files of messages into a folder here and into one of this machine."""
        for number in range(3):
            ids = [each for each in range(10 * number, 10 * number + 10) for _ in (0, 1)]
            kinds = [0, 1] * 10
            table = pa.table(
                {
                    "root_id": pa.array([each + 1 for each in ids], pa.int64()),
                    "kind": pa.array(kinds, pa.int8()),
                    "value": pa.array(
                        [8 if kind and each % 3 == 0 else 7 for each, kind in zip(ids, kinds, strict=True)], pa.int64()
                    ),
                    "message_id": pa.array(ids, pa.int64()),
                    "task_id": pa.array([1] * 20, pa.int32()),
                }
            )
            below = f"day={number}/part-{number}.parquet"
            (local / below).parent.mkdir(parents=True)
            pq.write_table(table, local / below)
            there = self.place(f"{name}/{below}")
            with there.filesystem.open_output_stream(there.path) as stream:
                stream.write((local / below).read_bytes())
