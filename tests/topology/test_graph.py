"""Definitions: the graphs of correct ones, and the errors of wrong ones."""

import pickle

import pytest
from IPython.core.formatters import DisplayFormatter

from acker.topology import (
    BatchingBolt,
    Bolt,
    ConfError,
    Graph,
    Grouping,
    ReliableSpout,
    Spout,
    Stream,
    StreamId,
    Subscription,
    Topology,
    TopologyError,
)
from acker.topology.component import Component
from acker.topology.graph import graph_of


class Lines(ReliableSpout):
    outputs = ["line"]
    config = {"topology.max.spout.pending": 5}

    def next_tuple(self):
        pass


class Split(Bolt):
    outputs = ["word", "length", Stream(["line", "error"], name="errors")]
    config = {"topology.tick.tuple.freq.secs": 1, "topology.debug": True}

    def process(self, tup):
        pass


class Count(Bolt):
    outputs = ["word", "count"]

    def process(self, tup):
        pass


class Router(Bolt):
    outputs = [Stream(["item"], direct=True)]

    def process(self, tup):
        pass


class Sink(Bolt):
    def process(self, tup):
        pass


class WordCount(Topology):
    config = {"topology.acker.executors": 2, "topology.name": "wc"}
    lines = Lines.spec()
    split = Split.spec(inputs=[lines], par=2, executors=1, config={"topology.tick.tuple.freq.secs": 0.5})
    count = Count.spec(inputs={split: Grouping.fields("word")}, par=3)
    errors = Sink.spec("error_log", inputs=[split["errors"]])


def define(**specs):
    """Define a topology of these specs."""
    return type(Topology)("T", (Topology,), specs)


# --- right ones -------------------------------------------------------------------------------------------------------


def test_nodes_are_in_the_order_of_definition():
    graph = WordCount.graph()
    assert (graph.name, graph.conf) == ("wc", {"topology.acker.tasks": 2, "topology.name": "wc"})
    assert [(n.name, n.kind, n.par, n.executors, n.tasks) for n in graph.nodes.values()] == [
        ("lines", "spout", 1, 1, range(1, 2)),
        ("split", "bolt", 2, 1, range(2, 4)),
        ("count", "bolt", 3, 3, range(4, 7)),
        ("error_log", "bolt", 1, 1, range(7, 8)),
    ]
    assert [node.name for node in graph.spouts] == ["lines"]
    assert [node.name for node in graph.bolts] == ["split", "count", "error_log"]
    assert repr(WordCount) == "<topology WordCount: lines, split, count, error_log>"


def test_notebooks_show_a_drawing_and_the_components_as_a_table():
    table = type(Topology)("<b>", (Topology,), {"lines": (a := Lines.spec()), "split": Split.spec(inputs=[a], par=2)})
    shown = table.graph()._repr_html_()
    assert table._repr_html_() == shown, "the class, too, which notebooks ask for the method"
    assert DisplayFormatter().format(table)[0]["text/html"] == shown
    assert "<caption>&lt;b&gt;</caption>" in shown and "<script" not in shown
    assert "<td>split</td><td>bolt</td><td>Split</td><td>2</td><td>2</td><td>lines:default (shuffle)</td>" in shown
    assert "<td>default: word, length; errors: line, error</td>" in shown


def test_streams_and_conf_of_a_node():
    node = WordCount.graph().nodes["split"]
    assert node.streams == {
        "default": Stream(["word", "length"]),
        "errors": Stream(["line", "error"], name="errors"),
    }
    assert node.conf == {"topology.tick.tuple.freq.secs": 0.5, "topology.debug": True}
    assert node.component is Split


def test_consumers_of_a_stream():
    graph = WordCount.graph()
    subscription = Subscription("split", "default", "count", Grouping.fields("word"))
    assert graph.consumers("split") == graph.consumers("split", "default") == (subscription,)
    assert graph.nodes["count"].inputs == (subscription,)
    assert graph.consumers("count") == ()
    assert [str(s) for s in graph.subscriptions] == [
        "lines:default -> split (shuffle)",
        "split:default -> count (fields(word))",
        "split:errors -> error_log (shuffle)",
    ]


