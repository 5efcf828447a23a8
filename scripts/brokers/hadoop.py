"""HDFS: a namenode and a datanode, from one jar of Maven Central and those of PySpark."""

import contextlib
import importlib.util
import json
import os
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

import find_jdk
from brokers.errors import UnavailableError
from brokers.kafka import Jars
from brokers.server import Server

SERVERS = Jars("hadoop", Path(__file__).with_suffix(".json"))
JVM_OPTIONS = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
NODES = "org.apache.hadoop.hdfs.server"


class SparkAndJars(NamedTuple):
    """Servers of Hadoop, which use the client of Hadoop that PySpark has."""

    name: str

    def find_or_bring(self, environ: Mapping[str, str], root: Path | None = None) -> Path:
        """Return the folder of the servers' jar."""
        if importlib.util.find_spec("pyspark") is None:
            raise UnavailableError(f"{self.name} needs the package pyspark: pip install it")
        return SERVERS.find_or_bring(environ, root)


def write_settings(path: Path, settings: Mapping[str, object]) -> None:
    """Write a file of Hadoop's settings."""
    lines = (
        f"<property><name>{name}</name><value>{escape(str(value))}</value></property>\n"
        for name, value in settings.items()
    )
    path.write_text(f"<configuration>\n{''.join(lines)}</configuration>\n")


class Hadoop(Server):
    """HDFS; the namenode is what is stopped, killed and paused, and what it has confirmed outlives its process."""

    origin = SparkAndJars("hadoop")
    ports_count = 2

    @property
    def url(self) -> str:
        """Of the filesystem."""
        return f"hdfs://127.0.0.1:{self.ports[0]}"

    def facts(self) -> dict[str, object]:
        """Return what starts further servers of Hadoop: the class path, which begins with the folder of settings."""
        return {"classpath": self._classpath}

    @property
    def _classpath(self) -> str:
        spec = importlib.util.find_spec("pyspark")
        assert spec is not None and spec.origin is not None
        return os.pathsep.join([str(self._settings), f"{self.root}/*", f"{Path(spec.origin).parent}/jars/*"])

    @property
    def _settings(self) -> Path:
        return self.folder / "settings"

    def prepare(self) -> None:
        """Write settings and an empty filesystem, and start the datanode, which waits for the namenode."""
        self._settings.mkdir()
        write_settings(
            self._settings / "core-site.xml", {"fs.defaultFS": self.url, "hadoop.tmp.dir": self.folder / "data"}
        )
        anywhere = "127.0.0.1:0"
        settings = {
            "dfs.replication": 1,
            "dfs.namenode.http-address": f"127.0.0.1:{self.ports[1]}",
            "dfs.datanode.address": anywhere,
            "dfs.datanode.http.address": anywhere,
            "dfs.datanode.ipc.address": anywhere,
            # Short, for tests that wait: until a namenode that was killed serves again.
            "dfs.heartbeat.interval": 1,
            "dfs.namenode.safemode.extension": 0,
        }
        write_settings(self._settings / "hdfs-site.xml", settings)
        self.run_first([*self._java(f"{NODES}.namenode.NameNode"), "-format", "-nonInteractive"])
        self.run_beside(self._java(f"{NODES}.datanode.DataNode"))

    def command(self) -> list[Path | str]:
        """Return the command of the namenode."""
        return self._java(f"{NODES}.namenode.NameNode")

    def answers(self) -> bool:
        """Ask the namenode whether it takes files, and has a datanode for them."""
        query = f"http://127.0.0.1:{self.ports[1]}/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
        with contextlib.suppress(OSError, ValueError), urllib.request.urlopen(query, timeout=60) as answer:
            beans = json.load(answer)["beans"]
            return bool(beans and beans[0]["FSState"] == "Operational" and beans[0]["NumLiveDataNodes"])
        return False

    def _java(self, main_class: str) -> list[Path | str]:
        java = find_jdk.finder.find(self.environ)[0].home / "bin/java"
        return [java, *JVM_OPTIONS, "-cp", self._classpath, main_class]
