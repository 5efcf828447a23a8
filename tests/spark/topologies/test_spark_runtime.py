"""What the driver of a topology on Spark keeps to itself."""

from __future__ import annotations

import threading

import pytest

from acker.spark import run
from acker.topology import Topology
from acker.ui import LivePage
from tests.spark.topologies.both import FOLDER, Numbers
from tests.spark.topologies.test_alike import End

pytestmark = pytest.mark.spark


def test_a_spout_on_the_driver_may_hold_what_cannot_be_pickled(spark, tmp_path):
    lock = threading.Lock()

    class Locked(Numbers):  # a class of a function, as one of a script or a notebook, is pickled with all it refers to
        def next_tuple(self):
            with lock:
                super().next_tuple()

    class Guarded(Topology):
        numbers = Locked.spec(config={"user.lock": lock})
        end = End.spec(inputs=[numbers])

    report = run(Guarded, {FOLDER: str(tmp_path)}, spark=spark)
    assert report.stats.totals.acked == 30


class Shown(Topology):
    numbers = Numbers.spec()
    end = End.spec(inputs=[numbers])


def test_the_driver_shows_a_live_page(spark, tmp_path, capsys):
    report = run(Shown, {FOLDER: str(tmp_path)}, spark=spark, ui=LivePage(port=0))
    assert report.stats.totals.acked == 30
    assert "live page of Shown: http://127.0.0.1:" in capsys.readouterr().err
