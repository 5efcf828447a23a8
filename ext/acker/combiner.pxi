"""The native half of `acker._engine.combiner`. Columns come checked."""

import numpy as np

from libc.stddef cimport size_t
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t


cdef extern from "combine.h" namespace "acker" nogil:
    uint32_t c_shard_of "acker::shard_of"(int64_t root_id, uint32_t shards) noexcept

    uint64_t c_xxh64 "acker::xxh64::of_bytes"(const uint8_t* bytes, size_t size, uint64_t seed) noexcept

    cppclass c_Cohorts "acker::Cohorts":
        int64_t timeout_ms
        int64_t buckets

    cppclass c_CombineTable "acker::CombineTable":
        void seed(uint64_t seed) noexcept
        void gather_resets(bint resets) noexcept
        void gather_by(const c_Cohorts& cohorts) noexcept
        size_t size() noexcept
        size_t nbytes() noexcept
        uint64_t duplicates() noexcept
        int add(const Messages& messages, size_t* rows_applied) noexcept
        int merge(const Partials& partials, size_t* rows_applied) noexcept
        void count_groups(uint32_t shards, int64_t* counts) noexcept
        void write_partials(uint32_t shards, int64_t* next_row, const PartialsOut& out) noexcept
        size_t settle(bint include_pending, const c_Completions& out) noexcept


cdef int64_t* _longs_out(int64_t[::1] column) noexcept:
    return &column[0] if column.shape[0] > 0 else NULL


cdef int32_t* _ints_out(int32_t[::1] column) noexcept:
    return &column[0] if column.shape[0] > 0 else NULL


def xxh64(const uint8_t[::1] data not None, uint64_t seed):
    """Return the XXH64 hash of some bytes."""
    cdef uint64_t hash_
    cdef uint8_t nothing = 0
    cdef const uint8_t* first = &nothing
    if data.shape[0] > 0:
        first = &data[0]
    with nogil:
        hash_ = c_xxh64(first, <size_t> data.shape[0], seed)
    return hash_


def xxh64_each(const uint8_t[::1] data not None, const int64_t[::1] ends not None, uint64_t seed):
    """Return the XXH64 hash of each piece of some bytes, as an int64 array: piece i is data[ends[i]:ends[i + 1]]."""
    cdef Py_ssize_t pieces = ends.shape[0] - 1
    cdef Py_ssize_t piece, bad = -1
    cdef int64_t begin, end
    cdef uint8_t nothing = 0
    cdef const uint8_t* first = &nothing
    if pieces < 0:
        raise ValueError("ends: expected one number at least")
    hashes = np.empty(pieces, np.int64)
    cdef int64_t[::1] out = hashes
    if data.shape[0] > 0:
        first = &data[0]
    with nogil:
        begin = ends[0]
        for piece in range(pieces):
            end = ends[piece + 1]
            if begin < 0 or end < begin or end > data.shape[0]:
                bad = piece
                break
            out[piece] = <int64_t> c_xxh64(first + begin, <size_t> (end - begin), seed)
            begin = end
    if bad >= 0:
        raise ValueError(f"ends: piece {bad} is not within the {data.shape[0]} bytes")
    return hashes


def shards_of(const int64_t[::1] root_id not None, uint32_t shards):
    """Return the shard of each root as a uint32 array."""
    cdef Py_ssize_t row
    shard = np.empty(root_id.shape[0], np.uint32)
    cdef uint32_t[::1] out = shard
    with nogil:
        for row in range(root_id.shape[0]):
            out[row] = c_shard_of(root_id[row], shards)
    return shard


