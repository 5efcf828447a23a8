# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, freethreading_compatible=True
"""The native core: it owns the memory of the tables, releases the GIL, and turns return codes into exceptions.

Columns come checked, or as plain arrays that C checks. acker._engine.columns explains what is refused here.
"""

cimport cython
cimport numpy as cnp
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.type cimport PyType_GenericNew
from libc.stddef cimport size_t
from libc.stdint cimport (
    INT32_MAX, INT64_MAX, INT64_MIN, UINT32_MAX, int8_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
)
from libc.string cimport memcpy

from acker._engine.completions import Completions
from acker.errors import AckerMemoryError, BusyError, ForkedError, UnusableError
from acker._engine.rotation import FEW as _FEW
from acker._engine.rotation import LONG_MS as _LONG_MS
from acker._engine.rotation import MANY as _MANY
from acker._engine.rotation import warn_never_rotated as _warn_never_rotated

cnp.import_array()


cdef extern from "memory.h" namespace "acker" nogil:
    size_t HUGE_PAGE_BYTES
    size_t whole_lines(size_t bytes) noexcept
    void* acquire_huge_pages(size_t bytes) noexcept
    void release(void* memory) noexcept


cdef extern from "codes.h" namespace "acker" nogil:
    enum class Protocol(int):
        storm
        storm_09
        fsshelter

    int8_t OUTCOME_TIMED_OUT
    int32_t UNTRACKED_FAILED
    int32_t UNTRACKED_RESET
    unsigned BUCKETS_MAX

    struct Counters:
        int64_t tracked, acked, failed, timed_out, rejected, duplicates, unknown, orphans, dropped, resets, empty

    struct Stats:
        Counters counters
        int64_t pending, open, bytes


cdef extern from "columns.h" namespace "acker" nogil:
    struct Messages:
        const int8_t* kind
        const int64_t* root_id
        const int64_t* value
        const int32_t* task_id
        const int64_t* message_id
        size_t rows
        const int64_t* event_ms

    cppclass Partials:
        const int64_t* root_id
        const int64_t* value
        const uint8_t* flags
        const int64_t* track_value
        const int32_t* task_id
        const int64_t* message_id
        size_t rows
        const int64_t* event_ms

    cppclass PartialsOut:
        int64_t* root_id
        int64_t* value
        uint8_t* flags
        int64_t* track_value
        int32_t* task_id
        int64_t* message_id
        size_t rows
        int64_t* event_ms

    struct c_Completions "acker::Completions":
        int64_t* root_id
        int64_t* message_id
        int32_t* task_id
        int8_t* outcome
        int64_t* elapsed_ms
        size_t rows


cdef extern from "single_entry.h" namespace "acker" nogil:
    cppclass SingleEntry:
        bint enter() noexcept
        void leave() noexcept
        int64_t holder() noexcept

    int64_t process_id "acker::Process::id"() noexcept

    cppclass PublishedStats:
        void write(const Stats& stats) noexcept
        Stats read() noexcept


cdef extern from "arena.h" namespace "acker" nogil:
    struct Cold:
        int64_t message_id
        int32_t task_id
        uint32_t start

    cppclass Ref:
        bint operator bool() noexcept

    cppclass Arena:
        uint64_t hash(uint64_t root_id) noexcept
        Ref find(uint64_t h) noexcept
        size_t count() noexcept
        size_t bytes() noexcept
        int64_t probes() noexcept


cdef extern from "ingest.h" namespace "acker" nogil:
    cppclass Finished:
        int64_t* root_id
        int64_t* message_id
        int64_t* elapsed_ms
        int32_t* task_id
        int8_t* outcome
        size_t rows
        size_t bytes() noexcept
        void copy_to(int64_t* roots, int64_t* messages, int32_t* tasks, int8_t* outcomes, int64_t* elapsed) noexcept
        void give_back() noexcept
        void* hand_over() noexcept

    size_t first_bad_row(const int8_t* kind, const int32_t* task_id, size_t rows, size_t* tracks) noexcept

    cppclass AckerCore:
        AckerCore(Protocol protocol, unsigned buckets, int64_t high_water, uint64_t seed, bint avx2)
        Arena arena
        Finished finished
        Counters counters
        int64_t open() noexcept
        unsigned death_row() noexcept
        int64_t tracked_in(unsigned tag) noexcept
        size_t ingest(const Messages& messages, int64_t now_ms) noexcept
        void rotate(int64_t now_ms, int64_t* roots, int64_t* messages, int32_t* tasks, int64_t* elapsed) noexcept
        bint check_invariants() noexcept


