"""What the tests share: the acker beside the reference, servers of brokers, Spark, and one Hypothesis profile."""

import contextlib
import functools
import gc
import importlib
import logging
import os
import signal
import sys
import time
import warnings
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import acker
import acker._core
from tests.leftovers import Before
from tests.native_testing import fail_allocations_after
from tests.servers import IMPOSSIBLE, NOT_BROUGHT, NoServerError, Server
from tests.torture.spark_home import JVM_OPTIONS, WARM_DAEMON, make_spark_home

# The machine is shared and may be slow, so no deadline. In CI the same examples every time, and where .ci/run was
# called; elsewhere new ones, and what failed is kept in .hypothesis.
settings.register_profile(
    "acker", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.register_profile("ci", parent=settings.get_profile("acker"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") or os.environ.get("ACKER_SAME_EXAMPLES") else "acker")


# A shell ignores SIGINT in what it starts in the background, and programs that are started from there inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Processes that tests start, and the workers of Spark, find benchmarks, examples and tests.torture here.
ROOT = Path(__file__).resolve().parents[1]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))

os.environ.setdefault("SPARK_LAUNCHER_OPTS", JVM_OPTIONS)
SPARK_OPTIONS = f'"-Dspark.executor.extraJavaOptions={JVM_OPTIONS}" -Dspark.python.daemon.module={WARM_DAEMON}'
# Within 15 s, a busy JVM may answer none of its Python processes, and a query fails.
SPARK_OPTIONS += " -Dspark.python.authenticate.socketTimeout=5m"
os.environ.setdefault("SPARK_SUBMIT_OPTS", f"{JVM_OPTIONS} {SPARK_OPTIONS}")

# acker.spark needs pyspark; where it is not installed, as in the tests of wheels, there is nothing to test here.
NEED_PYSPARK = [
    "spark/*",
    "benchmarks/test_spark_*",
    "cli/test_doctor.py",
    "cli/test_on_spark.py",
    "ui/test_browser_spark.py",
    "ui/test_browser_streams.py",
    "torture/test_kills.py",
    "torture/test_shipping.py",
    "examples/*",
]
collect_ignore_glob = [] if find_spec("pyspark") else NEED_PYSPARK

# The same of the clients of brokers.
CLIENTS = {
    "kafka": "confluent_kafka",
    "nats": "nats",
    "postgresql": "psycopg",
    "rabbitmq": "pika",
    "redis_streams": "redis",
    "sqs": "boto3",
}
MISSING = [name for name, module in CLIENTS.items() if not find_spec(module)]
collect_ignore_glob += [f"connectors/test_{name}*.py" for name in MISSING]
NEED_CLIENTS = [
    "remote/test_consumer.py",
    "remote/test_follow.py",
    "remote/test_rabbitmq_replies.py",
    "remote/test_secret.py",
    "remote/test_trees.py",
    "repository/test_servers.py",
    "spark/topologies/test_broker_kills.py",
    "spark/test_object_store.py",
    "spark/topologies/test_kafka_spout.py",
]
collect_ignore_glob += NEED_CLIENTS if MISSING else []

QUEUES = [name for name in ("celery", "dramatiq", "rq", "taskiq") if not find_spec(name)]
collect_ignore_glob += [f"remote/test_{name}*.py" for name in QUEUES]
collect_ignore_glob += [] if find_spec("httpx") and find_spec("fastapi") else ["remote/test_http.py"]
collect_ignore_glob += [] if find_spec("pyright") else ["repository/test_pyright.py"]

# The live page needs a server, and its tests in a browser a driver.
collect_ignore_glob += [] if find_spec("starlette") else ["ui/*", "local/page/test_live_view.py"]
collect_ignore_glob += [] if find_spec("playwright") else ["ui/test_browser*.py"]

# Names a server of Spark Connect for the tests, such as local[2]: set by tests/spark/test_connect.py.
REMOTE = "ACKER_TESTS_REMOTE"
# Says that the process has a session already, as a notebook has: set there too.
IN_NOTEBOOK = "ACKER_TESTS_IN_NOTEBOOK"

SERVER_NAMES = ("rabbitmq", "redis", "kafka", "nats", "postgresql", "sqs", "hadoop", "chromium")
SHARED = {"spark": "the Spark session", **{name: f"the server {name}" for name in SERVER_NAMES}}
# One process with all tests that have a session would end last, alone; each further one starts a JVM of its own.
SPARK_FOLDERS = {
    str(ROOT / f"tests/spark/{name}") + os.sep: f"the Spark session of {name}" for name in ("streams", "topologies")
}
# In this order they begin.
LONGEST_FIRST = [
    SHARED["spark"],
    *SPARK_FOLDERS.values(),
    *(SHARED[name] for name in ("kafka", "hadoop", "chromium", "rabbitmq", "redis", "sqs", "postgresql", "nats")),
]

# After so long a test of `make test` hangs: beside busy loops on a slow machine the longest took two minutes. The limit
# of all tests, in pyproject.toml, is for the slow ones.
QUICK_SECS_MAX = 480

SERVERS: list[Server] = []  # those that run
NO_SERVER = "no server "  # begins the reason of each skip


def used(item):
    """Return what of SHARED a test uses, also by a parameter that names it to `request.getfixturevalue`."""
    asks = "request" in item.fixturenames and hasattr(item, "callspec")
    names = [value for value in item.callspec.params.values() if isinstance(value, str)] if asks else []
    return [name for name in SHARED if name in item.fixturenames or name in names]


@contextlib.contextmanager
def after_the_first():
    """Run a block in one process of `pytest -n` alone, and then in all others at once."""
    if "PYTEST_XDIST_WORKER" not in os.environ or os.name != "posix":
        yield
        return
    import fcntl  # only there

    lock = ROOT / "build/collection.lock"
    lock.parent.mkdir(exist_ok=True)
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(file, fcntl.LOCK_SH)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collect in one process first: in a clean clone it compiles all modules, and the others find them compiled.

    The tests themselves are no work for the garbage collector, neither meanwhile nor later: many tests and checks ask
    it to look at everything.
    """
    gc.disable()
    try:
        with after_the_first():
            return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


# First, since xdist reads the marks in the same hook.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Group the tests for `pytest -n`: one process runs all that share what is in SHARED, else each file is a group.

    Those of LONGEST_FIRST begin first, then tests that take minutes, each by itself, then files with a Spark of their
    own. A test that is marked `soak` is slow, too.
    """
    for item in items:
        if item.get_closest_marker("soak"):
            item.add_marker(pytest.mark.slow)
        if not (item.get_closest_marker("slow") or item.get_closest_marker("timeout")):
            item.add_marker(pytest.mark.timeout(QUICK_SECS_MAX))

    def minutes_of(item):
        mark = item.get_closest_marker("minutes")
        return mark.args[0] if mark else 0

    @functools.cache
    def group_of(item):
        group = next((SHARED[name] for name in used(item)), None)
        if group == SHARED["spark"]:
            return next((own for folder, own in SPARK_FOLDERS.items() if str(item.path).startswith(folder)), group)
        return group or (item.nodeid if minutes_of(item) else str(item.path))

    def start_order(item):
        group = group_of(item)
        rank = LONGEST_FIRST.index(group) if group in LONGEST_FIRST else len(LONGEST_FIRST)
        is_alone = group == item.nodeid
        return rank, -minutes_of(item) if is_alone else 0, item.get_closest_marker("spark") is None

    items.sort(key=start_order)  # stable: within a file the order stays
    for item in items:
        item.add_marker(pytest.mark.xdist_group(group_of(item)))
        if any(name in SERVER_NAMES for name in used(item)):
            item.add_marker(pytest.mark.server)
            item.add_marker(pytest.mark.repository)  # which has the script that starts them


@functools.cache
def slow_until():
    """Return the time since the epoch, in seconds, at which .ci/run begins no more slow tests.

    It leaves the environment with the first test: a run of pytest that a test starts is a part of that test, and
    skips nothing.
    """
    return float(os.environ.pop("ACKER_SLOW_UNTIL", "inf"))


@pytest.hookimpl(tryfirst=True)  # before any fixture begins
def pytest_runtest_setup(item):
    """Skip a slow test for which the run has no time left: it has to end within an hour on a slow machine, too."""
    if time.time() > slow_until() and item.get_closest_marker("slow"):
        pytest.skip("not begun: .ci/run has no time left for slow tests; `make test-slow` runs them all")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """Escape half an emoji in what a test has logged: xdist sends UTF-8, and ends the whole run where it cannot."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter):
    """Name the servers that this machine does not have, in the last line before the counts."""
    yield
    skips = [report.longrepr[2] for report in terminalreporter.stats.get("skipped", [])]
    without = Counter(text.partition(NO_SERVER)[2] for text in skips if NO_SERVER in text)
    if without:
        told = (f"{count} tests skipped without {why}" for why, count in sorted(without.items()))
        terminalreporter.write_line("; ".join(told), yellow=True)


@pytest.fixture(scope="session", autouse=True)
def home_of_spark(tmp_path_factory):
    """Whatever Spark the tests start, it is the one that is installed, in a home that is quick to start from."""
    if find_spec("pyspark"):
        os.environ["SPARK_HOME"] = str(make_spark_home(tmp_path_factory.mktemp("spark")))


def keep_formatters():
    """Let the loggers of PySpark, which write JSON, leave handlers alone that have a formatter.

    pytest adds those of `caplog` to each logger that does not propagate, as these do from their first error on. All
    later tests of the process have the same handlers.
    """
    from pyspark.logger import PySparkLogger

    add_as_json = PySparkLogger.addHandler

    def add(self, handler):
        if handler.formatter is None:
            add_as_json(self, handler)
        else:
            logging.Logger.addHandler(self, handler)

    PySparkLogger.addHandler = add


def receive_reports(session):
    """Make what stays as long as the session, so that no test is the one that leaves it behind."""
    from acker.spark.report_receiver import ReportReceiver  # Not with this file: see `broker`.

    ReportReceiver.of_pipelines(session)


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """One Spark session for all tests: two cores, and tasks that are retried as on a cluster."""
    from pyspark.sql import SparkSession

    keep_formatters()
    if IN_NOTEBOOK in os.environ:
        session = SparkSession.getActiveSession()
        receive_reports(session)
        yield session
        return
    # Workers must run this interpreter; Spark would start the first python3 of PATH.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    remote = os.environ.get(REMOTE)
    if remote:
        from tests.spark.connect_kit import on_a_free_port  # Spark Connect needs packages of its own.

        builder = on_a_free_port(SparkSession.builder.remote(remote))
    else:
        builder = SparkSession.builder.master("local[2,4]")
    builder = (
        builder.appName("acker tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.default.parallelism", "2")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
    )
    with warnings.catch_warnings():
        if remote:  # The server is started with these settings, and then says that a session cannot change them.
            warnings.simplefilter("ignore")
        session = builder.getOrCreate()
    if not remote:
        session.sparkContext.setLogLevel("OFF")
        receive_reports(session)
    yield session
    session.stop()


def do_without(name, why):
    """Skip a test that needs what is not there, or fail where it has to be there."""
    if why.is_skipped:
        pytest.skip(f"{NO_SERVER}{name}: {str(why).rpartition(chr(10))[2]}")
    pytest.fail(f"no server {name}: {why}")


def find_jars(name, listed, monkeypatch):
    """Return the folder with jars for Spark, those that a list of scripts/brokers/kafka.py names."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    module, errors = importlib.import_module("brokers.kafka"), importlib.import_module("brokers.errors")
    try:
        return module.Jars(name, getattr(module, listed)).find_or_bring(os.environ)
    except errors.UnavailableError as why:
        code = NOT_BROUGHT if isinstance(why, errors.NotBroughtError) else IMPOSSIBLE
        do_without(name, NoServerError(str(why), code))


def run_server(name, tmp_path_factory):
    """Run a server for all tests of this process: see tests/servers.py for what a test can do to it."""
    try:
        server = Server(name, tmp_path_factory.mktemp(name) / "told")
    except NoServerError as why:
        do_without(name, why)
    with server:
        SERVERS.append(server)
        yield server
        SERVERS.remove(server)


@pytest.fixture(scope="session")
def rabbitmq(tmp_path_factory):
    """RabbitMQ; `commands` is a folder for PATH, with rabbitmqctl."""
    yield from run_server("rabbitmq", tmp_path_factory)
    assert not list(Path("/var").glob("*/rabbitmq/*acker-*@localhost*")), "it writes to the folders of the system"


@pytest.fixture(scope="session")
def redis(tmp_path_factory):
    """Redis, whose data outlives a kill."""
    yield from run_server("redis", tmp_path_factory)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory):
    """Kafka; `url` is for bootstrap.servers, and `facts` has the ports of a listener that tells of a proxy."""
    yield from run_server("kafka", tmp_path_factory)