def test_tasks_count_from_one_and_know_their_component():
    graph = WordCount.graph()
    names = [graph.component_of(task) for task in range(1, 8)]
    assert names == ["lines", "split", "split", "count", "count", "count", "error_log"]
    for task in (0, 8, -1):
        with pytest.raises(KeyError, match=f"no task {task}: topology 'wc' has tasks 1 to 7"):
            graph.component_of(task)
    source = graph.source(3, "errors")
    assert (source.component, source.stream, source.task, source.fields) == ("split", "errors", 3, ("line", "error"))


def test_context_has_storms_keys():
    context = WordCount.graph().context(2)
    assert (context["taskid"], context["componentid"], context["task_index"]) == (2, "split", 0)
    assert context["component->tasks"] == {"lines": [1], "split": [2, 3], "count": [4, 5, 6], "error_log": [7]}
    assert [WordCount.graph().context(task)["task_index"] for task in range(1, 8)] == [0, 0, 1, 0, 1, 2, 0]
    assert context["task->component"]["1"] == "lines" and len(context["task->component"]) == 7
    assert context["streams"] == ["default", "errors"]
    assert context["stream->outputfields"] == {"default": ["word", "length"], "errors": ["line", "error"]}
    assert context["source->stream->fields"] == {"lines": {"default": ["line"]}}
    assert context["source->stream->grouping"] == {"lines": {"default": {"type": "SHUFFLE"}}}
    assert context["stream->target->grouping"] == {
        "default": {"count": {"type": "FIELDS", "fields": ["word"]}},
        "errors": {"error_log": {"type": "SHUFFLE"}},
    }


def test_a_direct_stream_is_grouped_direct_unless_said():
    lines, router = Lines.spec(), Router.spec(inputs=["lines"])
    graph = define(lines=lines, router=router, sink=Sink.spec(inputs=[router])).graph()
    assert graph.consumers("router")[0].grouping is Grouping.direct


@pytest.mark.parametrize("key", ["lines", "lines:default", StreamId("lines"), StreamId("lines", "default")])
def test_an_input_may_be_named(key):
    graph = define(sink=Sink.spec(inputs=[key]), lines=Lines.spec()).graph()
    assert graph.consumers("lines")[0].consumer == "sink"
    assert define(sink=Sink.spec(inputs={key: Grouping.all}), lines=Lines.spec()).graph().nodes["sink"].tasks == range(
        1, 2
    )


def test_one_input_needs_no_list():
    lines = Lines.spec()
    assert define(lines=lines, sink=Sink.spec(inputs=lines)).graph().consumers("lines")


def test_loops_are_the_edges_on_cycles():
    lines = Lines.spec()
    first = Split.spec(inputs=[lines, "second", "first:errors"])
    second = Count.spec(inputs=[first])
    graph = define(lines=lines, first=first, second=second, sink=Sink.spec(inputs=[second])).graph()
    assert graph.loops == {("first", "second"), ("second", "first"), ("first", "first")}
    assert WordCount.graph().loops == frozenset()


def test_a_subclass_inherits_adds_and_replaces():
    class Fake(Spout):
        outputs = ["line"]

        def next_tuple(self):
            pass

    class Tested(WordCount):
        lines = Fake.spec()
        errors = None
        more = Sink.spec(inputs=[WordCount.count])

    graph = Tested.graph()
    assert list(graph.nodes) == ["lines", "split", "count", "more"]
    assert graph.nodes["lines"].component is Fake
    assert graph.consumers("lines")[0].consumer == "split"  # which was defined with the spout that was replaced
    assert graph.name == "wc"
    assert WordCount.graph().nodes["lines"].component is Lines


def test_a_base_may_be_without_components():
    class Base(Topology):
        config = {"topology.debug": True}

    class Full(Base):
        lines = Lines.spec()

    assert Full.graph().conf == {"topology.debug": True}
    with pytest.raises(
        TopologyError, match=r"topology Base has no components; assign X.spec\(...\) to class attributes"
    ):
        Base.graph()


def test_graph_of_takes_a_topology_or_a_graph():
    graph = WordCount.graph()
    assert graph_of(WordCount) is graph_of(WordCount()) is graph_of(graph) is graph
    with pytest.raises(TopologyError, match="expected a Topology class or a Graph, got 5"):
        graph_of(5)


