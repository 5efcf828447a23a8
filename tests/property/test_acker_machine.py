"""The native acker and the reference side by side: after every step they have said and hold the same."""

import numpy as np
import pytest
from hypothesis import note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import acker
from acker import Kind
from acker._engine.protocol import INT64_MAX, INT64_MIN, PROTOCOLS
from tests.native_testing import check_invariants
from tests.oracles import decode

# Few enough that messages of one tree meet, and the extremes by name.
ROOTS = [0, -1, INT64_MIN, INT64_MAX, 1, 2, 3, 1 << 32, 2 << 32, 5 << 40, -7]
VALUES = [0, 1, 2, 3, -1, INT64_MIN, INT64_MAX]
# Steps of the clock: it stands, goes on, jumps to the edge of 49 days, and is set back.
CLOCK_STEPS = [0, 0, 1, 30_000, 49 * 86_400_000, -1, -30_000, -17 * 3_600_000]

roots = st.sampled_from(ROOTS)
values = st.sampled_from(VALUES)
kinds = st.sampled_from([0, 0, 1, 2, 2, 2, 3, 4])
tasks = st.sampled_from([0, 1, 2**31 - 1])
messages = st.sampled_from([0, 42, INT64_MIN])
rows = st.tuples(kinds, roots, values, tasks, messages)


def contents(a):
    """Return what an acker holds, entry by entry, in an order that does not depend on its tables."""
    return sorted(zip(*(column.tolist() for column in decode(a.snapshot()).entries), strict=True))


# A machine may let its clock run on without a rotation.
pytestmark = pytest.mark.filterwarnings("ignore:this acker was never rotated:RuntimeWarning")


class AckerMachine(RuleBasedStateMachine):
    @initialize(
        protocol=st.sampled_from(PROTOCOLS),
        buckets=st.sampled_from([2, 3, 4, 15]) | st.integers(2, 15),
        high_water=st.sampled_from([None, None, 0, 1, 5]),
        seed=st.integers(0, 2**64 - 1),
        now_ms=st.sampled_from([0, -5, 2**32 - 1, INT64_MIN + 2**40, INT64_MAX - 2**50]),
    )
    def create(self, protocol, buckets, high_water, seed, now_ms):
        options = {"protocol": protocol, "buckets": buckets, "high_water": high_water, "seed": seed}
        self.native = acker.Acker(**options)
        self.reference = acker.ReferenceAcker(**options)
        self.now_ms = now_ms

    @rule(kind=kinds, root=roots, value=values, task=tasks, message=messages)
    def one_row(self, kind, root, value, task, message):
        self.ingest([(kind, root, value, task, message)])

    @rule(batch=st.lists(rows, max_size=40))
    def batch(self, batch):
        self.ingest(batch)

    @rule(root=roots, value=values, task=tasks)
    def a_tree_from_end_to_end(self, root, value, task):
        self.ingest([(0, root, value, task, 1), (1, root, value ^ 5, 0, 0), (2, root, 5, 0, 0)])

    @rule(kind=st.sampled_from([1, 2, 3, 4]), some=st.lists(roots, max_size=9))
    def rows_without_task_ids(self, kind, some):
        twins = (a.ingest(Kind(kind), some, some, now_ms=self.now_ms) for a in (self.native, self.reference))
        self.same(*twins)

    @rule(first=st.integers(-(2**62), 2**62), stride=st.sampled_from([1, -1, 1 << 32, 1 << 40, 1 << 54]))
    def many_roots(self, first, stride):
        """Enough for the table to grow, with ids that are anything but random."""
        n = 300
        some = (np.arange(n, dtype=np.int64) * stride + first).tolist()
        self.ingest([(0, root, root ^ 1, 3, root) for root in some])
        self.ingest([(2, root, root ^ 1, 0, 0) for root in some[::2]])

    @rule()
    def rotate(self):
        native, reference = (a.rotate(now_ms=self.now_ms) for a in (self.native, self.reference))
        assert sorted(native.rows()) == sorted(reference.rows())

    @rule(step=st.sampled_from(CLOCK_STEPS))
    def move_the_clock(self, step):
        self.now_ms = min(max(self.now_ms + step, INT64_MIN), INT64_MAX)

    @rule(cross=st.booleans())
    def snapshot_and_restore(self, cross):
        blobs = self.native.snapshot(), self.reference.snapshot()
        assert self.native.snapshot() == blobs[0]
        assert contents(self.native) == contents(self.reference)
        if cross:
            blobs = blobs[::-1]
        self.native = acker.Acker.restore(blobs[0])
        self.reference = acker.ReferenceAcker.restore(blobs[1])
        assert contents(self.native) == contents(self.reference)

    @rule(
        bad=st.sampled_from([(9, 1, 1, 0, 0), (0, 1, 1, -1, 0), (0, 2**63, 1, 0, 0)]), good=st.lists(rows, max_size=5)
    )
    def a_batch_with_a_bad_row(self, bad, good):
        texts = []
        for a in (self.native, self.reference):
            before = a.snapshot()
            try:
                a.ingest(*zip(*[*good, bad], strict=True), now_ms=self.now_ms)
            except ValueError as error:
                texts.append(str(error))
            assert a.snapshot() == before
        assert len(texts) == 2
        assert texts[0] == texts[1]

    @precondition(lambda self: len(self.native) > 0)
    @rule()
    def drain(self):
        for _ in range(self.native.buckets):
            self.rotate()
        assert len(self.native) == 0

    def ingest(self, batch):
        columns = list(zip(*batch, strict=True)) if batch else [[]] * 5
        native, reference = (a.ingest(*columns, now_ms=self.now_ms) for a in (self.native, self.reference))
        self.same(native, reference)

    def same(self, native, reference):
        note(f"reported {reference.rows()}")
        assert native.rows() == reference.rows()
        assert native == reference

    @invariant()
    def the_same_is_held(self):
        if not hasattr(self, "native"):
            return
        check_invariants(self.native)
        assert self.native.stats() == self.reference.stats()
        assert len(self.native) == len(self.reference)
        for root in ROOTS:
            assert (root in self.native) == (root in self.reference)


TestAckerMachine = AckerMachine.TestCase
TestAckerMachine.settings = settings(max_examples=75, stateful_step_count=40)
