"""A fork while a thread is inside: the child says so and lets nobody in; other forks change nothing.

That a thread is inside is no matter of luck: the file of a snapshot, or a column that is converted, is Python's and
waits there until the child was made.
"""

import os
import threading
import warnings

import pytest

from acker import Acker, BusyError, Kind, ReferenceAcker, ShardedAcker
from acker._engine.combiner import Combiner
from acker._engine.single_entry import SingleEntry
from acker.errors import ForkedError
from tests.native_testing import check_invariants

ACKERS = {"native": Acker, "reference": ReferenceAcker, "sharded": lambda: ShardedAcker(3, 2)}


def in_a_child(work):
    """Return what `work` returns in a forked child, as text; what it raises is told as the text of the error."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork among threads, which is what is tested
        child = os.fork()
    if child == 0:
        try:
            said = work()
        except (AssertionError, OSError, RuntimeError) as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        said = file.read()
    os.waitpid(child, 0)
    return said


class Held:
    """A file whose first write waits for the end of a `with` block: so long a thread is inside the acker."""

    def __init__(self, a):
        self.inside, self.over = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=a.snapshot_to, args=(self,))

    def write(self, data):
        self.inside.set()
        assert self.over.wait(60)
        return len(data)

    def __enter__(self):
        self.thread.start()
        assert self.inside.wait(60)

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


@pytest.fixture(params=ACKERS.values(), ids=ACKERS)
def a(request):
    a = request.param()
    a.ingest(Kind.TRACK, [1, 2, 3], [5, 5, 5], [0] * 3, [41, 42, 43], now_ms=10)
    return a


CALLS = {
    "ingest": lambda a: a.ingest(Kind.OK, [1], [5]),
    "rotate": lambda a: a.rotate(),
    "snapshot": lambda a: a.snapshot(),
    "oldest": lambda a: a.oldest(),
    "in": lambda a: 1 in a,
    "check": pytest.param(check_invariants, marks=pytest.mark.native_testing),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_the_child_of_a_busy_acker_says_which_process_held_it(a, call):
    with Held(a):
        said = in_a_child(lambda: call(a))
    assert said.startswith(f"ForkedError: this Acker was held by a thread of process {os.getpid()} when process ")
    assert "can never be used; restore a snapshot here" in said
    assert len(a.ingest(Kind.OK, [1], [5])) == 1, "the parent goes on"


def test_it_is_no_passing_thing(a):
    def ask_often():
        for _ in range(3):
            with pytest.raises(ForkedError) as caught:
                a.ingest(Kind.OK, [1], [5])
            assert isinstance(caught.value, BusyError) and caught.value.holder == os.getppid()
        return f"{a.stats().open} {len(a)} {a.nbytes > 0}"

    with Held(a):
        assert in_a_child(ask_often) == "3 3 True"


def test_in_the_parent_it_is_busy_and_not_forked(a):
    with Held(a), pytest.raises(BusyError, match="another thread is inside this Acker") as caught:
        a.rotate()
    assert not isinstance(caught.value, ForkedError)


def test_a_fork_while_nobody_is_inside_changes_nothing(a):
    def go_on():
        done = a.ingest(Kind.OK, [1, 2], [5, 5], now_ms=20)
        grandchild = in_a_child(lambda: str(a.ingest(Kind.OK, [3], [5], now_ms=30).message_id.tolist()))
        return f"{sorted(done.message_id.tolist())} {grandchild} {len(a)}"

    assert in_a_child(go_on) == "[41, 42] [43] 1"
    assert len(a) == 3


def test_who_forks_from_inside_goes_on_there_and_leaves(a):
    """The thread that forks is in the child as well."""
    said = []

    class File:
        def write(self, data):
            if not said:
                said.append(None)
                said[0] = in_a_child(lambda: "child")
            return len(data)

    a.snapshot_to(File())
    assert said == ["child"] and len(a.rotate()) == 0


def test_counts_can_be_asked_in_a_child_that_was_forked_at_any_moment():
    """There is no lock around them that a fork could leave taken."""
    a, over = Acker(), threading.Event()

    def work():
        for _ in iter(over.is_set, True):
            a.ingest([Kind.TRACK, Kind.OK], [1, 1], [5, 5], [0, 0])

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(50):
            said = in_a_child(lambda: str(a.stats().tracked == a.stats().acked + a.stats().open))
            assert said == "True"
    finally:
        over.set()
        thread.join()


def test_a_combiner_and_whatever_python_guards():
    combiner = Combiner()
    combiner.add([Kind.TRACK], [1], [5], [0])
    with combiner._entered:
        with pytest.raises(BusyError, match="another thread is inside this Combiner"):
            combiner.settle()
        said = in_a_child(combiner.settle)
    assert said.startswith(f"ForkedError: this Combiner was held by a thread of process {os.getpid()}")
    assert in_a_child(lambda: str(len(combiner.settle(include_pending=True)))) == "1"
    alone = SingleEntry("thing")
    with pytest.raises(KeyError), alone:
        raise KeyError("x")
    with alone, pytest.raises(BusyError, match="another thread is inside this thing"), alone:
        pass