cdef extern from "sharded.h" namespace "acker" nogil:
    unsigned c_SHARDS_MAX "acker::SHARDS_MAX"

    enum class Applied "acker::ShardedCore::Applied"(int):
        all
        none
        unknown

    cppclass ShardedCore:
        ShardedCore(unsigned shards, unsigned threads)
        bint start(Protocol protocol, unsigned buckets, int64_t high_water, uint64_t seed, bint avx2) noexcept
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


cdef extern from "oldest.h" namespace "acker" nogil:
    struct OldEntry:
        int64_t root_id
        int64_t ack_val
        int64_t message_id
        int64_t age_ms
        int32_t task_id
        uint8_t state
        uint8_t rotations_left

    cppclass c_Oldest "acker::Oldest":
        c_Oldest(size_t most)
        bint start() noexcept
        void look_at(AckerCore& core, bint clock_known, int64_t now_ms) noexcept
        const OldEntry* sorted() noexcept
        size_t rows() noexcept


cdef extern from "rotation_watch.h" namespace "acker" nogil:
    cppclass c_RotationWatch "acker::RotationWatch":
        c_RotationWatch(int64_t long_ms, int64_t few, int64_t many)
        bint has_time() noexcept
        int64_t now_ms() noexcept
        bint look(int64_t now_ms, int64_t held, int64_t open, int64_t ended) noexcept
        void look_again(int64_t age_ms) noexcept
        void rotated(int64_t now_ms) noexcept
        void end() noexcept


cdef extern from "probe.h" namespace "acker" nogil:
    bint machine_has_avx2() noexcept
    const char* compiler() noexcept


def compiled_with():
    """Return the compiler that built this module, with its version."""
    return compiler().decode("ascii")


def kernels():
    """Return the names of the kernels that run on this machine, the fastest first."""
    return ("avx2", "portable") if machine_has_avx2() else ("portable",)


cdef inline cnp.ndarray _column(size_t rows, int typenum):
    cdef cnp.npy_intp length = <cnp.npy_intp>rows
    return cnp.PyArray_SimpleNew(1, &length, typenum)


cdef inline void* _data(object column) noexcept:
    return NULL if column is None else cnp.PyArray_DATA(<cnp.ndarray>column)


cdef inline bint _plain(object column, int typenum, cnp.npy_intp rows) noexcept:
    """Whether a column is an array of `rows` rows that C can read directly."""
    if not cnp.PyArray_CheckExact(column):
        return False
    cdef cnp.ndarray array = <cnp.ndarray>column
    return (
        cnp.PyArray_TYPE(array) == typenum
        and cnp.PyArray_NDIM(array) == 1
        and cnp.PyArray_DIM(array, 0) == rows
        and cnp.PyArray_IS_C_CONTIGUOUS(array)
        and cnp.PyArray_ISALIGNED(array)
        and cnp.PyArray_ISNOTSWAPPED(array)
    )


cdef enum:
    _SLICE_ROWS = 1 << 20

# How many rows a call applies at most. Python looks at signals between two calls: after some 20 to 80 ms.
SLICE_ROWS = _SLICE_ROWS


cdef bint _read_batch(kind, root_id, value, task_id, message_id, now_ms, Messages* messages, int64_t* now) noexcept:
    """Whether all columns of a batch are plain, and it is short enough for one call.

    Then `messages` points to them, and `now` is the clock.
    """
    cdef int overflow = 0
    if type(now_ms) is not int or not cnp.PyArray_CheckExact(kind) or cnp.PyArray_NDIM(<cnp.ndarray>kind) != 1:
        return False
    now[0] = PyLong_AsLongLongAndOverflow(now_ms, &overflow)
    cdef cnp.npy_intp rows = cnp.PyArray_DIM(<cnp.ndarray>kind, 0)
    if overflow != 0 or not (
        _plain(kind, cnp.NPY_INT8, rows)
        and _plain(root_id, cnp.NPY_INT64, rows)
        and _plain(value, cnp.NPY_INT64, rows)
        and (task_id is None or _plain(task_id, cnp.NPY_INT32, rows))
        and (message_id is None or _plain(message_id, cnp.NPY_INT64, rows))
    ):
        return False
    messages.kind = <const int8_t*>_data(kind)
    messages.root_id = <const int64_t*>_data(root_id)
    messages.value = <const int64_t*>_data(value)
    messages.task_id = <const int32_t*>_data(task_id)
    messages.message_id = <const int64_t*>_data(message_id)
    messages.rows = <size_t>rows
    return rows <= _SLICE_ROWS


