"""FsShelter's dispatch functions: they make components of functions, each with the acks of its role."""

import asyncio

import pytest

from acker.topology import (
    Bolt,
    Reason,
    ReasonKind,
    Spout,
    Stream,
    Topology,
    TopologyError,
    auto_ack_bolt,
    auto_nack_bolt,
    reliable_spout,
    unreliable_spout,
)
from acker.topology.component import Component


def split(args, tup, emit):
    """Emit the words of a line."""
    for word in tup.word.split():
        emit([word])
    emit([args], "rest")


async def split_later(args, tup, emit):
    await asyncio.sleep(0)
    split(args, tup, emit)


def feed(*items):
    """Return a `next` that gives these, one a call, and then is at its end."""
    return iter(items)


def test_a_reliable_spout_tracks_and_hears(task):
    heard = []
    lines = feed((1, ["a"]), None, (2, ["b"]))
    spout = reliable_spout(
        lambda args: next(lines),
        lambda args, tup_id: heard.append(("ack", args, tup_id)),
        lambda args, tup_id, reason: heard.append(("nack", args, tup_id, reason)),
        outputs=["line"],
        make_args=lambda conf, context: (conf["topology.name"], context["taskid"]),
        name="Lines",
    )()
    collector = task.bind(spout, {"topology.name": "T"})
    for _ in range(3):
        spout.next_tuple()
        assert not spout.finished
    spout.next_tuple()
    assert spout.finished
    reason = Reason(ReasonKind.TIMED_OUT)
    spout.ack(1)
    spout.fail(2, reason)
    assert collector.emitted == [(["a"], 1, None, None), (["b"], 2, None, None)]
    assert heard == [("ack", ("T", 3), 1), ("nack", ("T", 3), 2, reason)]


def test_a_nack_may_do_without_the_reason(task):
    heard = []
    spout = reliable_spout(lambda args: None, None, lambda args, tup_id: heard.append(tup_id), outputs=["line"])()
    task.bind(spout)
    spout.ack(1)
    spout.fail(2, Reason(ReasonKind.FAILED))
    assert heard == [2]


def test_an_unreliable_spout_neither_tracks_nor_hears(task):
    lines = feed(["a"], None, ["b", "c"])
    spout = unreliable_spout(
        lambda args: next(lines),
        outputs=["line", Stream(["x", "y"], name="pairs")],
        stream_of=lambda values: "pairs" if len(values) == 2 else "default",
    )()
    collector = task.bind(spout)
    for _ in range(4):
        spout.next_tuple()
    spout.ack(1)
    spout.fail(1)
    assert collector.emitted == [(["a"], None, "default", None), (["b", "c"], None, "pairs", None)]
    assert spout.finished


def test_a_reliable_spout_may_name_streams(task):
    spout = reliable_spout(lambda args: (1, ["a"]), outputs=["line"], stream_of=lambda values: "default")()
    collector = task.bind(spout)
    spout.next_tuple()
    assert collector.emitted == [(["a"], 1, "default", None)]


@pytest.mark.parametrize("consume", [split, split_later])
def test_an_auto_ack_bolt_leaves_the_acks_to_the_runtime(task, consume):
    bolt = auto_ack_bolt(consume, outputs=["word", Stream(["rest"], name="rest")], make_args=lambda conf, context: 5)()
    collector = task.bind(bolt)
    tup = task.tup_of("a b")
    collector.inputs = (tup,)
    done = bolt.process(tup)
    if consume is split_later:
        asyncio.run(done)
    assert collector.emitted == [
        (["a"], None, (tup,), None),
        (["b"], None, (tup,), None),
        ([5], "rest", (tup,), None),
    ]
    assert (bolt.auto_ack, bolt.auto_fail, collector.settled) == (True, True, [])