@pytest.fixture(scope="session")
def nats(tmp_path_factory):
    """NATS with JetStream; streams in files outlive a kill."""
    yield from run_server("nats", tmp_path_factory)


@pytest.fixture(scope="session")
def postgresql(tmp_path_factory):
    """PostgreSQL; `url` holds a user and a password."""
    yield from run_server("postgresql", tmp_path_factory)


@pytest.fixture(scope="session")
def sqs(tmp_path_factory):
    """A server that answers as SQS and as S3; `url` is for endpoint_url. A kill loses all that it holds."""
    yield from run_server("sqs", tmp_path_factory)


@pytest.fixture(scope="session")
def hadoop(tmp_path_factory):
    """HDFS, whose namenode can be killed; `classpath` is for further servers of Hadoop."""
    yield from run_server("hadoop", tmp_path_factory)


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    """A browser; `url` is for `connect_over_cdp`."""
    yield from run_server("chromium", tmp_path_factory)


@pytest.fixture(autouse=True)
def restored_servers():
    """Whatever a test does to servers ends with it."""
    yield
    for server in SERVERS:
        server.restore()


BEFORE = pytest.StashKey[Before]()


@pytest.fixture(autouse=True)
def _before(request):
    """What the test has to leave as it was. What is shared by several tests has been made by now."""
    for name in used(request.node):  # a parameter may name a server that the test itself asks for
        request.getfixturevalue(name)
    # The clients of Kafka and the JVM connect when they like, in threads of their own.
    ignored = {"socket", "pipe", "anon_inode"} if {"kafka", "spark"} & set(request.fixturenames) else ()
    if not request.node.get_closest_marker("leaves_behind"):
        request.node.stash[BEFORE] = Before(ignored)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item):
    """Fail the test that leaves a thread, a process, a descriptor or a task behind, after all of its fixtures."""
    result = yield
    before = item.stash.get(BEFORE, None)
    left = before.left() if before else []
    if left:
        pytest.fail("the test leaves behind:\n" + "\n".join(left), pytrace=False)
    return result