cdef bint _is_legal(const Messages& messages) noexcept nogil:
    cdef size_t tracks = 0
    if first_bad_row(messages.kind, messages.task_id, messages.rows, &tracks) < messages.rows:
        return False
    return tracks == 0 or messages.task_id != NULL


@cython.final
cdef class ColumnMemory:
    """Owns the memory behind some columns; frees it when the last of them is gone."""

    cdef void* memory

    def __cinit__(self):
        self.memory = NULL

    def __dealloc__(self):
        release(self.memory)


cdef cnp.ndarray _column_in(ColumnMemory block, void* data, size_t rows, int typenum):
    cdef cnp.npy_intp length = <cnp.npy_intp>rows
    column = cnp.PyArray_SimpleNewFromData(1, &length, typenum, data)
    cnp.set_array_base(column, block)
    return column


cdef tuple _tree_columns(size_t rows):
    """Return five columns to fill. Large ones share a block of huge pages, which cost least when first touched."""
    cdef size_t wide = whole_lines(rows * sizeof(int64_t))
    cdef size_t narrow = whole_lines(rows * sizeof(int32_t))
    if wide < HUGE_PAGE_BYTES:
        return (
            _column(rows, cnp.NPY_INT64),
            _column(rows, cnp.NPY_INT64),
            _column(rows, cnp.NPY_INT32),
            _column(rows, cnp.NPY_INT8),
            _column(rows, cnp.NPY_INT64),
        )
    block = ColumnMemory()
    block.memory = acquire_huge_pages(3 * wide + narrow + rows)
    if block.memory == NULL:
        raise MemoryError(f"no memory for {rows} completions")
    data = <char*>block.memory
    return (
        _column_in(block, data, rows, cnp.NPY_INT64),
        _column_in(block, data + wide, rows, cnp.NPY_INT64),
        _column_in(block, data + 3 * wide, rows, cnp.NPY_INT32),
        _column_in(block, data + 3 * wide + narrow, rows, cnp.NPY_INT8),
        _column_in(block, data + 2 * wide, rows, cnp.NPY_INT64),
    )


cdef tuple _take_uncopied(Finished* finished):
    """Return the same columns without a copy, if no memory is left for one: finished trees must not be lost."""
    rows = finished.rows
    block = ColumnMemory()
    columns = (
        _column_in(block, finished.root_id, rows, cnp.NPY_INT64),
        _column_in(block, finished.message_id, rows, cnp.NPY_INT64),
        _column_in(block, finished.task_id, rows, cnp.NPY_INT32),
        _column_in(block, finished.outcome, rows, cnp.NPY_INT8),
        _column_in(block, finished.elapsed_ms, rows, cnp.NPY_INT64),
    )
    block.memory = finished.hand_over()
    return columns


cdef object _completions(tuple columns):
    """Return Completions(*columns) without calling Python, which would take a tenth of the time of one row."""
    made = PyType_GenericNew(<type>Completions, None, None)
    made.root_id, made.message_id, made.task_id, made.outcome, made.elapsed_ms = columns
    return made


cdef object _completions_or_error(tuple columns, size_t applied, size_t rows):
    completions = _completions(columns)
    if applied < rows:
        text = f"out of memory after {applied} of {rows} rows: these are applied, the rest are not"
        raise AckerMemoryError(text, applied, completions)
    return completions


cdef int _raise_refused(SingleEntry* single_entry, str what) except -1:
    """Raise the error for a second thread, or for the child of a fork."""
    holder = single_entry.holder()
    if holder != 0 and holder != process_id():
        raise ForkedError(what, holder)
    raise BusyError(f"another thread is inside this {what}; one {what} is used from one thread at a time")


cdef inline int _enter(SingleEntry* single_entry, str what) except -1:
    return 0 if single_entry.enter() else _raise_refused(single_entry, what)


cdef tuple _counters_of(const Counters& counters):
    return (
        counters.tracked, counters.acked, counters.failed, counters.timed_out, counters.rejected, counters.duplicates,
        counters.unknown, counters.orphans, counters.dropped, counters.resets, counters.empty,
    )


