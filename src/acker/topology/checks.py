"""The checks of a topology's definition, which find mistakes before anything runs, and the graph that they build."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

from acker.errors import ConfError, TopologyError
from acker.observe.backoff import backoff_error
from acker.topology import conf as conf_module
from acker.topology.arrow_bolt import ArrowBolt
from acker.topology.arrow_windowed import WindowedArrowBolt
from acker.topology.bolt import BatchingBolt, Bolt
from acker.topology.component import Component
from acker.topology.graph import Graph, Node, Subscription, reachable
from acker.topology.groupings import BY_FIELDS, Grouping
from acker.topology.join_bolt import JoinArrowBolt
from acker.topology.methods import (
    accepts_arguments,
    instantiation_error,
    override_without,
    signature_of,
    unrunnable_method,
)
from acker.topology.specs import ComponentSpec, StreamId
from acker.topology.spout import ReliableSpout, Spout, has_frame
from acker.topology.stateful import StatefulBolt
from acker.topology.streams import DEFAULT_STREAM, Stream
from acker.topology.suggestions import suggestion
from acker.topology.windowed import WindowedBolt

_TICKS: Final = "topology.tick.tuple.freq.secs"

# Methods that have to be overridden: the class whose method raises, its name, its arguments.
_REQUIRED: Final[tuple[tuple[type[Component], str, tuple[str, ...]], ...]] = (
    (Spout, "next_tuple", ()),
    (Bolt, "process", ("tup",)),
    (BatchingBolt, "process_batch", ("key", "tups")),
    (WindowedBolt, "process_window", ("window",)),
    (ArrowBolt, "process_rows", ("batch",)),
)
# Other methods that a runtime calls, overridden or not.
_OPTIONAL: Final[tuple[tuple[type[Component], str, tuple[str, ...]], ...]] = (
    (Component, "initialize", ("conf", "context")),
    (Component, "close", ()),
    (Spout, "ack", ("tup_id",)),
    (Spout, "fail", ("tup_id",)),
    (Spout, "ack_batch", ("tup_ids",)),
    (Spout, "fail_batch", ("tup_ids", "reasons")),
    (Spout, "activate", ()),
    (Spout, "deactivate", ()),
    (Spout, "keep_alive", ()),
    (Spout, "frame", ("spark", "conf")),
    (ReliableSpout, "dead_letter", ("tup_id", "values", "reason")),
    (Bolt, "activate", ()),
    (Bolt, "deactivate", ()),
    (Bolt, "process_tick", ("tup",)),
    (Bolt, "tick_secs", ("conf",)),
    (BatchingBolt, "group_key", ("tup",)),
    (StatefulBolt, "init_state", ("state",)),
    (WindowedBolt, "group_key", ("tup",)),
    (WindowedBolt, "process_late", ("tup",)),
)
# Overrides of ReliableSpout, and what they call so that the tuple is not remembered as open; it may be emitted again.
_FORGETTING: Final = {"ack": {"ack"}, "fail": {"ack", "fail", "emit"}}


def _is_free_name(name: object) -> bool:
    return isinstance(name, str) and name != "" and not name.startswith("__") and ":" not in name


def environments_of(specs: Iterable[ComponentSpec]) -> list[str | None]:
    """Return the environments for which specs give a number of tasks; [None] if there are none."""
    named = [str(each) for spec in specs if isinstance(spec.par, Mapping) for each in spec.par]
    return list(dict.fromkeys(named)) or [None]


def build(
    name: str,
    config: object,
    specs: Mapping[str, ComponentSpec],
    names: Mapping[ComponentSpec, str],
    environment: str | None = None,
) -> Graph:
    """Check a definition and return its graph.

    Parameters
    ----------
    name : str
        Name of the topology, unless the option topology.name gives one.
    config : mapping
        The topology's options.
    specs : dict
        Attribute -> spec, in the order of definition.
    names : dict
        The name of each spec, also of those that a subclass replaced.
    environment : str, optional
        Chooses the number of tasks of components that have one for each environment.

    Raises
    ------
    TopologyError
    """
    return _GraphBuilder(name, config, specs, names, environment).graph()


class _GraphBuilder:
    """Builds one graph; `_error` makes all its errors, so that their texts are alike."""

    def __init__(
        self,
        name: str,
        config: object,
        specs: Mapping[str, ComponentSpec],
        names: Mapping[ComponentSpec, str],
        environment: str | None,
    ) -> None:
        self._topology = name
        self._environment = environment
        self._config = config
        self._names = names
        self._specs: dict[str, ComponentSpec] = {}
        for spec in specs.values():
            component = names[spec]
            if component in self._specs:
                raise self._error(component, "two components have this name; rename one of them")
            self._specs[component] = spec

    def graph(self) -> Graph:
        conf = self._conf("the topology", self._config)
        streams = {name: self._streams(name, spec) for name, spec in self._specs.items()}
        first_task = 1
        nodes: dict[str, Node] = {}
        for name, spec in self._specs.items():
            par, executors = self._parallelism(name, spec)
            kind = self._check_component(name, spec)
            nodes[name] = Node(
                name=name,
                component=spec.component,
                kind=kind,
                par=par,
                executors=executors,
                conf={
                    **self._conf(f"component {name!r}", spec.component.config),
                    **self._conf(f"component {name!r}", spec.config),
                },
                streams=streams[name],
                inputs=tuple(self._inputs(name, spec, streams)),
                tasks=range(first_task, first_task + par),
            )
            if issubclass(spec.component, WindowedBolt):
                wrong = spec.component._inputs_error(nodes[name].inputs, streams, par)
                if wrong is not None:
                    raise self._error(name, wrong)
            first_task += par
        graph = Graph(conf.get("topology.name") or self._topology, conf, nodes)
        self._check_reach(graph)
        return graph

    def _error(self, component: str, text: str, stream: str | None = None) -> TopologyError:
        where = f"component {component!r}" if stream is None else f"component {component!r}, stream {stream!r}"
        return TopologyError(f"topology {self._topology}, {where}: {text}")

    def _conf(self, what: str, config: object) -> dict[str, Any]:
        if config is None:
            return {}
        if not isinstance(config, Mapping):
            raise TopologyError(f"topology {self._topology}, {what}: config is a dict, got {config!r}")
        try:
            return conf_module.check(config)
        except ConfError as error:
            raise ConfError(f"topology {self._topology}, {what}: {error}") from None

    def _check_component(self, name: str, spec: ComponentSpec) -> str:
        if not _is_free_name(name):
            raise self._error(
                name, "a component is named by a str without ':' that does not begin with '__'; rename it"
            )
        self._check_methods(name, spec.component)
        if issubclass(spec.component, Spout):
            return "spout"
        if not spec.inputs:
            raise self._error(name, "a bolt without inputs never runs; write spec(inputs=[...])")
        return "bolt"

    def _parallelism(self, name: str, spec: ComponentSpec) -> tuple[int, int]:
        """Return the number of tasks and the number of executors."""
        par: Any = spec.par
        if isinstance(par, Mapping):
            par = self._par_of(name, par)
        executors: Any = par if spec.executors is None else spec.executors
        for what, number in (("par", par), ("executors", executors)):
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                raise self._error(name, f"{what}={number!r}; it is an int of at least 1")
        if executors > par:
            raise self._error(
                name,
                f"executors={executors} for par={par} tasks; an executor runs at least one task, so "
                "raise par or lower executors",
            )
        return par, executors

    def _par_of(self, name: str, par: Mapping[Any, Any]) -> object:
        for environment, number in par.items():
            if not isinstance(environment, str) or not environment:
                raise self._error(name, f"par={dict(par)!r}; a dict has names of environments for keys")
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                raise self._error(name, f"par={number!r} in environment {environment!r}; it is an int of at least 1")
        if not par:
            raise self._error(name, "par={}; name an environment, or write an int")
        if self._environment not in par:
            raise self._error(
                name, f"par={dict(par)!r} has no number for environment {self._environment!r}, which another one has"
            )
        return par[self._environment]

    def _check_methods(self, name: str, component: type[Component]) -> None:
        calls = [(method, arguments) for base, method, arguments in _OPTIONAL if issubclass(component, base)]
        for base, method, arguments in _REQUIRED:
            if not issubclass(component, base):
                continue
            if getattr(component, method) is getattr(base, method):
                if has_frame(component):
                    continue
                raise self._error(
                    name,
                    f"{component.__name__} does not define {method}(); give the class "
                    f"{signature_of(method, arguments)}",
                )
            calls.append((method, arguments))
        for method, arguments in calls:
            # The reason is optional; see `Spout.fail`.
            may_take = [arguments, ("tup_id", "reason")] if method == "fail" else [arguments]
            if not any(accepts_arguments(component, method, each) for each in may_take):
                raise self._error(
                    name,
                    f"{component.__name__}.{method} cannot be called with ({', '.join(arguments)}); write "
                    f"{signature_of(method, arguments)}",
                )
        wrong = unrunnable_method(component) or instantiation_error(component)
        if wrong is None and issubclass(component, WindowedBolt):
            wrong = component._definition_error()
        if wrong is None and issubclass(component, ArrowBolt):
            wrong = _error_of_arrow_bolt(component)
        if wrong is None and issubclass(component, ReliableSpout):
            wrong = backoff_error(component.backoff_secs, component.backoff_secs_max)
        if wrong is not None:
            raise self._error(name, wrong)

    def _streams(self, name: str, spec: ComponentSpec) -> dict[str, Stream]:
        outputs = spec.component.outputs
        if outputs is None:
            outputs = ()
        if isinstance(outputs, Mapping):
            try:
                return {DEFAULT_STREAM: Stream(outputs)}
            except TopologyError as error:
                raise self._error(name, str(error).partition(": ")[2], DEFAULT_STREAM) from None
        if isinstance(outputs, str) or not isinstance(outputs, list | tuple):
            raise self._error(name, f"outputs are a list of field names and of Stream, got {outputs!r}")
        unknown = [output for output in outputs if not isinstance(output, str | Stream)]
        if unknown:
            raise self._error(name, f"outputs hold {unknown[0]!r}; expected a field's name or a Stream")
        streams: dict[str, Stream] = {}
        fields = [output for output in outputs if isinstance(output, str)]
        if fields:
            try:
                streams[DEFAULT_STREAM] = Stream(fields)
            except TopologyError as error:
                raise self._error(name, str(error).partition(": ")[2], DEFAULT_STREAM) from None
        for stream in outputs:
            if not isinstance(stream, Stream):
                continue
            if stream.name in streams:
                raise self._error(
                    name, "two streams have this name; rename one by Stream(fields, name=...)", stream.name
                )
            if stream.name.startswith("__"):
                raise self._error(name, "names that begin with '__' are the runtime's; rename it", stream.name)
            streams[stream.name] = stream
        if not streams and issubclass(spec.component, Spout):
            raise self._error(
                name, f"spout {spec.component.__name__} has no outputs; give the class outputs = ['field', ...]"
            )
        return streams

    def _inputs(
        self, name: str, spec: ComponentSpec, streams: Mapping[str, Mapping[str, Stream]]
    ) -> Iterable[Subscription]:
        inputs = spec.inputs
        if inputs is None:
            return
        if isinstance(inputs, ComponentSpec | str):
            inputs = [inputs]
        if not isinstance(inputs, Mapping | list | tuple):
            raise self._error(name, f"inputs are a list of specs, or a dict from spec to Grouping, got {inputs!r}")
        seen = set()
        for key in inputs:
            source, stream_name = self._resolve(name, key)
            stream = self._stream_of(name, source, stream_name, streams[source])
            if (source, stream_name) in seen:
                raise self._error(name, f"reads this stream of {source!r} twice; keep one of the two", stream_name)
            seen.add((source, stream_name))
            self._check_timestamp(name, spec.component, stream)
            default = Grouping.direct if stream.direct else Grouping.shuffle
            grouping = inputs[key] if isinstance(inputs, Mapping) else default
            self._check_grouping(name, source, stream, grouping)
            yield Subscription(source, stream_name, name, grouping)

    def _resolve(self, name: str, key: object) -> tuple[str, str]:
        """Return the component and the stream that a key of inputs names."""
        stream: object = DEFAULT_STREAM
        component = key
        if isinstance(key, StreamId):
            component, stream = key
        elif isinstance(key, str):
            component, _, after = key.partition(":")
            stream = after or DEFAULT_STREAM
        if isinstance(component, ComponentSpec):
            known = self._names.get(component)
            if known is None:
                raise self._error(
                    name,
                    f"reads {component!r}, which is no attribute of this topology; assign it to one: "
                    f"x = {component.component.__name__}.spec(...)",
                )
            component = known
        if not isinstance(component, str) or not isinstance(stream, str):
            raise self._error(name, f"input {key!r} is neither a spec, spec['stream'] nor the name of a component")
        if component not in self._specs:
            raise self._error(
                name, f"reads component {component!r}, which does not exist; {suggestion(component, self._specs)}"
            )
        return component, stream

    def _stream_of(self, name: str, source: str, stream: str, streams: Mapping[str, Stream]) -> Stream:
        found = streams.get(stream)
        if found is not None:
            return found
        kind = self._specs[source].component.__name__
        if not streams:
            text = f"reads {source!r}, which has no outputs; give {kind} outputs = ['field', ...]"
        else:
            text = f"reads a stream that {source!r} ({kind}) does not have; {suggestion(stream, streams)}"
        raise self._error(name, text, stream)

    def _check_timestamp(self, name: str, component: type[Component], stream: Stream) -> None:
        field = component.timestamp_field if issubclass(component, WindowedBolt) else None
        if field is not None and field not in stream.fields:
            text = f"{component.__name__}.timestamp_field is {field!r}, which this stream does not have"
            raise self._error(name, f"{text}; {suggestion(field, stream.fields)}", stream.name)

    def _check_grouping(self, name: str, source: str, stream: Stream, grouping: object) -> None:
        if not isinstance(grouping, Grouping):
            raise self._error(
                name,
                f"the grouping of {source!r} is {grouping!r}; expected a Grouping such as Grouping.shuffle",
                stream.name,
            )
        if stream.direct and grouping.kind != "direct":
            text = f"{source!r} emits directly and the grouping is {grouping}; use Grouping.direct"
        elif grouping.kind == "direct" and not stream.direct:
            text = f"grouping direct, but {source!r} does not emit directly; declare Stream(..., direct=True)"
        elif grouping.kind == "custom" and not callable(grouping.fn):
            text = f"grouping custom of {source!r} has no function; write Grouping.custom(fn)"
        elif grouping.kind in BY_FIELDS and not grouping.names:
            text = f"grouping {grouping.kind} of {source!r} names no field; write Grouping.{grouping.kind}('name')"
        else:
            unknown = [field for field in grouping.names if field not in stream.fields]
            if not unknown:
                return
            fix = suggestion(unknown[0], stream.fields)
            text = f"grouping by field {unknown[0]!r}, which {source!r} does not emit; {fix}"
        raise self._error(name, text, stream.name)

    def _check_reach(self, graph: Graph) -> None:
        if not graph.spouts:
            raise TopologyError(f"topology {graph.name}: has no spout; nothing would ever run")
        reach = reachable(graph.subscriptions)
        reached = set().union(*(reach.get(spout.name, ()) for spout in graph.spouts))
        unreachable = [bolt.name for bolt in graph.bolts if bolt.name not in reached]
        # Every bolt has inputs, so a bolt without a path from a spout follows a cycle of such bolts.
        cycle = [name for name in unreachable if name in reach.get(name, ())]
        if cycle:
            first = graph.nodes[cycle[0]].inputs[0]
            raise self._error(
                cycle[0],
                f"a cycle without a way in: {', '.join(cycle)} read each other only and no spout reaches them; give "
                "one of them an input from outside",
                first.stream,
            )


def _error_of_arrow_bolt(component: type[ArrowBolt]) -> str | None:
    """Return what is wrong with a bolt that processes batches; None if nothing is."""
    kind = component.__name__
    if issubclass(component, WindowedArrowBolt):
        if component.process_rows not in (WindowedArrowBolt.process_rows, JoinArrowBolt.process_rows):
            return f"{kind} gets rows by process_window(); remove process_rows(), or derive it from ArrowBolt"
        if component.group_key is not WindowedBolt.group_key:
            return f"{kind}.group_key has no effect, since it has one window; group the table of the window instead"
    elif issubclass(component, BatchingBolt | WindowedBolt):
        return (
            f"{kind} is an ArrowBolt and a BatchingBolt or WindowedBolt; derive it from one of them, or from "
            "WindowedArrowBolt"
        )
    if component.process is not ArrowBolt.process:
        return f"{kind} is an ArrowBolt, which gets rows by process_rows(); remove process() or derive it from Bolt"
    if not component.auto_ack:
        return f"{kind}.auto_ack is False, but the rows of an ArrowBolt are acked when process_rows returns; remove it"
    return None


def check_ticks(graph: Graph, conf: Mapping[str, Any]) -> None:
    """Refuse a batching bolt without ticks. Called by runtimes, since they may set the option.

    Parameters
    ----------
    graph : Graph
    conf : mapping
        The options of the whole topology, canonical names.

    Raises
    ------
    TopologyError
    """
    for node in graph.bolts:
        kind = node.component
        # A bolt that overrides one of the two may not need the option.
        waits = (
            issubclass(kind, BatchingBolt) and kind.process is BatchingBolt.process and kind.tick_secs is Bolt.tick_secs
        )
        if waits and {**conf, **node.conf}.get(_TICKS) is None:
            raise TopologyError(
                f"topology {graph.name}, component {node.name!r}: {kind.__name__} is a BatchingBolt and no tick ever "
                f"ends a batch; set {_TICKS!r}, for it alone by spec(config={{{_TICKS!r}: 1}}), or derive it from "
                "TicklessBatchingBolt"
            )


def warn_of_overrides(graph: Graph) -> None:
    """Warn of reliable spouts that hear of the end of a tuple, and do not let the base class forget it."""
    for node in graph.spouts:
        for method, calls in _FORGETTING.items():
            if not issubclass(node.component, ReliableSpout):
                continue
            found = override_without(node.component, ReliableSpout, method, calls)
            if found is not None:
                logging.getLogger(f"acker.topology.{node.name}").warning(
                    "%s does not call super().%s(tup_id): the tuple stays remembered, and the run never drains",
                    found,
                    method,
                )


def check_for_one_process(graph: Graph, conf: Mapping[str, Any]) -> None:
    """Refuse what cannot run in one process: see `check_ticks` and `check_journal`; and spouts with DataFrames only."""
    check_ticks(graph, conf)
    check_journal(graph)
    for node in graph.spouts:
        if getattr(node.component, "next_tuple", None) is Spout.next_tuple:
            raise TopologyError(
                f"topology {graph.name}, component {node.name!r}: {node.component.__name__} has frame() and no"
                " next_tuple(); run it with acker.spark, or give the class def next_tuple(self)"
            )


def check_journal(graph: Graph) -> None:
    """Refuse a spout that leaves its tuples to a journal. Called by runtimes that have none on disk.

    Raises
    ------
    TopologyError
    """
    for node in graph.spouts:
        if issubclass(node.component, Spout) and node.component._needs_journal:
            raise TopologyError(
                f"topology {graph.name}, component {node.name!r}: {node.component.__name__} leaves its messages to the"
                " journal of acker.spark.run(..., checkpoint=...), which this run does not have, so a crash would lose"
                " them; take a SourceSpout, which acks a message when its tuple tree is acked"
            )