def test_a_graph_can_be_pickled():
    graph = WordCount.graph()
    copy = pickle.loads(pickle.dumps(graph))
    assert isinstance(copy, Graph) and copy == graph
    assert copy.consumers("lines") == graph.consumers("lines")


def test_spouts_that_nobody_reads_are_fine():
    assert define(lines=Lines.spec()).graph().subscriptions == ()


def test_streamparses_class_attribute_par():
    class Wide(Lines):
        par = 4

    assert define(lines=Wide.spec()).graph().nodes["lines"].par == 4
    assert define(lines=Wide.spec(par=2)).graph().nodes["lines"].par == 2


# --- wrong ones -------------------------------------------------------------------------------------------------------


class Mute(Spout):
    def next_tuple(self):
        pass


class Loop(Bolt):
    outputs = ["line"]

    def process(self, tup):
        pass


class Twice(Spout):
    outputs = ["line", Stream(["other"])]

    def next_tuple(self):
        pass


class TwoFields(Spout):
    outputs = ["line", "line"]

    def next_tuple(self):
        pass


class OneString(Spout):
    outputs = "line"

    def next_tuple(self):
        pass


class OddOutput(Spout):
    outputs = ["line", 5]

    def next_tuple(self):
        pass


class Reserved(Spout):
    outputs = [Stream(["line"], name="__tick")]

    def next_tuple(self):
        pass


class BadConf(Spout):
    outputs = ["line"]
    config = {"topology.debug": 1}

    def next_tuple(self):
        pass


def bolt_on_lines(**arguments):
    lines = Lines.spec()
    return {"lines": lines, "sink": Sink.spec(**{"inputs": [lines], **arguments})}


def reader_of(component, grouping=None, stream="default"):
    lines = Lines.spec()
    source = lines if component is Lines else component.spec(inputs=[lines])
    key = source[stream]
    specs = {"lines": lines} if component is Lines else {"lines": lines, "middle": source}
    return {**specs, "sink": Sink.spec(inputs=[key] if grouping is None else {key: grouping})}


