"""Parcels: opened by a worker with the driver's acker, and refused in one sentence by another one."""

import pickle

import pytest
from pyspark import cloudpickle

import acker
from acker.spark.parcel import Parcel, pack_function


def test_a_parcel_arrives_as_its_content():
    assert pickle.loads(cloudpickle.dumps(Parcel({"a": 1}))) == {"a": 1}
    assert list(pickle.loads(cloudpickle.dumps(pack_function(iter)))([1, 2])) == [1, 2]


@pytest.mark.spark
def test_a_worker_with_another_acker_fails_the_job_in_one_sentence(spark, monkeypatch):
    def look(batches):
        yield from batches

    packed = pack_function(look)
    monkeypatch.setattr(acker, "__version__", "0.0.1")
    text = r"RuntimeError: the driver has acker 0\.0\.1 and the worker at .* has acker .*: install the same release"
    with pytest.raises(Exception, match=text):
        spark.range(1).mapInArrow(packed, "id long").collect()