@pytest.mark.parametrize("consume", [split, split_later])
def test_an_auto_nack_bolt_fails_what_it_consumed(task, consume):
    bolt = auto_nack_bolt(consume, outputs=["word"])()
    collector = task.bind(bolt)
    tup = task.tup_of("a")
    done = bolt.process(tup)
    if consume is split_later:
        asyncio.run(done)
    assert len(collector.emitted) == 2
    assert collector.settled == [("fail", tup, "an auto_nack_bolt fails what it consumed")]
    assert (bolt.auto_ack, bolt.auto_fail) == (False, True)


def test_what_they_return_are_classes_with_a_place_in_a_topology():
    spout = reliable_spout(lambda args: None, outputs=["line"], name="Lines")
    bolt = auto_ack_bolt(split, outputs=["word"])
    assert issubclass(spout, Spout) and issubclass(bolt, Bolt) and issubclass(bolt, Component)
    assert (spout.__name__, bolt.__name__, bolt.__doc__) == ("Lines", "split", "Emit the words of a line.")
    assert bolt.__module__ == split.__module__

    class Words(Topology):
        lines = spout.spec()
        words = bolt.spec(inputs=[lines], par=2)
        end = auto_nack_bolt(split).spec(inputs=[words])

    assert [node.kind for node in Words.graph().nodes.values()] == ["spout", "bolt", "bolt"]


def test_each_task_has_args_of_its_own(task):
    bolt = auto_ack_bolt(lambda args, tup, emit: args.append(tup), make_args=lambda conf, context: [])
    first, second = bolt(), bolt()
    for one in (first, second):
        task.bind(one)
    first.process(1)
    assert (first._args, second._args) == ([1], [])


def test_next_is_no_coroutine_function():
    async def read(args):
        return None

    for dispatch in (reliable_spout, unreliable_spout):
        with pytest.raises(
            TopologyError,
            match=r"next: read is `async def`, .*; return one tuple a call, or write a Spout, whose next_tuple",
        ):
            dispatch(read, outputs=["line"])


def generator(*args):
    yield


async def later(*args):
    pass


@pytest.mark.parametrize("function", [generator, later])
@pytest.mark.parametrize("what", ["next", "ack", "nack", "make_args", "stream_of", "consume"])
def test_a_function_that_would_never_run_is_refused(what, function):
    if what == "consume":
        if function is later:
            assert auto_ack_bolt(function)
            return
        for dispatch in (auto_ack_bolt, auto_nack_bolt):
            with pytest.raises(TopologyError, match=r"consume: generator is a generator: .* call emit"):
                dispatch(function)
        return
    arguments = {"next": lambda args: None, "outputs": ["line"], what: function}
    with pytest.raises(TopologyError, match=f"{what}: {function.__name__} is "):
        reliable_spout(**arguments)
    if what not in ("ack", "nack"):
        with pytest.raises(TopologyError, match=f"{what}: {function.__name__} is "):
            unreliable_spout(**arguments)
    if what == "make_args":
        with pytest.raises(TopologyError, match=f"{what}: {function.__name__} is "):
            auto_ack_bolt(lambda args, tup, emit: None, make_args=function)


def test_what_is_no_function_is_refused():
    with pytest.raises(TopologyError, match="next: expected a function, got 5"):
        reliable_spout(5, outputs=["line"])
    with pytest.raises(TopologyError, match="next: expected a function, got None"):
        unreliable_spout(None, outputs=["line"])
    with pytest.raises(TopologyError, match="consume: expected a function, got None"):
        auto_ack_bolt(None)
    with pytest.raises(TopologyError, match="ack: expected a function, got 'x'"):
        reliable_spout(lambda args: None, "x", outputs=["line"])


@pytest.mark.parametrize("returned", [["a"], (1, ["a"], "x"), "ab", 5, (None, ["a"])])
def test_a_reliable_next_returns_an_id_and_values(task, returned):
    spout = reliable_spout(lambda args: returned, outputs=["line"])()
    task.bind(spout)
    with pytest.raises(TopologyError, match=r"it: next returned .*; expected \(tup_id, values\), or None"):
        spout.next_tuple()