cdef tuple _stats_of(const Stats& stats):
    return (*_counters_of(stats.counters), stats.pending, stats.open)


cdef int _expect(str name, int64_t number, int64_t least, int64_t most) except -1:
    if not least <= number <= most:
        raise ValueError(f"{name}: expected {least} to {most}, got {number}")
    return 0


cdef int _check_options(int protocol, unsigned buckets) except -1:
    _expect("protocol", protocol, <int>Protocol.storm, <int>Protocol.fsshelter)
    return _expect("buckets", buckets, 2, BUCKETS_MAX)


cdef int _expect_rows(str name, Py_ssize_t got, Py_ssize_t rows) except -1:
    if got != rows:
        raise ValueError(f"{name}: expected {rows} rows like root_id, got {got}")
    return 0


cdef list _oldest(AckerCore** cores, size_t count, size_t most, bint clock_known, int64_t now_ms):
    """Return the `most` oldest entries, the oldest first, as tuples in the order of `acker.PendingTree`."""
    cdef size_t held = 0
    for core in range(count):
        held += cores[core].arena.count()
    oldest = new c_Oldest(held if held < most else most)
    cdef const OldEntry* entries = NULL
    try:
        if not oldest.start():
            raise MemoryError(f"no memory for {most} entries")
        with nogil:
            for core in range(count):
                oldest.look_at(cores[core][0], clock_known, now_ms)
            entries = oldest.sorted()
        return [
            (
                entries[row].message_id,
                entries[row].age_ms,
                entries[row].state,
                entries[row].root_id,
                entries[row].task_id,
                entries[row].ack_val,
                entries[row].rotations_left,
            )
            for row in range(<Py_ssize_t>oldest.rows())
        ]
    finally:
        del oldest


cdef int _look_at_oldest(
    c_RotationWatch* watch, AckerCore** cores, size_t count, int64_t open_trees, int64_t ended
) except -1:
    """Warn if nobody rotates and entries grow old; before a batch, since warnings may be errors."""
    ((_, age_ms, *_),) = _oldest(cores, count, 1, True, watch.now_ms())
    if age_ms < _LONG_MS and not (open_trees >= _MANY and ended == 0):
        watch.look_again(age_ms)
        return 0
    cdef size_t held = 0
    for core in range(count):
        held += cores[core].arena.count()
    watch.end()
    _warn_never_rotated(held, open_trees, ended, age_ms)
    return 0


@cython.final
cdef class LastCall:
    """The result of the last call of `ingest` or `rotate`: a signal's handler may raise before its caller has it."""

    cdef object completions  # None: since then a call has begun
    cdef size_t rows

    cdef void begin(self) noexcept:
        self.completions = None

    cdef object end(self, size_t rows, object completions):
        self.rows = rows
        self.completions = completions
        return completions

    def take(self):
        """Return rows and `Completions` of the last call, or None, and forget them."""
        if self.completions is None:
            return None
        taken = (self.rows, self.completions)
        self.completions = None
        return taken


