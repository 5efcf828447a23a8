"""MODULE:TOPOLOGY on the command line: what is found, and one sentence with the fix for what is not."""

from __future__ import annotations

import sys

import pytest

from acker.cli.load import UsageError, load
from acker.cli.topology import parse_conf
from acker.topology import Graph, TopologyError

GOOD = """
from acker.topology import Bolt, Spout, Topology

class Lines(Spout):
    outputs = ["line"]

    def next_tuple(self):
        pass

class Print(Bolt):
    def process(self, tup):
        pass

class Printing(Topology):
    lines = Lines.spec()
    printed = Print.spec(inputs=[lines])

class Holder:
    Printing = Printing

graph = Printing.graph()
number = 5
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with some modules in it that are forgotten afterwards."""
    modules = {
        "acker_test_good": GOOD,
        "acker_test_needs": "import acker_test_absent",
        "acker_test_raises": "x = 1\nraise ValueError('no luck')\n",
        "acker_test_syntax": "def broken(:\n",
        "acker_test_empty": "",
        "acker_test_wrong": GOOD.replace("inputs=[lines]", "inputs=[]"),
        "acker_test_package/__init__": "",
        "acker_test_package/inner": GOOD,
    }
    for name, text in modules.items():
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("acker_test_")]:
        del sys.modules[name]


@pytest.mark.parametrize("name", ["acker_test_good:Printing", "acker_test_good:Holder.Printing"])
def test_a_topology_of_the_current_folder_is_found(folder, name) -> None:
    topology = load(name)
    assert topology.graph().name == "Printing"


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("acker_test_good.py", "acker_test_good"),
        ("./acker_test_good.py", "acker_test_good"),
        ("{folder}/acker_test_good.py", "acker_test_good"),
        ("acker_test_package/inner.py", "acker_test_package.inner"),
        ("./acker_test_package/inner", "acker_test_package.inner"),
    ],
)
def test_a_file_below_the_current_folder_is_its_module(folder, name, module) -> None:
    topology = load(f"{name.format(folder=folder)}:Printing")
    assert isinstance(topology, type) and topology.__module__ == module


def test_packages_and_graphs_are_found(folder) -> None:
    assert load("acker_test_package.inner:Printing").__name__ == "Printing"
    assert isinstance(load("acker_test_good:graph"), Graph)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (":Printing", "':Printing' names no topology: write MODULE:TOPOLOGY, such as wordcount:WordCount"),
        (
            "acker_test_good:",
            "'acker_test_good:' names no topology: write MODULE:TOPOLOGY; those of acker_test_good are acker_test_",
        ),
        (
            "acker_test_package/inner.py",
            "'acker_test_package/inner.py' names no topology: write MODULE:TOPOLOGY; those of acker_test_package.inner",
        ),
        (
            "acker_test_empty",
            "'acker_test_empty' names no topology: write MODULE:TOPOLOGY; acker_test_empty defines none",
        ),
        ("acker_test_god", "'acker_test_god' names no topology: write MODULE:TOPOLOGY, such as wordcount:WordCount"),
        ("acker_test_needs", "acker_test_needs imports acker_test_absent, which is not installed"),
        ("acker_test_raises", "acker_test_raises cannot be imported: ValueError: no luck"),
        (
            "acker_test_god:Printing",
            "there is no module acker_test_god in {folder} or on PYTHONPATH: run acker in the ",
        ),
        ("acker_test_none.inner:Printing", "there is no module acker_test_none in {folder} or on PYTHONPATH"),
        ("acker_test_package.iner:Printing", "there is no module acker_test_package.iner in {folder} or on PYTHONPATH"),
        (
            "../acker_test_good.py:Printing",
            "'../acker_test_good.py' is no module of this folder: run acker in its folder and write acker_test_good:Pr",
        ),
        ("acker_test_god.py:Printing", "there is no file acker_test_god.py in {folder}: run acker in the folder that"),
        ("acker_test_needs:Printing", "acker_test_needs imports acker_test_absent, which is not installed"),
        (
            "acker_test_raises:Printing",
            "acker_test_raises cannot be imported: ValueError: no luck ({folder}/acker_test_raises.py, line 2)",
        ),
        (
            "acker_test_syntax:Printing",
            "acker_test_syntax cannot be imported: SyntaxError: invalid syntax ({folder}/acker_test_syntax.py, line 1)",
        ),
        ("acker_test_good:Printign", "acker_test_good has no Printign: did you mean acker_test_good:Printing?"),
        ("acker_test_good:WordCount", "acker_test_good has no WordCount: its topologies are Printing, graph"),
        ("acker_test_empty:WordCount", "acker_test_empty has no WordCount: it defines no topology"),
        (
            "acker_test_good:Print",
            "acker_test_good:Print is the class Print and no subclass of acker.topology.Topology: did you mean acker",
        ),
        ("acker_test_good:number", "acker_test_good:number is of type int and no subclass of acker.topology.Topology"),
        ("acker_test_good:Topology", "acker_test_good:Topology is the class Topology and no subclass of"),
    ],
)
def test_what_is_not_found_is_one_sentence_with_the_fix(folder, name, text) -> None:
    with pytest.raises(UsageError) as caught:
        load(name.format(folder=folder))
    assert str(caught.value).startswith(text.format(folder=folder))
    assert "\n" not in str(caught.value)


def test_a_topology_that_is_defined_wrongly_says_so_itself(folder) -> None:
    with pytest.raises(TopologyError, match="printed"):
        load("acker_test_wrong:Printing").graph()


def test_options_are_json_or_text() -> None:
    assert parse_conf(("a=1", "b=0.5", "c=true", "d=null", "e=some text", "f=", "g=x=y", 'h="1"')) == {
        "a": 1,
        "b": 0.5,
        "c": True,
        "d": None,
        "e": "some text",
        "f": "",
        "g": "x=y",
        "h": "1",
    }
    for pair in ("topology.debug", "=1"):
        with pytest.raises(UsageError, match=f"--conf {pair}: write NAME=VALUE"):
            parse_conf((pair,))


def test_a_project_of_streamparse_is_run_as_it_lies(folder) -> None:
    for name, text in {
        "topologies/acker_test_words.py": "from bolts.acker_test_count import Printing",
        "src/bolts/acker_test_count.py": GOOD,
        "src/bolts/__init__.py": "",
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    try:
        assert load("topologies/acker_test_words.py:Printing").graph().name == "Printing"
    finally:
        for name in [name for name in sys.modules if name.startswith(("topologies", "bolts"))]:
            del sys.modules[name]


@pytest.mark.parametrize(("name", "instead"), [("JavaSpout", "SourceSpout"), ("JavaBolt", "PublishBolt")])
def test_components_in_java_say_what_stands_for_them(folder, name, instead) -> None:
    (folder / "acker_test_java.py").write_text(f"from acker.topology import {name}")
    with pytest.raises(UsageError, match=f"acker runs no Java, so it has no {name}.*{instead}"):
        load("acker_test_java:T")
