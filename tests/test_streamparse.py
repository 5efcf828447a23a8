"""Two projects in the classic style of streamparse run here with one word changed, wherever that stands."""

import importlib
import json
import logging
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

import acker.topology
from acker.local import LocalRuntime
from acker.testing import ManualClock, Scheduler

PROJECTS = Path(__file__).parent / "streamparse"
WAY = re.compile(r"^from streamparse[.\w]* |^import streamparse$|\(streamparse\.", re.MULTILINE)


def changed(text):
    """Change the one word, as one would by hand."""
    return text.replace("streamparse", "acker.topology")


@pytest.fixture
def ported(tmp_path, monkeypatch):
    """Change the one word of a project, and import its topology."""

    def port(project, topology):
        originals = sorted((PROJECTS / project).rglob("*.py"))
        assert len(originals) >= 3
        for original in originals:
            target = tmp_path / original.relative_to(PROJECTS / project)
            target.parent.mkdir(parents=True, exist_ok=True)
            text = original.read_text(encoding="utf-8")
            target.write_text(changed(text), encoding="utf-8")
        for folder in ("src", "topologies"):
            monkeypatch.syspath_prepend(tmp_path / folder)
        return getattr(importlib.import_module(project), topology)

    before = set(sys.modules)
    yield port
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__path__", getattr(sys.modules[name], "__file__", ""))):
            del sys.modules[name]


@pytest.fixture
def instances(monkeypatch):
    """Remember the tasks of a component class, which a runtime makes and keeps to itself."""

    def of(component):
        tasks, initialize = [], component.initialize

        def remembering(self, conf, context):
            tasks.append(self)
            initialize(self, conf, context)

        monkeypatch.setattr(component, "initialize", remembering)
        return tasks

    return of


def test_the_projects_write_the_word_in_several_ways():
    texts = [path.read_text(encoding="utf-8") for path in PROJECTS.rglob("*.py")]
    ways = {
        way
        for text in texts
        for way in re.findall(r"^from streamparse[.\w]* |^import streamparse$|\(streamparse\.", text, re.MULTILINE)
    }
    expected = {
        "from streamparse ",
        "from streamparse.bolt ",
        "from streamparse.dsl ",
        "import streamparse",
        "(streamparse.",
    }
    assert ways == expected


# Every way in which a project may name what there is a counterpart of: by streamparse 4 and pystorm 3.
MODULES = {
    "": [
        "BatchingBolt",
        "Bolt",
        "Grouping",
        "ReliableSpout",
        "Spout",
        "Stream",
        "TicklessBatchingBolt",
        "Topology",
        "Tuple",
    ],
    ".bolt": ["BatchingBolt", "Bolt", "TicklessBatchingBolt"],
    ".spout": ["ReliableSpout", "Spout"],
    ".component": ["Component", "Tuple"],
    ".dsl": ["Grouping", "Stream", "Topology"],
    ".dsl.stream": ["Grouping", "Stream"],
    ".dsl.topology": ["Topology"],
    ".dsl.component": ["ComponentSpec"],
    ".storm": ["BatchingBolt", "Bolt", "Component", "ReliableSpout", "Spout", "TicklessBatchingBolt", "Tuple"],
    ".storm.bolt": ["BatchingBolt", "Bolt", "TicklessBatchingBolt"],
    ".storm.spout": ["ReliableSpout", "Spout"],
    ".storm.component": ["Component", "Tuple"],
}


@pytest.mark.parametrize("module", MODULES)
def test_the_modules_have_the_same_names(module):
    for name in MODULES[module]:
        for line in (
            f"from streamparse{module} import {name} as found",
            f"import streamparse{module}; found = streamparse{module}.{name}",
            f"import streamparse; found = streamparse{module}.{name}",
        ):
            found = {}
            exec(changed(line), found)
            assert found["found"] is getattr(acker.topology, name)
    members = importlib.import_module(changed(f"streamparse{module}")).__all__
    assert set(MODULES[module]) <= set(members)


def run(topology, conf, seed):
    clock = ManualClock()
    runtime = LocalRuntime(topology, conf, clock=clock, seed=seed, threads=False)
    return runtime, Scheduler(runtime, clock, seed)


@pytest.mark.parametrize("seed", range(5))
def test_word_count(ported, instances, caplog, seed):
    topology = ported("wordcount", "WordCount")
    spouts, counts = (instances(node.component) for node in topology.graph().nodes.values())
    caplog.set_level(logging.INFO, "acker.topology")
    runtime, scheduler = run(topology, {"user.words.limit": 1000}, seed)
    runtime.start()
    scheduler.run(lambda: spouts and len(spouts[0].acked) == 1000)
    runtime.stop()
    scheduler.run()
    assert runtime.error is None
    # By fields: each word is counted by one task. Dogs count ten times.
    assert len(counts) == 2
    assert sum((task.counter for task in counts), Counter()) == {"dog": 2500, "cat": 250, "zebra": 250, "elephant": 250}
    assert not counts[0].counter.keys() & counts[1].counter.keys()
    assert any(re.fullmatch(r"counted \[[\d,]+\] words \[pid=\d+\]", message) for message in caplog.messages)


@pytest.mark.parametrize("seed", range(5))
def test_page_views_in_batches(ported, instances, caplog, tmp_path, seed):
    topology = ported("pageviews", "Pageviews")
    tasks = {name: instances(node.component) for name, node in topology.graph().nodes.items()}
    views = [
        {"url": f"/{number % 7}", "user": f"user{number % 5}", "seconds": -1 if number % 10 == 0 else number}
        for number in range(500)
    ]
    path = tmp_path / "views"
    path.write_text("\n".join(map(json.dumps, views)), encoding="utf-8")
    caplog.set_level(logging.INFO, "acker.topology")
    runtime, scheduler = run(topology, {"user.pageviews.path": str(path)}, seed)
    runtime.start()
    scheduler.run(lambda: sum(task.acked for task in runtime.stats().tasks if task.kind == "spout") == len(views))
    runtime.stop()
    scheduler.run()
    assert runtime.error is None
    good, bad = ([view for view in views if (view["seconds"] < 0) is broken] for broken in (False, True))
    counted = sum((task.counts for task in tasks["count_bolt"]), Counter())
    # At least once: what the failed batch was made of was counted again when it was replayed.
    assert counted.keys() == {view["url"] for view in good} and counted.total() > len(good)
    [latest] = tasks["latest_bolt"]
    assert latest.rows == counted
    assert latest.attempts >= 3
    [broken] = tasks["broken_bolt"]
    assert broken.users == Counter(view["user"] for view in bad)
    assert broken.ticks >= 1
    assert f"{len(broken.users)} users with broken views" in caplog.messages
    assert "the database went away" in caplog.text