WRONG = {
    "unknown field": (
        reader_of(Split, Grouping.fields("wrod")),
        (
            "topology T, component 'sink', stream 'default': grouping by field 'wrod', which 'middle' does not emit; "
            "did you mean 'word'?"
        ),
    ),
    "unknown field, nothing near": (
        reader_of(Split, Grouping.fields("word", "zzz")),
        (
            "topology T, component 'sink', stream 'default': grouping by field 'zzz', which 'middle' does not emit; "
            "there are 'word', 'length'"
        ),
    ),
    "no fields": (
        reader_of(Split, Grouping.fields()),
        (
            "topology T, component 'sink', stream 'default': grouping fields of 'middle' names no field; write "
            "Grouping.fields('name')"
        ),
    ),
    "custom without function": (
        reader_of(Split, Grouping.custom(None)),
        (
            "topology T, component 'sink', stream 'default': grouping custom of 'middle' has no function; write "
            "Grouping.custom(fn)"
        ),
    ),
    "no grouping": (
        reader_of(Split, "shuffle"),
        (
            "topology T, component 'sink', stream 'default': the grouping of 'middle' is 'shuffle'; expected a "
            "Grouping "
            "such as Grouping.shuffle"
        ),
    ),
    "direct grouping of a stream that is not": (
        reader_of(Split, Grouping.direct),
        (
            "topology T, component 'sink', stream 'default': grouping direct, but 'middle' does not emit "
            "directly; declare "
            "Stream(..., direct=True)"
        ),
    ),
    "direct stream grouped otherwise": (
        reader_of(Router, Grouping.shuffle),
        (
            "topology T, component 'sink', stream 'default': 'middle' emits directly and the grouping is shuffle; use "
            "Grouping.direct"
        ),
    ),
    "unknown stream": (
        reader_of(Split, stream="eror"),
        (
            "topology T, component 'sink', stream 'eror': reads a stream that 'middle' (Split) does not have; "
            "did you mean "
            "'errors'?"
        ),
    ),
    "missing outputs of a bolt": (
        reader_of(Sink),
        (
            "topology T, component 'sink', stream 'default': reads 'middle', which has no outputs; give Sink outputs = "
            "['field', ...]"
        ),
    ),
    "missing outputs of a spout": (
        {"mute": Mute.spec()},
        "topology T, component 'mute': spout Mute has no outputs; give the class outputs = ['field', ...]",
    ),
    "input that does not exist": (
        bolt_on_lines(inputs=["line"]),
        "topology T, component 'sink': reads component 'line', which does not exist; did you mean 'lines'?",
    ),
    "input that is not in the topology": (
        bolt_on_lines(inputs=[Count.spec()]),
        (
            "topology T, component 'sink': reads <spec of Count>, which is no attribute of this topology; assign it to "
            "one: x = Count.spec(...)"
        ),
    ),
    "input of a strange kind": (
        bolt_on_lines(inputs=[Lines]),
        "topology T, component 'sink': input <class",
    ),
    "inputs of a strange kind": (
        bolt_on_lines(inputs=5),
        "topology T, component 'sink': inputs are a list of specs, or a dict from spec to Grouping, got 5",
    ),
    "read twice": (
        bolt_on_lines(inputs=["lines", "lines:default"]),
        "topology T, component 'sink', stream 'default': reads this stream of 'lines' twice; keep one of the two",
    ),
    "bolt without inputs": (
        bolt_on_lines(inputs=None),
        "topology T, component 'sink': a bolt without inputs never runs; write spec(inputs=[...])",
    ),
    "duplicate names": (
        {"lines": Lines.spec(), "other": Lines.spec(name="lines")},
        "topology T, component 'lines': two components have this name; rename one of them",
    ),
    "no spout": (
        {"sink": Sink.spec(inputs=["other"]), "other": Loop.spec(inputs=["other"])},
        "topology T: has no spout; nothing would ever run",
    ),
    "cycle without a way in": (
        {
            "lines": Lines.spec(),
            "tail": Sink.spec(inputs=["second"]),
            "first": Loop.spec(inputs=["second"]),
            "second": Loop.spec(inputs=["first"]),
        },
        (
            "topology T, component 'first', stream 'default': a cycle without a way in: first, second read each "
            "other only "
            "and no spout reaches them; give one of them an input from outside"
        ),
    ),
    "self-loop without a way in": (
        {"lines": Lines.spec(), "only": Loop.spec(inputs=["only"])},
        "topology T, component 'only', stream 'default': a cycle without a way in: only",
    ),
    "reserved component": (
        {"__acker": Lines.spec()},
        (
            "topology T, component '__acker': a component is named by a str without ':' that does not begin with '__'; "
            "rename it"
        ),
    ),
    "name with a colon": ({"x": Lines.spec("a:b")}, "topology T, component 'a:b': a component is named by a str"),
    "name that is no text": ({"x": Lines.spec(5)}, "topology T, component 5: a component is named by a str"),
    "reserved stream": (
        {"bad": Reserved.spec()},
        "topology T, component 'bad', stream '__tick': names that begin with '__' are the runtime's; rename it",
    ),
    "two streams of a name": (
        {"bad": Twice.spec()},
        (
            "topology T, component 'bad', stream 'default': two streams have this name; rename one by "
            "Stream(fields, name=...)"
        ),
    ),
    "a field twice": (
        {"bad": TwoFields.spec()},
        "topology T, component 'bad', stream 'default': field 'line' is there twice; rename or remove one",
    ),
    "outputs that are one string": (
        {"bad": OneString.spec()},
        "topology T, component 'bad': outputs are a list of field names and of Stream, got 'line'",
    ),
    "outputs of a strange kind": (
        {"bad": OddOutput.spec()},
        "topology T, component 'bad': outputs hold 5; expected a field's name or a Stream",
    ),
    "par 0": (bolt_on_lines(par=0), "topology T, component 'sink': par=0; it is an int of at least 1"),
    "par of a strange kind": (
        bolt_on_lines(par=2.0),
        "topology T, component 'sink': par=2.0; it is an int of at least 1",
    ),
    "par True": (bolt_on_lines(par=True), "topology T, component 'sink': par=True; it is an int of at least 1"),
    "executors 0": (
        bolt_on_lines(executors=0),
        "topology T, component 'sink': executors=0; it is an int of at least 1",
    ),
    "executors above par": (
        bolt_on_lines(par=2, executors=3),
        (
            "topology T, component 'sink': executors=3 for par=2 tasks; an executor runs at least one task, so "
            "raise par "
            "or lower executors"
        ),
    ),
    "a class instead of its spec": (
        {"lines": Lines},
        "topology T: 'lines' is not a spec; write lines = Lines.spec(...)",
    ),
    "an instance instead of a spec": (
        {"lines": Lines()},
        "topology T: 'lines' is not a spec; write lines = Lines.spec(...)",
    ),
    "config of a strange kind": (
        {"config": ["a"], "lines": Lines.spec()},
        "topology T, the topology: config is a dict, got ['a']",
    ),
    "unknown option": (
        {"config": {"topology.nam": "x"}, "lines": Lines.spec()},
        "topology T, the topology: option 'topology.nam' is unknown; the nearest is 'topology.name'",
    ),
    "wrong option of a spec": (
        bolt_on_lines(config={"topology.tick.tuple.freq.secs": 0}),
        "topology T, component 'sink': option 'topology.tick.tuple.freq.secs': expected",
    ),
    "wrong option of a class": (
        {"bad": BadConf.spec()},
        "topology T, component 'bad': option 'topology.debug': expected True or False, got 1",
    ),
}


