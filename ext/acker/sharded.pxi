"""The native half of `acker.ShardedAcker`: several ackers behind one, and the threads that apply a batch to them."""


cdef extern from "sharded.h" namespace "acker" nogil:
    unsigned c_SHARDS_MAX "acker::SHARDS_MAX"

    cppclass ShardOf:
        ShardOf(uint64_t n)
        uint64_t of "operator()"(int64_t root_id) noexcept

    enum class Applied "acker::ShardedCore::Applied"(int):
        all
        none
        unknown

    cppclass c_ShardedCore "acker::ShardedCore":
        c_ShardedCore(unsigned shards, unsigned threads)
        bint start(Protocol protocol, unsigned buckets, int64_t high_water, uint64_t seed, bint avx2) noexcept
        unsigned shards() noexcept
        unsigned helpers() noexcept
        AckerCore** cores() noexcept
        AckerCore& shard_of(int64_t root_id) noexcept
        bint broken() noexcept
        Applied ingest(const Messages& messages, int64_t now_ms) noexcept
        size_t finished_rows() noexcept
        void copy_finished(
            int64_t* roots, int64_t* messages, int32_t* tasks, int8_t* outcomes, int64_t* elapsed
        ) noexcept
        Finished* gather_finished() noexcept
        void give_back() noexcept
        size_t expiring() noexcept
        void rotate(int64_t now_ms, int64_t* roots, int64_t* messages, int32_t* tasks, int64_t* elapsed) noexcept
        Counters counters() noexcept
        void take_over(const Counters& counters) noexcept
        int64_t open() noexcept
        size_t count() noexcept
        size_t bytes() noexcept
        int64_t probes() noexcept
        bint check_invariants() noexcept


SHARDS_MAX = c_SHARDS_MAX


def shard_of(const int64_t[::1] root_id not None, int64_t shards):
    """Return the shard of each root id for any number of shards, like `acker.acker_of`. For tests."""
    _expect("shards", shards, 1, INT64_MAX)
    column = _column(<size_t>root_id.shape[0], cnp.NPY_INT64)
    found = <int64_t*>_data(column)
    shard = new ShardOf(<uint64_t>shards)
    for row in range(root_id.shape[0]):
        found[row] = <int64_t>shard.of(root_id[row])
    del shard
    return column


