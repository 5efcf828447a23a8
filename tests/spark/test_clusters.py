"""A job submitted to a standalone cluster and to YARN: executors share no disk, lack acker, come and go, and die."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import acker
from acker.spark.session_checks import PROVIDER, PROVIDER_CONF
from tests.spark import cluster_program
from tests.spark.cluster_kit import LONG, Daemon, standalone
from tests.spark.hdfs_kit import Hdfs
from tests.torture.kills.run import environment_of
from tests.torture.shipping import clean_environment, make_environment
from tests.torture.spark_home import make_spark_home

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(5400),
    pytest.mark.leaves_behind("the JVM that reads HDFS for this process stays with it"),
]

ROOT = Path(__file__).resolve().parents[2]
YARN = "org.apache.hadoop.yarn.server"
CONF = {
    PROVIDER_CONF: PROVIDER,
    "spark.default.parallelism": "3",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "3",
    "spark.ui.enabled": "false",
}


@pytest.fixture(scope="module")
def lacking(tmp_path_factory):
    """A Python with everything but acker."""
    return make_environment(tmp_path_factory.mktemp("lacking"), linked=True)


@pytest.fixture
def store(hadoop, tmp_path):
    store = Hdfs(hadoop)
    store.write_messages("messages", tmp_path / "messages")
    return store


@contextlib.contextmanager
def submitted(folder, store, lacking, master, conf, **variables):
    """Submit tests/spark/cluster_program.py; yield its process."""
    script = folder / "job.py"
    # The driver's acker must not be on a path that executors get too, so the script itself says where it is.
    lines = ["import runpy, sys", f"sys.path.insert(0, {str(Path(acker.__file__).resolve().parents[1])!r})"]
    lines += [f"runpy.run_path({cluster_program.__file__!r}, run_name='__main__')"]
    script.write_text("\n".join([*lines, ""]))
    own = environment_of(folder)
    environment = clean_environment() | {name: own[name] for name in ("SPARK_HOME", "TMPDIR", "JAVA_TOOL_OPTIONS")}
    environment |= {"PYSPARK_DRIVER_PYTHON": sys.executable, "PYSPARK_PYTHON": str(lacking), **variables}
    conf = {**CONF, "spark.local.dir": str(folder / "local"), **conf}
    options = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    command = [str(Path(own["SPARK_HOME"], "bin/spark-submit")), "--master", master, "--deploy-mode", "client"]
    with (folder / "log").open("wb") as log:
        driver = subprocess.Popen(
            [*command, *options, str(script), str(folder), store.uri("").rstrip("/")],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=folder, start_new_session=True,
        )  # fmt: skip
    try:
        yield driver
    finally:
        driver.kill()
        driver.wait()


def wait_for(there, driver, folder):
    """Wait until a file is there."""
    deadline = time.monotonic() + LONG
    while not there.exists():
        assert driver.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()[-6000:]
        time.sleep(0.05)


def check(folder, store, driver):
    """Wait for the end of the job, and compare what it tells with what one process finds."""
    assert driver.wait(LONG) == 0, (folder / "log").read_text()[-6000:]
    told = json.loads((folder / "told.json").read_text())
    place = store.place("messages")
    alone = acker.completions_from_files(place.path, filesystem=place.filesystem)
    expected = sorted([row[1], row[2], row[3]] for row in alone.rows())
    assert len(expected) > 10 and told["files"] == told["stream"] == expected
    numbers = range(cluster_program.COUNT)
    assert told["dead"] == [number for number in numbers if cluster_program.is_bad(number)]
    keys = Counter(number % cluster_program.KEYS for number in numbers if not cluster_program.is_bad(number))
    assert told["counts"] == [list(each) for each in sorted(keys.items())]


def wait_for_port(port, folder):
    """Wait until somebody listens on a port."""
    deadline = time.monotonic() + LONG
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 60):
            return
        assert time.monotonic() < deadline, [path.read_text()[-3000:] for path in folder.glob("*/log")]
        time.sleep(0.1)


def free_ports(count, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module("brokers.server").free_ports(count)


def test_workers_that_share_no_disk_count_each_number_once_though_one_of_them_dies(
    tmp_path, store, lacking, monkeypatch
):
    """Executors come and go, and their shuffle services are those of the workers."""
    names = ["one", "two", "three"]
    service = "-Dspark.shuffle.service.enabled=true -Dspark.shuffle.service.port="
    java = {name: f"{service}{port}" for name, port in zip(names, free_ports(3, monkeypatch), strict=True)}
    conf = {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.executorIdleTimeout": "10s",
        "spark.dynamicAllocation.maxExecutors": "3",
        "spark.shuffle.service.enabled": "true",
        "spark.shuffle.readHostLocalDisk": "false",  # all have the same address
    }
    with standalone(tmp_path, names, java=java, alone=True) as (address, workers):
        folder = tmp_path / "driver"
        with submitted(folder, store, lacking, address, conf) as driver:
            wait_for(folder / cluster_program.HALF, driver, folder)
            dead = next(each for each in workers if "Asked to launch executor" in each.log.read_text())
            dead.end()
            (folder / cluster_program.MAY_GO_ON).touch()
            check(folder, store, driver)
        launched = [each.log.read_text().count("Asked to launch executor") for each in workers]
    assert sum(launched) > len(names), launched  # they came again


def write_yarn_settings(folder, hadoop, ports):
    """Write the settings of HDFS and of YARN into a folder."""
    hadoop_module = importlib.import_module("brokers.hadoop")
    folder.mkdir()
    for path in (hadoop.folder / "settings").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    names = ("address", "scheduler.address", "resource-tracker.address", "admin.address", "webapp.address")
    settings = {f"yarn.resourcemanager.{name}": f"127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)}
    anywhere = "127.0.0.1:0"
    for name in ("cluster", "node"):  # the jar lacks what the servers' pages are made of
        (folder / "webapps" / name).mkdir(parents=True)
    settings |= {
        "yarn.resourcemanager.scheduler.class": f"{YARN}.resourcemanager.scheduler.fifo.FifoScheduler",
        "yarn.nodemanager.address": anywhere,
        "yarn.nodemanager.localizer.address": anywhere,
        "yarn.nodemanager.webapp.address": anywhere,
        "yarn.nodemanager.disk-health-checker.enable": "false",
        "yarn.nodemanager.local-dirs": folder / "local",
        "yarn.nodemanager.log-dirs": folder / "logs",
        "yarn.nodemanager.resource.memory-mb": 4096,
        "yarn.nodemanager.vmem-check-enabled": "false",
        "yarn.scheduler.minimum-allocation-mb": 128,
    }
    hadoop_module.write_settings(folder / "yarn-site.xml", settings)


def test_a_job_on_yarn_counts_each_number_once(tmp_path, hadoop, store, lacking, monkeypatch):
    settings, folder = tmp_path / "settings", tmp_path / "driver"
    ports = free_ports(5, monkeypatch)
    write_yarn_settings(settings, hadoop, ports)
    classpath = os.pathsep.join([str(settings), hadoop.facts["classpath"]])
    java = [str(Path(os.environ["JAVA_HOME"], "bin/java")), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    with contextlib.ExitStack() as daemons:
        for name, server in (("resources", "resourcemanager.ResourceManager"), ("node", "nodemanager.NodeManager")):
            (tmp_path / name).mkdir()
            command = [*java, "-cp", classpath, f"{YARN}.{server}"]
            daemons.callback(Daemon(tmp_path / name, command, os.environ).end)
        wait_for_port(ports[0], tmp_path)
        folder.mkdir()
        # YARN wants PySpark in a zip.
        home = make_spark_home(Path(environment_of(folder)["SPARK_HOME"]), is_zipped=True)
        conf = {
            # Quicker than to send them; workers then do not find them in their container.
            "spark.yarn.jars": f"local:{home}/jars/*",
            "spark.executorEnv.SPARK_HOME": str(home),
            "spark.executor.instances": "2",
            "spark.yarn.am.memory": "512m",
        }
        with submitted(folder, store, lacking, "yarn", conf, HADOOP_CONF_DIR=str(settings)) as driver:
            (folder / cluster_program.MAY_GO_ON).touch()
            check(folder, store, driver)