@cython.final
cdef class Core:
    """The native half of `acker.Acker`, and with `shards` of `acker.ShardedAcker`, over columns that are plain arrays.

    Without shards, `threads` is not read.
    """

    # Of these two, which are owned, one is NULL.
    cdef AckerCore* single
    cdef ShardedCore* sharded
    # All tables of either.
    cdef AckerCore** cores
    cdef size_t count
    cdef tuple no_trees  # shared: most small batches finish no tree, and five new arrays take half of their time
    cdef SingleEntry single_entry
    cdef PublishedStats published
    cdef c_RotationWatch* watch
    cdef readonly LastCall last_call

    def __cinit__(
        self, int protocol, unsigned buckets, object high_water, uint64_t seed, str kernel, object shards=None,
        unsigned threads=1
    ):
        cdef int64_t limit = -1 if high_water is None else high_water
        cdef unsigned parts = 1 if shards is None else shards
        self.single = NULL
        self.sharded = NULL
        self.watch = NULL
        self.last_call = LastCall()
        _check_options(protocol, buckets)
        self.no_trees = _tree_columns(0)
        self.watch = new c_RotationWatch(_LONG_MS, _FEW, _MANY)
        self.count = parts
        if shards is None:
            self.single = new AckerCore(<Protocol>protocol, buckets, limit, seed, kernel == "avx2")
            self.cores = &self.single
        else:
            _expect("shards", parts, 1, c_SHARDS_MAX)
            _expect("threads", threads, 1, parts)
            self.sharded = new ShardedCore(parts, threads)
            if not self.sharded.start(<Protocol>protocol, buckets, limit, seed, kernel == "avx2"):
                raise MemoryError(f"no memory for an acker of {shards} shards")
            self.cores = self.sharded.cores()
        self.publish()

    def __dealloc__(self):
        del self.single
        del self.sharded
        del self.watch

    cdef int enter(self) except -1:
        _enter(&self.single_entry, "Acker")
        if self.is_broken():
            self.single_entry.leave()
            raise UnusableError()
        return 0

    cdef void leave(self) noexcept:
        self.publish()
        self.single_entry.leave()

    cdef bint is_broken(self) noexcept:
        return self.sharded != NULL and self.sharded.broken()

    cdef Counters counters(self) noexcept:
        return self.single.counters if self.sharded == NULL else self.sharded.counters()

    cdef int64_t open(self) noexcept:
        return self.single.open() if self.sharded == NULL else self.sharded.open()

    cdef int64_t held(self) noexcept:
        return <int64_t>(self.single.arena.count() if self.sharded == NULL else self.sharded.count())

    cdef int64_t ended(self) noexcept:
        cdef Counters counters = self.counters()
        return counters.acked + counters.failed

    cdef void publish(self) noexcept:
        cdef Stats stats
        stats.counters = self.counters()
        stats.pending = self.held()
        stats.open = self.open()
        if self.sharded == NULL:
            stats.bytes = <int64_t>(sizeof(AckerCore) + self.single.arena.bytes() + self.single.finished.bytes())
        else:
            stats.bytes = <int64_t>self.sharded.bytes()
        self.published.write(stats)

    def ingest(self, kind, root_id, value, task_id, message_id, now_ms):
        """Apply a batch; return its `Completions`, or raise `AckerMemoryError` with those of the rows that are applied.

        Returns None, with nothing applied, if a column is not plain or a row is not legal: acker._engine.columns then
        converts the columns or explains the error. And if there are more than SLICE_ROWS rows. With shards all rows are
        applied or, if memory runs out, none.
        """
        cdef Messages messages
        cdef size_t applied = 0
        cdef int64_t now = 0
        cdef bint legal
        if not _read_batch(kind, root_id, value, task_id, message_id, now_ms, &messages, &now):
            return None
        self.enter()
        self.last_call.begin()
        try:
            if self.watch.look(now, self.held(), self.open(), self.ended()):
                _look_at_oldest(self.watch, self.cores, self.count, self.open(), self.ended())
            with nogil:
                legal = _is_legal(messages)
                if legal and self.sharded == NULL:
                    applied = self.single.ingest(messages, now)
                elif legal and self.sharded.ingest(messages, now) == Applied.all:
                    applied = messages.rows
            if not legal:
                return None
            if self.is_broken():
                raise UnusableError()
            columns = self.take_finished()
        finally:
            self.leave()
        return self.last_call.end(messages.rows, _completions_or_error(columns, applied, messages.rows))

    cdef tuple take_finished(self):
        """Return copies of the columns of the trees that the last batch has finished."""
        cdef size_t rows = self.single.finished.rows if self.sharded == NULL else self.sharded.finished_rows()
        if rows == 0:
            return self.no_trees
        try:
            columns = _tree_columns(rows)
        except MemoryError:
            return _take_uncopied(&self.single.finished if self.sharded == NULL else self.sharded.gather_finished())
        roots = <int64_t*>_data(columns[0])
        messages = <int64_t*>_data(columns[1])
        tasks = <int32_t*>_data(columns[2])
        outcomes = <int8_t*>_data(columns[3])
        elapsed = <int64_t*>_data(columns[4])
        if self.sharded == NULL:
            self.single.finished.copy_to(roots, messages, tasks, outcomes, elapsed)
            self.single.finished.give_back()
        else:
            self.sharded.copy_finished(roots, messages, tasks, outcomes, elapsed)
            self.sharded.give_back()
        return columns

    def rotate(self, int64_t now_ms):
        """Empty death row; return the trees that timed out as `Completions`."""
        cdef size_t rows
        self.enter()
        self.last_call.begin()
        try:
            rows = <size_t>self.single.tracked_in(self.single.death_row()) if self.sharded == NULL else (
                self.sharded.expiring()
            )
            columns = _tree_columns(rows)
            roots = <int64_t*>_data(columns[0])
            messages = <int64_t*>_data(columns[1])
            tasks = <int32_t*>_data(columns[2])
            elapsed = <int64_t*>_data(columns[4])
            with nogil:
                if self.sharded == NULL:
                    self.single.rotate(now_ms, roots, messages, tasks, elapsed)
                else:
                    self.sharded.rotate(now_ms, roots, messages, tasks, elapsed)
            self.watch.rotated(now_ms)
            cnp.PyArray_FILLWBYTE(columns[3], OUTCOME_TIMED_OUT)
        finally:
            self.leave()
        return self.last_call.end(0, _completions(columns))

    def oldest(self, size_t most, now_ms):
        """Return the `most` oldest entries at `now_ms`; None: at the time of the last call."""
        cdef int64_t now = 0 if now_ms is None else now_ms
        self.enter()
        try:
            if now_ms is None:
                return _oldest(self.cores, self.count, most, self.watch.has_time(), self.watch.now_ms())
            return _oldest(self.cores, self.count, most, True, now)
        finally:
            self.single_entry.leave()

    def contains(self, int64_t root_id):
        cdef AckerCore* core
        self.enter()
        try:
            core = self.single if self.sharded == NULL else &self.sharded.shard_of(root_id)
            return <bint>core.arena.find(core.arena.hash(<uint64_t>root_id))
        finally:
            self.single_entry.leave()

    def stats(self):
        """The numbers of `acker.Stats` in its order, as some recent call left them. Any thread may call this."""
        return _stats_of(self.published.read())

    @property
    def nbytes(self):
        """Bytes of memory in use, as some recent call left them."""
        return self.published.read().bytes

    @property
    def pending(self):
        """How many entries are held, as some recent call left them."""
        return self.published.read().pending

    def writer(self):
        """Return a writer of all entries into the blocks of a snapshot."""
        if self.is_broken():
            raise UnusableError()
        return _writer(self, &self.single_entry, self.cores, self.count)

    def reader(self, uint64_t checksum, uint64_t entries):
        """Return a reader that fills this new core from the blocks of a snapshot of `entries` entries."""
        return _reader(self, &self.single_entry, self.cores, self.count, checksum, entries)

    def set_counters(self, tuple counters not None):
        """Set the counters of the snapshot whose entries this core holds."""
        cdef Counters before
        _set_counters(&before, counters)
        self.enter()
        try:
            if self.sharded == NULL:
                self.single.counters = before
            else:
                self.sharded.take_over(before)
        finally:
            self.leave()

    def helpers(self):
        """Return how many helper threads are running."""
        self.enter()
        try:
            return 0 if self.sharded == NULL else self.sharded.helpers()
        finally:
            self.single_entry.leave()


