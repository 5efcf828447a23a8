"""`acker run --on spark`: what is refused, what travels to the workers, and a whole run."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from pyspark import cloudpickle

from acker.cli.load import UsageError, load
from acker.cli.on_spark import OnSpark, pickled_by_value
from acker.local import read_state
from acker.testing import run_bolt

HELPERS = """
def double(number):
    return 2 * number
"""

MODULE = """
from helpers import double
from acker.topology import Bolt, Grouping, ReliableSpout, StatefulBolt, Topology

class Number:
    def __init__(self, value):
        self.value = value

class Numbers(ReliableSpout):
    outputs = ["number"]
    attempts_max = 2
    backoff_secs = 0.01

    def initialize(self, conf, context):
        self.left = list(range(20))

    def next_tuple(self):
        if self.left:
            number = self.left.pop()
            self.emit([Number(number)], tup_id=number)
        else:
            self.finish()

class Double(Bolt):
    outputs = ["key", "number"]

    def process(self, tup):
        if tup.number.value == 13:
            raise ValueError("unlucky")
        self.emit([tup.number.value % 2, Number(double(tup.number.value))])

class Add(StatefulBolt):
    def process(self, tup):
        assert isinstance(tup.number, Number)
        self.state[tup.key] = self.state.get(tup.key, 0) + tup.number.value

class Sums(Topology):
    numbers = Numbers.spec()
    double = Double.spec(inputs=[numbers])
    add = Add.spec(inputs={double: Grouping.fields("key")}, par=2)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with a topology in it."""
    (tmp_path / "sums.py").write_text(MODULE)
    (tmp_path / "helpers.py").write_text(HELPERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name in ("sums", "helpers"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--trigger", "1 second"], "--trigger 1 second: this is for a run on Spark; add --on spark"),
        (["--master", "local"], "--master local: this is for a run on Spark; add --on spark"),
        (["--checkpoint", "dir"], "--checkpoint dir: this is for a run on Spark; add --on spark"),
        (["--on", "spark", "--trace", "5"], "--trace: this is for a run in this process; leave it out with --on spark"),
        (["--on", "spark", "--no-restart"], "--no-restart: this is for a run in this process"),
        (["--on", "spark", "--max-restarts", "0"], "--max-restarts: this is for a run in this process"),
        (["--on", "spark", "--trigger", "1 second"], "this is for a stream; give its --checkpoint DIR, too"),
    ],
)
def test_options_of_the_other_runtime_are_refused(invoke, arguments, text) -> None:
    answer = invoke("run", "sums:Sums", *arguments)
    assert (answer.exit_code, text in answer.output) == (2, True), answer.output


def test_a_trigger_goes_with_a_checkpoint() -> None:
    OnSpark(None, "dir", "1 second").refuse_local_options({"--trace": None})
    with pytest.raises(UsageError, match="--checkpoint DIR"):
        OnSpark(None, None, "1 second").refuse_local_options({})


def test_modules_of_the_folder_travel_whole_to_a_process_that_has_none_of_them(folder, tmp_path_factory) -> None:
    topology = load("sums:Sums")
    assert isinstance(topology, type)
    module = sys.modules["sums"]
    with pickled_by_value(folder):
        pickled = cloudpickle.dumps((module.Double, module.Number(21), run_bolt))
    code = "\n".join(
        [
            "import pickle, sys",
            "bolt, number, run_bolt = pickle.loads(sys.stdin.buffer.read())",
            "assert 'sums' not in sys.modules and 'helpers' not in sys.modules",
            "assert run_bolt.__module__ == 'acker.testing.bolts', run_bolt.__module__",
            "print(bolt.process.__globals__['double'](number.value))",
        ]
    )
    away = tmp_path_factory.mktemp("away")
    done = subprocess.run([sys.executable, "-c", code], input=pickled, capture_output=True, cwd=away, check=False)
    assert done.stdout.decode().strip() == "42", done.stderr.decode()
    assert b"unlucky" not in cloudpickle.dumps(module.Double), "it is sent by its name again"


def test_a_topology_runs_on_spark_as_it_does_in_this_process(folder) -> None:
    command = [sys.executable, "-m", "acker", "run", "sums.py:Sums", "--on", "spark", "--master", "local[2]"]
    options = ["--report", "report.json", "--state", "sums.state", "--conf", "spark.sql.shuffle.partitions=2"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    last, report = done.stdout.splitlines()[-2:]
    assert last == "Sums: Finished, with everything processed and nothing pending. 2 failed, 1 dead letter."
    assert report == "report: report.json"
    report = json.loads((folder / "report.json").read_text())
    totals = report["stats"]["totals"]
    assert (report["outcome"], totals["acked"], totals["failed"], totals["dead_letters"]) == ("drained", 19, 2, 1)
    assert report["stats"]["components"]["add"]["executed"] == 19

    def sums() -> dict[int, int]:
        return {key: value for state in read_state("sums.state")["add"] for key, value in state.items()}

    assert sums() == {0: 180, 1: 200 - 26}
    # And it goes on in one process, with the sums so far.
    command = [sys.executable, "-m", "acker", "run", "sums.py:Sums", "--state", "sums.state", "--until", "drained"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, sums()) == (0, {0: 360, 1: 2 * (200 - 26)}), done.stderr
