"""A trace after Storm 2.x daemon/Acker.java, message by message, and where this acker differs from Storm on purpose."""

import pytest

from acker import Kind, Outcome

INIT, ACK, FAIL, RESET = Kind.INIT, Kind.ACK, Kind.FAIL, Kind.RESET_TIMEOUT
SPOUT_4, SPOUT_5 = 4, 5

# Three trees at once, two spout tasks, three buckets. (now, message or None for a tick, what Acker.execute reports:
# (root, spout task, outcome, elapsed)).
TRACE = [
    (0, (INIT, 11, 0b0111, SPOUT_4), None),  # three first edges: 1, 2, 4
    (1, (ACK, 11, 0b0001 ^ 0b1000), None),  # bolt: own edge 1, emitted 8
    (2, (ACK, 22, 0b0110), None),  # a bolt is faster than the spout: an entry without a spout task
    (3, (INIT, 22, 0b0110, SPOUT_5), (22, SPOUT_5, Outcome.ACKED, 1)),  # reads 0 as the TRACK arrives
    (4, (INIT, 33, 0b0011, SPOUT_5), None),
    (5, None, None),
    (6, (FAIL, 33, 0), (33, SPOUT_5, Outcome.FAILED, 2)),
    (7, (ACK, 33, 0b0001), None),  # late: an entry again, of which nobody is told
    (8, (ACK, 11, 0b0010), None),
    (9, None, None),
    (10, (RESET, 11, 0), None),  # a slow bolt asks for time
    (11, None, None),  # root 33 leaves no trace: its entry was made after the first tick
    (12, (FAIL, 44, 0), None),  # fails before its spout's init arrives
    (13, (INIT, 44, 0b0001, SPOUT_4), (44, SPOUT_4, Outcome.FAILED, 1)),
    (14, (ACK, 11, 0b0100), None),
    (15, (ACK, 11, 0b1000), (11, SPOUT_4, Outcome.ACKED, 15)),
    (16, (INIT, 55, 0b0001, SPOUT_4), None),
    (17, None, None),
    (18, None, None),
    (19, None, (55, SPOUT_4, Outcome.TIMED_OUT, 3)),
]


@pytest.mark.parametrize("protocol", ["storm", "storm-0.9"])
def test_the_trace(acker_type, protocol):
    a = acker_type(protocol=protocol, buckets=3)
    for now, message, expected in TRACE:
        if message is None:
            done = a.rotate(now_ms=now)
        else:
            kind, root, value, *task = message
            done = a.ingest([kind], [root], [value], task or [0], [root * 10], now_ms=now)
        reported = [] if expected is None else [(expected[0], expected[0] * 10, *expected[1:])]
        assert done.rows() == reported, f"at {now}"
    s = a.stats()
    assert (s.tracked, s.acked, s.failed, s.timed_out, s.orphans, s.resets, s.pending) == (5, 2, 2, 1, 1, 1, 0)


def test_a_second_init_does_not_ack(acker_type):
    """Storm xors the value of a second init again, reads 0 and acks: a doubled delivery loses data there."""
    a = acker_type()
    for _ in range(2):
        assert len(a.ingest([INIT], [11], [7], [SPOUT_4])) == 0
    assert a.stats().open == 1


def test_a_failed_tree_that_reads_0_is_acked_as_in_storm(acker_type):
    """Acker.java looks at val before it looks at failed."""
    a = acker_type()
    done = a.ingest([FAIL, ACK, INIT], [11] * 3, [0, 7, 7], [SPOUT_4] * 3)
    assert done.outcome.tolist() == [Outcome.ACKED]