@pytest.fixture
def broker():
    """A broker in memory, to which nothing may be done that a real one would refuse."""
    from acker.testing.connectors import MemoryBroker  # Not with this file, which serves tests of the engine alone.

    broker = MemoryBroker()
    yield broker
    assert broker.violations == []


@pytest.fixture(
    params=[
        pytest.param(acker.Acker, id="native"),
        # The machine of tests/property/test_acker_machine.py compares both in `make test`, too.
        pytest.param(acker.ReferenceAcker, id="reference", marks=pytest.mark.slow),
    ]
)
def acker_type(request):
    """The acker and its specification: whatever holds for the one holds for the other."""
    return request.param


@pytest.fixture
def scarce_memory():
    """Whatever a test does to allocations ends with it."""
    yield
    fail_allocations_after(-1)


MASK = 2**64 - 1


class Hash:
    """The hash of ext/acker/hash.h in Python, to find root ids that meet on one line when the seed is known."""

    def __init__(self, seed: int) -> None:
        self.state = seed
        self.flip, first, second = self.mixed(), self.mixed() | 1, self.mixed() | 1
        self.first_inverse, self.second_inverse = pow(first, -1, 2**64), pow(second, -1, 2**64)

    def mixed(self) -> int:
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
        return z ^ z >> 31

    def root_of(self, h: int) -> int:
        h ^= h >> 32
        h = h * self.second_inverse & MASK
        h ^= h >> 32
        root = h * self.first_inverse & MASK ^ self.flip
        return root - 2**64 if root >= 2**63 else root


@pytest.fixture
def native_hash():
    """The inverse of the native hash, for tests that want root ids to meet."""
    return Hash