SHARDS_MAX = c_SHARDS_MAX


include "snapshot.pxi"
include "combiner.pxi"
include "open_trees.pxi"
include "tuple_tree.pxi"


cdef extern from "gups.h" namespace "acker" nogil:
    cppclass c_Gups "acker::Gups":
        bint start(size_t bytes, uint64_t seed) noexcept
        void update(const int64_t* root_id, const int64_t* value, size_t rows) noexcept
        uint64_t checksum() noexcept


@cython.final
cdef class Gups:
    """Random xor updates over a table of `table_bytes`: the limit that benchmarks compare ingest with."""

    cdef c_Gups table
    cdef SingleEntry single_entry

    def __cinit__(self, size_t table_bytes, uint64_t seed):
        # Larger sizes would overflow when they are rounded up.
        if table_bytes >> 48 != 0 or not self.table.start(table_bytes, seed):
            raise MemoryError(f"no memory for a table of {table_bytes} bytes")

    def update(self, const int64_t[::1] root_id not None, const int64_t[::1] value not None):
        """Do one update for each row; both columns have the same length."""
        _expect_rows("value", value.shape[0], root_id.shape[0])
        self.enter()
        if root_id.shape[0] > 0:
            with nogil:
                self.table.update(&root_id[0], &value[0], <size_t>root_id.shape[0])
        self.single_entry.leave()

    def checksum(self):
        """Return the xor of all words of the table."""
        self.enter()
        found = self.table.checksum()
        self.single_entry.leave()
        return found

    cdef int enter(self) except -1:
        return _enter(&self.single_entry, "Gups")
