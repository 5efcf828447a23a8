"""What the tests share: both implementations of the acker, and one Hypothesis profile."""

import json
import os
import shutil
import subprocess
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, settings

import acker
import acker._engine.combiner
import acker._engine.open_trees
import acker._engine.plain
from tests.torture.spark_home import JVM_OPTIONS, make_spark_home

# The machine is shared and may be slow, so no deadline. In CI the same examples every time; elsewhere new ones, and
# what failed is kept in .hypothesis.
settings.register_profile(
    "acker", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.register_profile("ci", parent=settings.get_profile("acker"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "acker")


# Processes that tests start, and the workers of Spark, find benchmarks, examples and tests.torture here.
ROOT = Path(__file__).resolve().parents[1]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))

os.environ.setdefault("SPARK_LAUNCHER_OPTS", JVM_OPTIONS)
os.environ.setdefault("SPARK_SUBMIT_OPTS", f'{JVM_OPTIONS} "-Dspark.executor.extraJavaOptions={JVM_OPTIONS}"')

# acker.spark needs pyspark; where it is not installed, as in the tests of wheels, there is nothing to test here.
NEED_PYSPARK = [
    "spark/*",
    "benchmarks/test_spark_*",
    "cli/test_doctor.py",
    "torture/test_kills.py",
    "torture/test_shipping.py",
    "examples/*",
]
collect_ignore_glob = [] if find_spec("pyspark") else NEED_PYSPARK

# Names a server of Spark Connect for the tests, such as local[2]: set by tests/spark/test_connect.py.
REMOTE = "ACKER_TESTS_REMOTE"

SHARED = {"spark": "the Spark session", "rabbitmq": "the RabbitMQ server"}
SPARK_SESSION = SHARED["spark"]


# First, since xdist reads the marks in the same hook.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Group the tests for `pytest -n`: one process runs all that share what is in SHARED, else each file is a group.

    The longest groups begin first, so that no process is left with one of them at the end.
    """

    def group_of(item):
        return next((group for name, group in SHARED.items() if name in item.fixturenames), str(item.path))

    def start_order(item):
        return group_of(item) != SPARK_SESSION, item.get_closest_marker("spark") is None

    items.sort(key=start_order)  # stable: within a file the order stays
    for item in items:
        item.add_marker(pytest.mark.xdist_group(group_of(item)))


@pytest.fixture(scope="session", autouse=True)
def home_of_spark(tmp_path_factory):
    """Whatever Spark the tests start, it is the one that is installed, in a home that is quick to start from."""
    if find_spec("pyspark"):
        os.environ["SPARK_HOME"] = str(make_spark_home(tmp_path_factory.mktemp("spark")))


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """One Spark session for all tests: two cores, and tasks that are retried as on a cluster."""
    from pyspark.sql import SparkSession

    # Workers must run this interpreter; Spark would start the first python3 of PATH.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    remote = os.environ.get(REMOTE)
    builder = SparkSession.builder.remote(remote) if remote else SparkSession.builder.master("local[2,4]")
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
    yield session
    session.stop()


@pytest.fixture(scope="session")
def rabbitmq(tmp_path_factory):
    """A RabbitMQ server for all tests, started by scripts/broker.py: its `url`, and `commands`, a folder for PATH."""
    script = Path(__file__).resolve().parent.parent / "scripts/broker.py"
    told = tmp_path_factory.mktemp("rabbitmq") / "told"
    command = [sys.executable, script, "rabbitmq"]
    with (
        told.open("wb") as log,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log) as process,
    ):
        line = process.stdout.readline()
        if not line:
            why = told.read_text(encoding="utf-8").strip()
            # On a machine of CI what apt-get can bring is not done without.
            if process.wait() == 3 and not ("CI" in os.environ and shutil.which("apt-get")):
                pytest.skip(why.rpartition("\n")[2])
            pytest.fail(f"no RabbitMQ server: {why}")
        running = SimpleNamespace(**json.loads(line))
        yield running
        process.stdin.close()  # which tells it to stop
        assert process.wait(90) == 0
    assert not Path(running.folder).exists(), "it leaves its folder behind"
    node = running.url.rpartition(":")[2].partition("/")[0]
    assert not list(Path("/var").glob(f"*/rabbitmq/*{node}*")), "it writes to the folders of the system"


@pytest.fixture(params=[acker.Acker, acker.ReferenceAcker], ids=["native", "reference"])
def acker_type(request):
    """Both implementations: whatever holds for the one holds for the other."""
    return request.param


@pytest.fixture(params=[acker._core, acker._engine.plain], ids=["compiled", "plain"], scope="module")
def core(request):
    """Both implementations of what `Combiner` and `OpenTrees` use, one after the other; returns the one in force."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(acker._engine.combiner, "core", request.param)
        patch.setattr(acker._engine.open_trees, "core", request.param)
        yield request.param


# For tests of what only compiled code has, in modules where all others run with both.
COMPILED_ONLY = pytest.mark.parametrize("core", [acker._core], indirect=True, ids=["compiled"])


@pytest.fixture
def scarce_memory():
    """Whatever a test does to allocations ends with it."""
    yield
    acker._core.fail_allocations_after(-1)


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
