"""Versioned pickles: opened by a worker with the driver's acker, and refused in one sentence by another one."""

import gc
import importlib
import pickle
import sys

import pyarrow as pa
import pytest
from pyspark import cloudpickle

import acker
from acker.spark.versioned_pickle import VersionedPickle, pack_function


def test_a_versioned_pickle_arrives_as_its_content():
    assert pickle.loads(cloudpickle.dumps(VersionedPickle({"a": 1}))) == {"a": 1}
    assert list(pickle.loads(cloudpickle.dumps(pack_function(iter)))([1, 2])) == [1, 2]


@pytest.mark.spark
def test_modules_of_a_worker_are_no_garbage_to_look_for(spark):
    def count(_):
        yield pa.RecordBatch.from_pydict({"frozen": [gc.get_freeze_count()]})

    (row,) = spark.range(1).coalesce(1).mapInArrow(pack_function(count), "frozen long").collect()
    assert row.frozen > 10_000
    frozen = gc.get_freeze_count()
    pickle.loads(cloudpickle.dumps(VersionedPickle(1)))
    assert gc.get_freeze_count() <= frozen, "a pickle that is opened elsewhere leaves the garbage collector alone"


@pytest.mark.spark
def test_a_worker_with_another_acker_fails_the_job_in_one_sentence(spark, monkeypatch):
    def look(batches):
        yield from batches

    packed = pack_function(look)
    monkeypatch.setattr(acker, "__version__", "0.0.1")
    text = r"RuntimeError: the driver has acker 0\.0\.1 and the worker at .* has acker .*: install the same release"
    with pytest.raises(Exception, match=text):
        spark.range(1).mapInArrow(packed, "id long").collect()


def test_a_worker_without_a_module_of_the_users_is_told_what_to_do(tmp_path, monkeypatch):
    (tmp_path / "only_on_the_driver.py").write_text("def look(batches):\n    yield from batches\n")
    monkeypatch.syspath_prepend(tmp_path)
    packed = cloudpickle.dumps(pack_function(importlib.import_module("only_on_the_driver").look))
    monkeypatch.undo()
    monkeypatch.delitem(sys.modules, "only_on_the_driver")
    text = r"No module named 'only_on_the_driver': .* has not: call spark\.addArtifacts\(path, pyfile=True\) with"
    with pytest.raises(ModuleNotFoundError, match=text):
        pickle.loads(packed)