cdef int _read_cohorts(c_Cohorts* by, object cohorts) except -1:
    """Read (timeout_ms, buckets); refuse values that would overflow or divide by zero."""
    by.timeout_ms, by.buckets = cohorts
    _expect("timeout_ms of cohorts", by.timeout_ms, 0, INT64_MAX // 16)
    return _expect("buckets of cohorts", by.buckets, 2, BUCKETS_MAX)


@cython.final
cdef class CombineTable:
    """The table of a `Combiner`, which lets in one thread at a time."""

    cdef c_CombineTable table
    cdef bint timed
    cdef readonly uint64_t added  # rows so far, of messages
    cdef readonly uint64_t merged  # rows so far, of partials

    def __cinit__(self, uint64_t seed, bint resets, cohorts=None):
        cdef c_Cohorts by
        self.table.seed(seed)
        self.table.gather_resets(resets)
        self.timed = cohorts is not None
        if self.timed:
            _read_cohorts(&by, cohorts)
            self.table.gather_by(by)

    cdef const int64_t* _event_ms(self, const int64_t[::1] column, size_t rows) except? NULL:
        """Return a pointer to the event times; NULL if the table has no cohorts."""
        if (column is not None) != self.timed or (self.timed and <size_t> column.shape[0] != rows):
            raise ValueError("event_ms: expected one value for each row with cohorts, and None without")
        return &column[0] if self.timed else NULL

    def __len__(self):
        return self.table.size()

    @property
    def nbytes(self):
        return self.table.nbytes()

    @property
    def duplicates(self):
        return self.table.duplicates()

    def add(
        self,
        const int8_t[::1] kind not None,
        const int64_t[::1] root_id not None,
        const int64_t[::1] value not None,
        const int32_t[::1] task_id,
        const int64_t[::1] message_id,
        const int64_t[::1] event_ms=None,
    ):
        """Add messages; return how many leading rows took effect: fewer than there are when memory ran out."""
        cdef Messages messages
        cdef size_t rows_applied = 0
        messages.rows = <size_t> root_id.shape[0]
        _expect_rows("kind", kind.shape[0], root_id.shape[0])
        _expect_rows("value", value.shape[0], root_id.shape[0])
        if task_id is not None:
            _expect_rows("task_id", task_id.shape[0], root_id.shape[0])
        if message_id is not None:
            _expect_rows("message_id", message_id.shape[0], root_id.shape[0])
        if messages.rows == 0:
            return 0
        messages.kind = &kind[0]
        messages.root_id = &root_id[0]
        messages.value = &value[0]
        messages.task_id = NULL
        messages.message_id = NULL
        if task_id is not None:
            messages.task_id = &task_id[0]
        if message_id is not None:
            messages.message_id = &message_id[0]
        messages.event_ms = self._event_ms(event_ms, messages.rows)
        with nogil:
            self.table.add(messages, &rows_applied)
        self.added += rows_applied
        return rows_applied

    def merge(
        self,
        const int64_t[::1] root_id not None,
        const int64_t[::1] value not None,
        const uint8_t[::1] flags not None,
        const int64_t[::1] track_value not None,
        const int32_t[::1] task_id not None,
        const int64_t[::1] message_id not None,
        const int64_t[::1] event_ms=None,
    ):
        """Merge partials; return how many leading rows took effect: fewer than there are when memory ran out."""
        cdef Partials partials
        cdef size_t rows_applied = 0
        cdef size_t rows = <size_t> root_id.shape[0]
        _expect_rows("value", value.shape[0], root_id.shape[0])
        _expect_rows("flags", flags.shape[0], root_id.shape[0])
        _expect_rows("track_value", track_value.shape[0], root_id.shape[0])
        _expect_rows("task_id", task_id.shape[0], root_id.shape[0])
        _expect_rows("message_id", message_id.shape[0], root_id.shape[0])
        if rows == 0:
            return 0
        partials.root_id = &root_id[0]
        partials.value = &value[0]
        partials.flags = &flags[0]
        partials.track_value = &track_value[0]
        partials.task_id = &task_id[0]
        partials.message_id = &message_id[0]
        partials.rows = rows
        partials.event_ms = self._event_ms(event_ms, rows)
        with nogil:
            self.table.merge(partials, &rows_applied)
        self.merged += rows_applied
        return rows_applied

    def partials(self, uint32_t shards):
        """Return seven columns with the trees of a shard side by side, and where each shard ends in them."""
        cdef Py_ssize_t rows = <Py_ssize_t> self.table.size()
        _expect("shards", shards, 1, UINT32_MAX)
        longs = np.empty((5 if self.timed else 4, rows), np.int64)
        ints = np.empty(rows, np.int32)
        flag_bytes = np.empty(rows, np.uint8)
        counts = np.zeros(2 * <size_t> shards, np.int64)
        cdef int64_t[::1] count_of = counts
        cdef uint8_t[::1] flags = flag_bytes
        cdef PartialsOut out
        with nogil:
            self.table.count_groups(shards, &count_of[0])
        ends = np.cumsum(counts)
        starts = ends - counts
        if rows > 0:
            out.root_id = _longs_out(longs[0])
            out.value = _longs_out(longs[1])
            out.flags = &flags[0]
            out.track_value = _longs_out(longs[2])
            out.task_id = _ints_out(ints)
            out.message_id = _longs_out(longs[3])
            out.event_ms = _longs_out(longs[4]) if self.timed else NULL
            count_of = starts
            with nogil:
                self.table.write_partials(shards, &count_of[0], out)
        event_ms = longs[4] if self.timed else None
        return (longs[0], longs[1], flag_bytes, longs[2], ints, longs[3], event_ms), ends[1::2]

    def settle(self, bint include_pending):
        """Return the columns root_id, message_id, task_id, outcome of the trees that have an outcome."""
        cdef size_t rows = self.table.size()
        root_id = np.empty(rows, np.int64)
        message_id = np.empty(rows, np.int64)
        task_id = np.empty(rows, np.int32)
        outcome = np.empty(rows, np.int8)
        cdef int8_t[::1] outcomes = outcome
        cdef c_Completions out
        cdef size_t settled = 0
        if rows > 0:
            out.root_id = _longs_out(root_id)
            out.message_id = _longs_out(message_id)
            out.task_id = _ints_out(task_id)
            out.outcome = &outcomes[0]
            with nogil:
                settled = self.table.settle(include_pending, out)
        return root_id[:settled], message_id[:settled], task_id[:settled], outcome[:settled]
