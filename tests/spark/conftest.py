"""One Spark session for all tests of the folder: two cores, and tasks that are retried as on a cluster."""

import os
import sys
import warnings
from importlib.util import find_spec

import pytest

# acker.spark needs pyspark; where it is not installed, as in the tests of wheels, there is nothing here to test.
collect_ignore_glob = [] if find_spec("pyspark") else ["test_*.py"]

# Names a server of Spark Connect for these tests, such as local[2]: set by tests/spark/test_connect.py.
REMOTE = "ACKER_TESTS_REMOTE"


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
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