@pytest.mark.parametrize(("specs", "text"), WRONG.values(), ids=WRONG)
def test_a_wrong_definition_says_what_mends_it(specs, text):
    with pytest.raises(TopologyError) as caught:
        define(**specs)
    assert str(caught.value).startswith(text)
    if "option" in str(caught.value):
        assert isinstance(caught.value, ConfError)


class NoNext(Spout):
    outputs = ["line"]


class NoProcess(Bolt):
    pass


class NoBatch(BatchingBolt):
    pass


class OldInitialize(Sink):
    def initialize(self, conf):
        pass


class ConfAndMore(Sink):
    def initialize(self, conf, context, more):
        pass


class NoTup(Bolt):
    def process(self):
        pass


METHODS = {
    "no next_tuple": (NoNext, "NoNext does not define next_tuple(); give the class def next_tuple(self)"),
    "no process": (NoProcess, "NoProcess does not define process(); give the class def process(self, tup)"),
    "no process_batch": (
        NoBatch,
        "NoBatch does not define process_batch(); give the class def process_batch(self, key, tups)",
    ),
    "initialize takes too little": (
        OldInitialize,
        "OldInitialize.initialize cannot be called with (conf, context); write def initialize(self, conf, context)",
    ),
    "initialize takes too much": (
        ConfAndMore,
        "ConfAndMore.initialize cannot be called with (conf, context); write def initialize(self, conf, context)",
    ),
    "process takes no tuple": (NoTup, "NoTup.process cannot be called with (tup); write def process(self, tup)"),
}


@pytest.mark.parametrize(("component", "text"), METHODS.values(), ids=METHODS)
def test_methods_are_there_and_can_be_called(component, text):
    lines = Lines.spec()
    specs = {"lines": lines, "it": component.spec(inputs=[lines]) if issubclass(component, Bolt) else component.spec()}
    with pytest.raises(TopologyError) as caught:
        define(**specs)
    assert str(caught.value) == f"topology T, component 'it': {text}"


def test_methods_of_every_kind_are_taken():
    class Base:
        def process(self, tup, *more, option=None):
            pass

    class Mixed(Base, Bolt):
        @staticmethod
        def initialize(conf, *_):
            pass

    class OfClass(Base, Bolt):
        @classmethod
        def initialize(cls, conf, context):
            pass

    class Callable:
        def __call__(self, *arguments):
            pass

    class OfObject(Bolt):
        process = Callable()
        initialize = max  # has no signature

    lines = Lines.spec()
    kinds = {kind.__name__: kind.spec(inputs=[lines]) for kind in (Mixed, OfClass, OfObject)}
    assert len(define(lines=lines, **kinds).graph().bolts) == 3