@cython.final
cdef class ShardedCore:
    """The native half of `acker.ShardedAcker`: the same calls as `Core`."""

    cdef c_ShardedCore* core
    cdef tuple no_trees  # as in Core
    cdef SingleEntry single_entry
    cdef PublishedStats published
    cdef c_RotationWatch* watch
    cdef readonly LastCall last_call

    def __cinit__(
        self, unsigned shards, unsigned threads, int protocol, unsigned buckets, object high_water, uint64_t seed,
        str kernel
    ):
        cdef int64_t limit = -1 if high_water is None else high_water
        self.core = NULL
        self.watch = NULL
        self.last_call = LastCall()
        _check_options(protocol, buckets)
        _expect("shards", shards, 1, c_SHARDS_MAX)
        _expect("threads", threads, 1, shards)
        self.watch = new c_RotationWatch(_LONG_MS, _FEW, _MANY)
        self.no_trees = _tree_columns(0)
        self.core = new c_ShardedCore(shards, threads)
        if not self.core.start(<Protocol>protocol, buckets, limit, seed, kernel == "avx2"):
            raise MemoryError(f"no memory for an acker of {shards} shards")
        self.publish()

    def __dealloc__(self):
        del self.core
        del self.watch

    cdef int enter(self) except -1:
        _enter(&self.single_entry, "Acker")
        if self.core.broken():
            self.single_entry.leave()
            raise UnusableError()
        return 0

    cdef void leave(self) noexcept:
        self.publish()
        self.single_entry.leave()

    cdef void publish(self) noexcept:
        cdef Stats stats
        stats.counters = self.core.counters()
        stats.pending = <int64_t>self.core.count()
        stats.open = self.core.open()
        stats.bytes = <int64_t>self.core.bytes()
        self.published.write(stats)

    def ingest(self, kind, root_id, value, task_id, message_id, now_ms):
        """Apply all of a batch or, if memory runs out, nothing; otherwise like `Core.ingest`."""
        cdef Messages messages
        cdef Applied applied = Applied.none
        cdef int64_t now = 0
        cdef bint legal
        if not _read_batch(kind, root_id, value, task_id, message_id, now_ms, &messages, &now):
            return None
        self.enter()
        self.last_call.begin()
        try:
            if self.watch.look(now, <int64_t>self.core.count(), self.core.open(), self.ended()):
                _look_at_oldest(self.watch, self.core.cores(), self.core.shards(), self.core.open(), self.ended())
            with nogil:
                legal = _is_legal(messages)
                if legal:
                    applied = self.core.ingest(messages, now)
            if not legal:
                return None
            if applied == Applied.unknown:
                raise UnusableError()
            columns = self.take_finished() if self.core.finished_rows() > 0 else self.no_trees
        finally:
            self.leave()
        completions = _completions_or_error(columns, messages.rows if applied == Applied.all else 0, messages.rows)
        return self.last_call.end(messages.rows, completions)

    cdef tuple take_finished(self):
        try:
            columns = _tree_columns(self.core.finished_rows())
        except MemoryError:
            return _take_uncopied(self.core.gather_finished())
        self.core.copy_finished(
            <int64_t*>_data(columns[0]),
            <int64_t*>_data(columns[1]),
            <int32_t*>_data(columns[2]),
            <int8_t*>_data(columns[3]),
            <int64_t*>_data(columns[4]),
        )
        self.core.give_back()
        return columns

    def rotate(self, int64_t now_ms):
        """Empty death row of all shards; return the trees that timed out as `Completions`."""
        self.enter()
        self.last_call.begin()
        try:
            columns = _tree_columns(self.core.expiring())
            roots = <int64_t*>_data(columns[0])
            messages = <int64_t*>_data(columns[1])
            tasks = <int32_t*>_data(columns[2])
            elapsed = <int64_t*>_data(columns[4])
            with nogil:
                self.core.rotate(now_ms, roots, messages, tasks, elapsed)
            self.watch.rotated(now_ms)
            cnp.PyArray_FILLWBYTE(columns[3], OUTCOME_TIMED_OUT)
        finally:
            self.leave()
        return self.last_call.end(0, _completions(columns))

    cdef int64_t ended(self) noexcept:
        cdef Counters counters = self.core.counters()
        return counters.acked + counters.failed

    def oldest(self, size_t most, now_ms):
        """Return the `most` oldest entries of all shards, like `Core.oldest`."""
        cdef int64_t now = 0 if now_ms is None else now_ms
        self.enter()
        try:
            if now_ms is None:
                return _oldest(
                    self.core.cores(), self.core.shards(), most, self.watch.has_time(), self.watch.now_ms()
                )
            return _oldest(self.core.cores(), self.core.shards(), most, True, now)
        finally:
            self.single_entry.leave()

    def contains(self, int64_t root_id):
        self.enter()
        try:
            core = &self.core.shard_of(root_id)
            return <bint>core.arena.find(core.arena.hash(<uint64_t>root_id))
        finally:
            self.single_entry.leave()

    def stats(self):
        """As `Core.stats`, of all shards."""
        return _stats_of(self.published.read())

    @property
    def nbytes(self):
        """As `Core.nbytes`, of all shards."""
        return self.published.read().bytes

    @property
    def pending(self):
        """As `Core.pending`, of all shards."""
        return self.published.read().pending

    def writer(self):
        """Return a writer of the entries of all shards into the blocks of a snapshot."""
        if self.core.broken():
            raise UnusableError()
        return _writer(self, &self.single_entry, self.core.cores(), self.core.shards())

    def reader(self, uint64_t checksum, uint64_t entries):
        """Return a reader that fills the new shards from the blocks of a snapshot of `entries` entries."""
        return _reader(self, &self.single_entry, self.core.cores(), self.core.shards(), checksum, entries)

    def set_counters(self, tuple counters not None):
        """Set the counters of a snapshot whose entries the shards hold."""
        cdef Counters before
        _set_counters(&before, counters)
        self.enter()
        try:
            self.core.take_over(before)
        finally:
            self.leave()

    def helpers(self):
        """Return how many helper threads are running."""
        self.enter()
        try:
            return self.core.helpers()
        finally:
            self.single_entry.leave()

    def probes(self):
        """Return how many lines a look-up of every entry visits."""
        self.enter()
        try:
            return self.core.probes()
        finally:
            self.single_entry.leave()

    def check_invariants(self):
        self.enter()
        try:
            return self.core.check_invariants()
        finally:
            self.single_entry.leave()
