# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, freethreading_compatible=True
"""The native core and what only tests need: built as acker._core with ACKER_TESTING=1, never shipped."""

include "_core.pyx"

cdef extern from "memory.h" namespace "acker" nogil:
    cppclass AtomicCount "std::atomic<int64_t>":
        void store(int64_t count) noexcept

    AtomicCount& allocations_left() noexcept


cdef extern from "shard_of.h" namespace "acker" nogil:
    cppclass ShardOf:
        ShardOf(uint64_t n)
        uint64_t of "operator()"(int64_t root_id) noexcept


cdef extern from "codes.h" namespace "acker" nogil:
    int8_t c_TRACK "acker::TRACK"
    int8_t c_ANCHOR "acker::ANCHOR"
    int8_t c_OK "acker::OK"
    int8_t c_FAIL "acker::FAIL"
    int8_t c_RESET_TIMEOUT "acker::RESET_TIMEOUT"
    unsigned KINDS

    int8_t OUTCOME_ACKED
    int8_t OUTCOME_FAILED
    int8_t OUTCOME_REJECTED
    int8_t OUTCOME_PENDING

    uint8_t ENTRY_UNTRACKED
    uint8_t ENTRY_TRACKED
    uint8_t ENTRY_FAILED
    unsigned UNTRACKED_ENTRY
    unsigned FAILED_ENTRY
    unsigned TRACKED_ENTRY

    uint8_t HAS_TRACK
    uint8_t HAS_FAIL
    uint8_t HAS_RESET

    int32_t UNTRACKED


def probes(Core core not None):
    """Return how many lines a look-up of every entry visits."""
    core.enter()
    try:
        return core.single.arena.probes() if core.sharded == NULL else core.sharded.probes()
    finally:
        core.single_entry.leave()


def check_invariants(Core core not None):
    """Return whether the tables agree with themselves and with the counts. O(slots)."""
    core.enter()
    try:
        return core.single.check_invariants() if core.sharded == NULL else core.sharded.check_invariants()
    finally:
        core.single_entry.leave()


def check_open_trees(OpenTreesTable trees not None):
    """Return whether index, entries, free positions, groups and counts agree. O(capacity)."""
    return trees.table.check_invariants()


def fail_allocations_after(int64_t successes):
    """Let `successes` more requests for table memory succeed and every later one fail; -1: all succeed."""
    allocations_left().store(successes)


def shard_of(const int64_t[::1] root_id not None, int64_t shards):
    """Return the shard of each root id for any number of shards, like `acker.acker_of`."""
    _expect("shards", shards, 1, INT64_MAX)
    column = _column(<size_t>root_id.shape[0], cnp.NPY_INT64)
    found = <int64_t*>_data(column)
    shard = new ShardOf(<uint64_t>shards)
    for row in range(root_id.shape[0]):
        found[row] = <int64_t>shard.of(root_id[row])
    del shard
    return column


def codes():
    """Return the numbers of codes.h by name."""
    return {
        "Kind": {
            "TRACK": c_TRACK,
            "ANCHOR": c_ANCHOR,
            "OK": c_OK,
            "FAIL": c_FAIL,
            "RESET_TIMEOUT": c_RESET_TIMEOUT,
        },
        "Outcome": {
            "ACKED": OUTCOME_ACKED,
            "FAILED": OUTCOME_FAILED,
            "TIMED_OUT": OUTCOME_TIMED_OUT,
            "REJECTED": OUTCOME_REJECTED,
            "PENDING": OUTCOME_PENDING,
        },
        "protocol": {
            "storm": <int>Protocol.storm,
            "storm-0.9": <int>Protocol.storm_09,
            "fsshelter": <int>Protocol.fsshelter,
        },
        "entry": {"untracked": UNTRACKED_ENTRY, "failed": FAILED_ENTRY, "tracked": TRACKED_ENTRY},
        "snapshot": {"UNTRACKED": ENTRY_UNTRACKED, "TRACKED": ENTRY_TRACKED, "FAILED": ENTRY_FAILED},
        "flags": {"TRACKED": HAS_TRACK, "FAILED": HAS_FAIL, "RESET": HAS_RESET},
        "open_trees": {
            "UNTRACKED": UNTRACKED,
            "UNTRACKED_FAILED": UNTRACKED_FAILED,
            "UNTRACKED_RESET": UNTRACKED_RESET,
        },
        "kinds": KINDS,
        "buckets_max": BUCKETS_MAX,
    }