def test_one_spec_is_one_component():
    spec = Lines.spec()
    with pytest.raises(TopologyError, match=r"one spec is both 'a' and 'b'; call spec\(\) once for each component"):
        define(a=spec, b=spec)
    named = Lines.spec("same")
    with pytest.raises(TopologyError, match=r"one spec is both 'same' and 'b'; call spec\(\) once for each component"):
        define(a=named, b=named)


def test_a_component_that_is_neither_has_no_spec():
    class Neither(Component):
        pass

    with pytest.raises(TopologyError, match="Neither is neither a Spout nor a Bolt; derive it from one of the two"):
        Neither.spec()


def test_a_spec_is_no_list():
    with pytest.raises(TopologyError, match=r"<spec of Lines> is not a list; write \[spec\]"):
        list(Lines.spec())


def test_a_spout_has_no_inputs():
    with pytest.raises(TypeError, match="inputs"):
        Lines.spec(inputs=[])


# --- a parallelism for each environment -------------------------------------------------------------------------------


def by_environment(lines=None, split=None, **more):
    spec = Lines.spec(par=lines)
    return define(lines=spec, split=Split.spec(inputs=[spec], par=split, **more))


def pars(graph):
    return [(node.par, node.executors, node.tasks) for node in graph.nodes.values()]


def test_par_may_be_said_for_each_environment():
    topology = by_environment({"prod": 5, "beta": 1}, {"beta": 2, "prod": 4}, executors=2)
    assert pars(topology.graph("prod")) == [(5, 5, range(1, 6)), (4, 2, range(6, 10))]
    assert pars(topology.graph(environment="beta")) == [(1, 1, range(1, 2)), (2, 2, range(2, 4))]
    assert pars(graph_of(topology, "prod")) == pars(topology.graph("prod"))


def test_the_only_environment_need_not_be_said():
    assert pars(by_environment({"prod": 5}, 2).graph()) == [(5, 5, range(1, 6)), (2, 2, range(6, 8))]
    assert pars(by_environment(1, 2).graph("prod")) == pars(by_environment(1, 2).graph())


def test_a_class_may_have_a_par_for_each_environment():
    many = type("Many", (Lines,), {"par": {"prod": 3, "beta": 1}})
    spec = many.spec()
    topology = define(lines=spec, last=Sink.spec(inputs=[spec]))
    assert pars(topology.graph("prod"))[0] == (3, 3, range(1, 4))


def test_an_environment_that_is_not_said_or_not_known():
    topology = by_environment({"prod": 5, "beta": 1}, 2)
    where = "topology T, component 'lines': par has a number for each of the environments 'prod', 'beta'"
    with pytest.raises(TopologyError) as refusal:
        topology.graph()
    assert str(refusal.value) == f"{where}; choose one: run(..., environment='prod'), acker run --environment prod"
    with pytest.raises(TopologyError) as refusal:
        topology.graph("prd")
    assert str(refusal.value) == f"{where} and none for 'prd'; did you mean 'prod'?"
    with pytest.raises(TopologyError, match="a Graph has one environment; pass the Topology class, or the result of"):
        graph_of(topology.graph("prod"), "beta")


@pytest.mark.parametrize(
    ("par", "text"),
    [
        ({}, "par={}; name an environment, or write an int"),
        ({"prod": 0}, "par=0 in environment 'prod'; it is an int of at least 1"),
        ({"prod": "5"}, "par='5' in environment 'prod'; it is an int of at least 1"),
        ({"prod": True}, "par=True in environment 'prod'"),
        ({5: 1}, "a dict has names of environments for keys"),
        ({"": 1}, "a dict has names of environments for keys"),
        ([1], r"par=\[1\]; it is an int of at least 1"),
    ],
)
def test_a_par_that_cannot_be(par, text):
    with pytest.raises(TopologyError, match=f"topology T, component 'lines': .*{text}"):
        by_environment(par, 1)


def test_every_environment_is_checked_where_the_topology_is_defined():
    with pytest.raises(TopologyError, match=r"component 'split': .* no number for environment 'beta', which another"):
        by_environment({"prod": 5, "beta": 1}, {"prod": 2})
    with pytest.raises(TopologyError, match="component 'split': executors=2 for par=1 tasks"):
        by_environment(1, {"prod": 2, "beta": 1}, executors=2)
