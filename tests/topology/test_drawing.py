"""Drawings for other programs: the whole text of small ones."""

from acker.topology import Bolt, Grouping, Spout, Stream, Topology
from acker.topology.drawing import dot, mermaid


class Lines(Spout):
    outputs = ["line"]

    def next_tuple(self):
        pass


class Work(Bolt):
    outputs = ["word", "n", Stream(["line", "error"], name="errors"), Stream(["word"], name="again")]

    def process(self, tup):
        pass


class Sink(Bolt):
    def process(self, tup):
        pass


class Looping(Topology):
    lines = Lines.spec(par=2)
    split = Work.spec(inputs=["lines", "count:again"], par=4, executors=2)
    count = Work.spec(
        inputs={split: Grouping.fields("word"), split["errors"]: Grouping.all, "count:again": Grouping.none}
    )
    log = Sink.spec(inputs=[split["errors"]])


def test_dot():
    assert dot(Looping.graph()) == (
        'digraph "Looping" {\n'
        "  rankdir=LR;\n"
        '  node [fontname="Helvetica", style=filled];\n'
        '  edge [fontname="Helvetica", fontsize=10];\n'
        '  "lines" [shape=ellipse, fillcolor="#d9f2e6", label="lines\\nLines\\nspout, 2 tasks"];\n'
        '  "split" [shape=box, fillcolor="#e3ecfa", label="split\\nWork\\nbolt, 4 tasks on 2 threads"];\n'
        '  "count" [shape=box, fillcolor="#e3ecfa", label="count\\nWork\\nbolt, 1 task"];\n'
        '  "log" [shape=box, fillcolor="#e3ecfa", label="log\\nSink\\nbolt, 1 task"];\n'
        '  "lines" -> "split" [label="shuffle"];\n'
        '  "count" -> "split" [label="again: shuffle", style=dashed];\n'
        '  "split" -> "count" [label="fields(word)", style=dashed];\n'
        '  "split" -> "count" [label="errors: all", style=dashed];\n'
        '  "count" -> "count" [label="again: none", style=dashed];\n'
        '  "split" -> "log" [label="errors: shuffle"];\n'
        "}\n"
    )


def test_mermaid():
    assert mermaid(Looping.graph()) == (
        "flowchart LR\n"
        '  n0(["lines<br/>Lines<br/>spout, 2 tasks"])\n'
        '  n1["split<br/>Work<br/>bolt, 4 tasks on 2 threads"]\n'
        '  n2["count<br/>Work<br/>bolt, 1 task"]\n'
        '  n3["log<br/>Sink<br/>bolt, 1 task"]\n'
        '  n0 -->|"shuffle"| n1\n'
        '  n2 -.->|"again: shuffle"| n1\n'
        '  n1 -.->|"fields(word)"| n2\n'
        '  n1 -.->|"errors: all"| n2\n'
        '  n2 -.->|"again: none"| n2\n'
        '  n1 -->|"errors: shuffle"| n3\n'
    )


def test_names_are_escaped():
    odd = 'a "b" <c> & #\\`'

    def reader(values, tasks):
        return tasks

    reader.__name__ = "<lambda>"
    specs = {"x": Lines.spec(odd), "y": Sink.spec(inputs={odd: Grouping.custom(reader)})}
    graph = type(Topology)("T", (Topology,), specs).graph()
    assert '"a \\"b\\" <c> & #\\\\`" -> "y" [label="custom(<lambda>)"];' in dot(graph)
    assert '(["a #34;b#34; #60;c#62; #38; #35;\\#96;<br/>Lines<br/>spout, 1 task"])' in mermaid(graph)
