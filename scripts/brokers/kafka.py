"""Kafka: one node that is broker and controller, from the jars of Maven Central."""

import concurrent.futures
import contextlib
import hashlib
import http.client
import json
import ssl
import sys
import tempfile
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import find_jdk
from brokers.errors import NotBroughtError, UnavailableError
from brokers.packages import BROKERS, forbidden
from brokers.server import Server, exchange

CENTRAL = "https://repo1.maven.org/maven2"
ATTEMPTS_MAX = 3
DOWNLOADS_MAX = 8
TIMEOUT_SECONDS = 20
# The jars with their SHA-256: what a broker may load of all that kafka_2.13 depends on.
JARS = Path(__file__).with_suffix(".json")
# The same of Spark's source for Kafka.
SPARK_JARS = Path(__file__).with_name("spark_kafka.json")
# Hadoop's client of S3, without what PySpark has, and the parts of Amazon's SDK that it loads instead of all of them.
S3_JARS = Path(__file__).with_name("hadoop_aws.json")
JVM_OPTIONS = ("-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


class Jars(NamedTuple):
    """A server whose jars are downloaded."""

    name: str
    listed: Path

    def find_or_bring(self, environ: Mapping[str, str], root: Path | None = None) -> Path:
        """Return the folder of the jars."""
        if find_jdk.finder.find(environ)[0] is None:
            raise UnavailableError(f"{self.name} needs Java {find_jdk.finder.OLDEST} or newer: install it")
        checksums = json.loads(self.listed.read_text())
        root = root or BROKERS / f"{self.name}-{_fingerprint(self.listed)}"
        if root.is_dir():  # it is complete: it got its name when it was
            return root
        if forbidden(environ):
            raise NotBroughtError(f"{self.name} is not here, and ACKER_INSTALL_BROKERS=0 forbids to download it")
        root.parent.mkdir(parents=True, exist_ok=True)
        print(f"==> Downloading {len(checksums)} jars of {self.name}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix=f".{self.name}-", dir=root.parent) as scratch:
            folder = Path(scratch, "jars")
            folder.mkdir()
            with concurrent.futures.ThreadPoolExecutor(DOWNLOADS_MAX) as pool:
                downloads = [pool.submit(_download, jar, checksum, folder) for jar, checksum in checksums.items()]
                try:
                    for each in downloads:
                        each.result()
                except NotBroughtError:
                    pool.shutdown(cancel_futures=True)  # without a network all would wait in vain
                    raise
            with contextlib.suppress(OSError):  # another process may have been quicker
                folder.rename(root)
        return root


def _fingerprint(listed: Path) -> str:
    return hashlib.sha256(listed.read_bytes()).hexdigest()[:8]


def _download(jar: str, checksum: str, folder: Path) -> None:
    url, why = f"{CENTRAL}/{jar}", ""
    for _ in range(ATTEMPTS_MAX):
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS, context=ssl.create_default_context()) as answer:
                content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            why = str(error)
            continue
        if hashlib.sha256(content).hexdigest() == checksum:
            (folder / jar.rpartition("/")[2]).write_bytes(content)
            return
        why = "it has another checksum than it had"
    raise NotBroughtError(f"{url} was not downloaded: {why}")


def addresses(ports: Mapping[str, int]) -> str:
    """Return listeners on loopback, as Kafka's settings write them."""
    return ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())


class Kafka(Server):
    """Kafka; what it has confirmed outlives its process.

    A second listener tells its clients the address of a proxy that a test may start: proxy_port. The proxy forwards to
    proxied_port. The listener at sasl_port wants SASL's mechanism PLAIN, from alice with the password wonderland.
    """

    origin = Jars("kafka", JARS)
    ports_count = 5

    @property
    def url(self) -> str:
        """As bootstrap.servers."""
        return f"127.0.0.1:{self.ports[0]}"

    def facts(self) -> dict[str, object]:
        """Return the ports for a proxy: that where it listens, and that which it forwards to; and that for SASL."""
        return {"proxy_port": self.ports[2], "proxied_port": self.ports[3], "sasl_port": self.ports[4]}

    def prepare(self) -> None:
        """Write its settings, and an empty log of the cluster's metadata."""
        port, controller, proxy, proxied, sasl = self.ports
        listeners = {"PLAIN": port, "PROXIED": proxied, "SASL": sasl}
        advertised = listeners | {"PROXIED": proxy}
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAIN",
            "listeners": addresses(listeners | {"CONTROLLER": controller}),
            "advertised.listeners": addresses(advertised),
            "listener.security.protocol.map": (
                "PLAIN:PLAINTEXT,CONTROLLER:PLAINTEXT,PROXIED:PLAINTEXT,SASL:SASL_PLAINTEXT"
            ),
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl.plain.sasl.jaas.config": (
                'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="wonderland";'
            ),
            "log.dirs": self.folder / "data",
            # Topics of Kafka's own: the defaults want three nodes, and make a hundred files.
            "offsets.topic.num.partitions": 4,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 4,
            "transaction.state.log.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "share.coordinator.state.topic.num.partitions": 4,
            "share.coordinator.state.topic.replication.factor": 1,
            # Short, for tests that wait: a group's first members, sessions, and what cleans.
            "group.initial.rebalance.delay.ms": 0,
            "broker.heartbeat.interval.ms": 500,
            "broker.session.timeout.ms": 3000,  # so long a broker that was killed is not let in again
            "group.min.session.timeout.ms": 1000,
            "group.consumer.heartbeat.interval.ms": 500,
            "group.consumer.min.heartbeat.interval.ms": 500,
            "group.consumer.session.timeout.ms": 5000,
            "group.consumer.min.session.timeout.ms": 5000,
            "log.cleaner.backoff.ms": 200,
            "log.retention.check.interval.ms": 1000,
            "log.initial.task.delay.ms": 1000,
            "message.max.bytes": 110_000_000,
            "socket.request.max.bytes": 120_000_000,
        }
        written = "".join(f"{name}={value}\n" for name, value in settings.items())
        (self.folder / "server.properties").write_text(written)
        self.run_first(
            [
                *self._java("kafka.tools.StorageTool"),
                "format",
                "-t",
                "acker-tests-cluster-00",
                "-c",
                self.folder / "server.properties",
            ]
        )

    def command(self) -> list[Path | str]:
        """Return the command of the broker."""
        return [*self._java("kafka.Kafka"), self.folder / "server.properties"]

    def answers(self) -> bool:
        """Ask for the brokers that serve (Metadata, version 1, no topics): it has to name one, itself."""
        body = b"\x00\x03\x00\x01" + bytes(4) + b"\xff\xff" + bytes(4)
        answer = exchange(self.ports[0], len(body).to_bytes(4, "big") + body, 12)
        return len(answer) == 12 and int.from_bytes(answer[8:], "big") == 1

    def _java(self, main_class: str) -> list[Path | str]:
        java = find_jdk.finder.find(self.environ)[0].home / "bin/java"
        return [
            java,
            *JVM_OPTIONS,
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-cp",
            f"{self.root}/*",
            main_class,
        ]
