"""What a streaming acker is refused for when its plan is made: on a real session, by really changing it."""

import subprocess
import sys
import warnings

import pytest
from google.protobuf import runtime_version

from acker.errors import AckerError, SessionError
from acker.spark import session_checks
from acker.spark.session_checks import check_streaming_session

HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"


@pytest.fixture
def conf(spark):
    """The session's conf, with RocksDB, and as it was at the end."""
    names = (session_checks.PROVIDER_CONF, session_checks.PARTITIONS_CONF)
    before = {name: spark.conf.get(name) for name in names}
    spark.conf.set(session_checks.PROVIDER_CONF, session_checks.PROVIDER)
    yield spark.conf
    for name, value in before.items():
        spark.conf.set(name, value)


@pytest.mark.spark
def test_a_session_with_rocksdb_is_fine(spark, conf):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_streaming_session(spark)
        conf.set(session_checks.PROVIDER_CONF, "com.vendor.streaming.RocksDBStateStoreProvider")
        check_streaming_session(spark)


@pytest.mark.spark
def test_the_refusal_of_another_state_store_has_the_line_that_mends_it(spark, conf):
    conf.set(session_checks.PROVIDER_CONF, HDFS)
    with pytest.raises(SessionError, match="which cannot hold the state of an acker") as caught:
        check_streaming_session(spark)
    assert HDFS in str(caught.value)
    exec(str(caught.value).partition("call ")[2], {"spark": spark})
    check_streaming_session(spark)


@pytest.mark.spark
def test_many_state_partitions_for_the_cores_are_warned_of(spark, conf):
    conf.set(session_checks.PARTITIONS_CONF, "8")
    check_streaming_session(spark)
    conf.set(session_checks.PARTITIONS_CONF, "200")
    with pytest.warns(UserWarning, match=r"is 200 and the session has 2 cores.*shuffle.partitions\", \"2\"\)"):
        check_streaming_session(spark)


@pytest.mark.spark
def test_workers_with_another_python_are_told_of_before_the_query_starts(spark, conf, monkeypatch, tmp_path):
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\necho 3.9\n")
    other.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(other))
    with pytest.raises(SessionError) as caught:
        check_streaming_session(spark)
    assert f"would run {other}, which is Python 3.9" in str(caught.value)
    assert f"PYSPARK_PYTHON to {sys.executable}" in str(caught.value)
    for missing in (tmp_path / "none", "acker-has-no-such-python"):  # Spark's own words are clear about these
        monkeypatch.setattr(spark.sparkContext, "pythonExec", str(missing))
        check_streaming_session(spark)


@pytest.mark.parametrize(("module", "package"), [("pandas", "pandas"), ("google.protobuf.runtime_version", "protobuf")])
def test_a_missing_package_is_named(monkeypatch, module, package):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SessionError) as caught:
        check_streaming_session(None)
    assert str(caught.value) == f"Spark's state store needs {package}: pip install 'acker[spark]'"


def test_a_protobuf_that_does_not_fit_pyspark_is_told_with_both_versions(monkeypatch):
    monkeypatch.delitem(sys.modules, session_checks._STATE_CLIENT, raising=False)
    monkeypatch.setattr(runtime_version, "MAJOR", 4)
    with pytest.raises(SessionError, match=r"protobuf \S+ does not fit PySpark \S+: install another .* runtime 4\."):
        check_streaming_session(None)


def test_the_errors_are_what_callers_expect():
    assert issubclass(SessionError, AckerError) and issubclass(SessionError, RuntimeError)


def test_the_checks_do_not_import_what_they_ask_for():
    """So that a missing package is answered by them, and not by an import."""
    code = "import sys, acker.spark.session_checks; print({'pandas', 'google.protobuf'} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "set()\n"
