"""The topologies of examples and of projects from streamparse run on Spark as they are."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path

import pytest
from pyspark import cloudpickle

import acker.local
import acker.spark
from acker.topology import ReasonKind

ROOT = Path(__file__).resolve().parents[3]
PROJECTS = ROOT / "tests" / "streamparse"

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quiet")]


@pytest.fixture
def ported(tmp_path, monkeypatch):
    """Change the one word of a project, and import its topology; its modules travel to the workers by value."""
    before = set(sys.modules)

    def port(project, topology):
        for original in (PROJECTS / project).rglob("*.py"):
            target = tmp_path / "project" / original.relative_to(PROJECTS / project)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(re.sub("streamparse", "acker.topology", original.read_text(encoding="utf-8")))
        for folder in ("src", "topologies"):
            monkeypatch.syspath_prepend(tmp_path / "project" / folder)
        found = getattr(importlib.import_module(project), topology)
        for module in new_modules():
            cloudpickle.register_pickle_by_value(module)
        return found

    def new_modules():
        own = str(tmp_path)
        return [
            module
            for name in set(sys.modules) - before
            if own in str(getattr(module := sys.modules[name], "__path__", getattr(module, "__file__", "")))
        ]

    yield port
    for module in new_modules():
        cloudpickle.unregister_pickle_by_value(module)
        del sys.modules[module.__name__]


def figures(report):
    """Return what both runtimes count alike."""
    return {
        name: (row.executed if row.kind == "bolt" else 0, row.acked, row.failed, row.emitted_total, row.transferred)
        for name, row in report.stats.components().items()
        if row.kind != "acker"
    }


def test_the_word_count_of_the_examples(spark, capsys):
    from examples.topology import TEXT, WordCount

    ours = acker.local.run(WordCount, until="drained")
    told = capsys.readouterr().out.splitlines()
    theirs = acker.spark.run(WordCount, spark=spark)
    assert figures(theirs) == figures(ours)
    assert theirs.outcome == ours.outcome == "drained"
    assert theirs.stats.totals.acked == len(TEXT) - 1
    # The spout is on the driver, and what bolts print is where they run.
    gave_up = "line 3 was given up: ValueError: '4' is no word"
    assert gave_up in told and gave_up in capsys.readouterr().out.splitlines()


def test_the_word_count_from_streamparse(spark, ported):
    topology = ported("wordcount", "WordCount")
    conf = {"user.words.limit": 1000}
    ours, theirs = acker.local.run(topology, conf, until=1000), acker.spark.run(topology, conf, spark=spark, until=1000)
    assert figures(theirs) == figures(ours)
    assert theirs.stats.components()["word_spout"].acked == 1000


def test_the_page_views_from_streamparse(spark, ported, tmp_path, monkeypatch):
    topology = ported("pageviews", "Pageviews")
    spout = topology.graph().nodes["pageview-spout"].component
    given_up = []

    def dead_letter(self, tup_id, values, reason):
        given_up.append((tup_id, reason))

    def next_tuple(self, original=spout.next_tuple):
        if self.position == len(self.views):
            self.finish()
        original(self)

    for name, value in (("backoff_secs", 0.01), ("dead_letter", dead_letter), ("next_tuple", next_tuple)):
        monkeypatch.setattr(spout, name, value)
    views = [
        {"url": f"/{n % 7}", "user": f"user{n % 5}", "seconds": -1 if n % 10 == 0 else n, "number": n}
        for n in range(100)
    ]
    path = tmp_path / "views"
    path.write_text("\n".join(map(json.dumps, views)), encoding="utf-8")
    report = acker.spark.run(topology, {"user.pageviews.path": str(path)}, spark=spark)
    # Its last bolt loses the first batch of each instance, and on Spark each micro-batch has an instance of its own: it
    # counts its attempts in an attribute, not in its state.
    good = {n + 1 for n in range(100) if n % 10}
    assert {tup_id for tup_id, _ in given_up} == good
    assert {(reason.kind, reason.component, reason.exception) for _, reason in given_up} == {
        (ReasonKind.FAILED, "latest_bolt", "OSError: the database went away")
    }
    assert report.stats.components()["pageview-spout"].acked == 10
    assert report.outcome == "drained"
