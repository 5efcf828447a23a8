"""The native half of `acker._engine.open_trees`: a table in memory that the caller owns."""

from libc.stddef cimport size_t
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy


cdef extern from "open_trees.h" namespace "acker" nogil:
    cppclass c_OpenTreesRules "acker::OpenTreesTable::Rules":
        int64_t time_ms
        uint64_t high_water
        bint every_message_refreshes
        c_Cohorts cohorts

    cppclass c_OpenTreesColumns "acker::OpenTreesTable::Columns":
        int64_t* root_id
        int64_t* value
        int64_t* message_id
        int64_t* start_ms
        int64_t* since_ms
        int32_t* task_id

    cppclass c_OpenTreesChanges "acker::OpenTreesTable::Changes":
        uint32_t* position
        size_t positions
        int64_t* root_id
        int64_t* start_ms
        size_t gone

    cppclass c_OpenTreesAges "acker::OpenTreesTable::Ages":
        const int64_t* bound_ms
        size_t bounds
        int64_t* count

    cppclass c_OpenTreesTable "acker::OpenTreesTable":
        void create(uint8_t* memory, size_t capacity, uint64_t seed) noexcept
        bint attach(uint8_t* memory, size_t bytes) noexcept
        bint holds(const uint32_t* position, size_t rows) noexcept
        size_t size() noexcept
        size_t open() noexcept
        size_t capacity() noexcept
        uint64_t seed() noexcept
        uint8_t* token() noexcept
        bint contains(int64_t root_id) noexcept
        size_t room_for(const Partials& partials) noexcept
        size_t room_for_timed(const Partials& partials) noexcept
        void merge(
            const Partials& partials, const c_OpenTreesRules& rules, c_Completions* done,
            c_OpenTreesChanges* changes, Counters* counts
        ) noexcept
        void merge_timed(
            const Partials& partials, const c_OpenTreesRules& rules, c_Completions* done,
            c_OpenTreesChanges* changes, Counters* counts
        ) noexcept
        int64_t expire(
            int64_t before_ms, int64_t now_ms, c_Completions* done, Counters* counts, const c_OpenTreesAges& ages
        ) noexcept
        void take(const uint32_t* position, size_t rows, uint32_t chunk, const c_OpenTreesColumns& out) noexcept
        size_t logged_before(uint32_t chunk, uint32_t* position, size_t most) noexcept
        void put(const c_OpenTreesColumns& columns, size_t rows, uint32_t chunk) noexcept
        void erase(const int64_t* root_id, const int64_t* start_ms, size_t rows) noexcept
        void copy_to(c_OpenTreesTable* other) noexcept
        bint check_invariants() noexcept

    size_t c_CAPACITY_MAX "acker::OpenTreesTable::CAPACITY_MAX"
    size_t c_open_trees_bytes "acker::OpenTreesTable::bytes_for"(size_t capacity) noexcept


def open_trees_bytes(size_t capacity):
    """Return how many bytes of zeros a table for `capacity` entries needs."""
    _expect("capacity", <int64_t> capacity, 0, <int64_t> c_CAPACITY_MAX)
    return c_open_trees_bytes(capacity)


cdef class _CompletionsBuffer:
    """The columns of completions that a call writes."""

    cdef c_Completions out
    cdef object longs
    cdef object task_id
    cdef object outcome

    def __cinit__(self, Py_ssize_t rows):
        self.longs = np.empty((3, rows), np.int64)
        self.task_id = np.empty(rows, np.int32)
        self.outcome = np.empty(rows, np.int8)
        cdef int64_t[:, ::1] longs = self.longs
        cdef int32_t[::1] tasks = self.task_id
        cdef int8_t[::1] outcomes = self.outcome
        self.out.rows = 0
        if rows > 0:
            self.out.root_id = &longs[0, 0]
            self.out.message_id = &longs[1, 0]
            self.out.elapsed_ms = &longs[2, 0]
            self.out.task_id = &tasks[0]
            self.out.outcome = &outcomes[0]

    cdef tuple columns(self):
        cdef Py_ssize_t rows = <Py_ssize_t> self.out.rows
        return (
            self.longs[0, :rows], self.longs[1, :rows], self.task_id[:rows], self.outcome[:rows], self.longs[2, :rows]
        )


@cython.final
cdef class OpenTreesTable:
    """A table in `memory`, which stays exported as long as this object lives; one thread at a time."""

    cdef c_OpenTreesTable table
    cdef uint8_t[::1] memory

    def __cinit__(self, uint8_t[::1] memory not None, capacity=None, uint64_t seed=0):
        self.memory = memory
        if memory.shape[0] > 0 and <size_t> &memory[0] % sizeof(uint64_t) != 0:
            raise ValueError("memory: expected a buffer aligned to 8 bytes")
        if capacity is not None:
            needed = open_trees_bytes(capacity)
            if <size_t> memory.shape[0] < needed:
                raise ValueError(f"memory: expected {needed} bytes for {capacity} entries, got {memory.shape[0]}")
            self.table.create(&memory[0], <size_t> capacity, seed)
        elif memory.shape[0] == 0 or not self.table.attach(&memory[0], <size_t> memory.shape[0]):
            raise ValueError("the memory holds no table")

    def __len__(self):
        return self.table.size()

    @property
    def open(self):
        return self.table.open()

    @property
    def capacity(self):
        return self.table.capacity()

    @property
    def seed(self):
        return self.table.seed()

    @property
    def token(self):
        return (<const char*> self.table.token())[:16]

    @token.setter
    def token(self, bytes token not None):
        if len(token) != 16:
            raise ValueError(f"token: expected 16 bytes, got {len(token)}")
        memcpy(self.table.token(), <const char*> token, 16)

    def contains(self, int64_t root_id):
        return self.table.contains(root_id)

    cpdef size_t room_for(
        self,
        const int64_t[::1] root_id,
        const int64_t[::1] value,
        const uint8_t[::1] flags,
        const int64_t[::1] track_value,
        object cohorts,
    ):
        """Return how many entries a merge of such partials makes at most, as far as the capacity depends on it."""
        cdef Partials partials
        cdef size_t rows = <size_t> root_id.shape[0]
        cdef size_t needed = rows
        _expect_rows("value", value.shape[0], root_id.shape[0])
        _expect_rows("flags", flags.shape[0], root_id.shape[0])
        _expect_rows("track_value", track_value.shape[0], root_id.shape[0])
        # No need to look closer if all of them find room.
        if rows > 0 and self.table.size() + rows > self.table.capacity():
            partials.root_id = &root_id[0]
            partials.value = &value[0]
            partials.flags = &flags[0]
            partials.track_value = &track_value[0]
            partials.rows = rows
            if cohorts is None:
                with nogil:
                    needed = self.table.room_for(partials)
            else:
                with nogil:
                    needed = self.table.room_for_timed(partials)
        return needed

    def merge(
        self,
        const int64_t[::1] root_id not None,
        const int64_t[::1] value not None,
        const uint8_t[::1] flags not None,
        const int64_t[::1] track_value not None,
        const int32_t[::1] task_id not None,
        const int64_t[::1] message_id not None,
        const int64_t[::1] event_ms,
        int64_t time_ms,
        high_water,
        bint every_message_refreshes,
        cohorts,
    ):
        """Apply partials; return completions, positions that changed, what left the log, and the counts.

        Without `cohorts` all messages have one time; with them each has its event time, by which the partials of a root
        are sorted.
        """
        cdef Partials partials
        cdef c_OpenTreesRules rules
        cdef c_OpenTreesChanges changes
        cdef Counters counts
        cdef Py_ssize_t rows = root_id.shape[0]
        _expect_rows("task_id", task_id.shape[0], rows)
        _expect_rows("message_id", message_id.shape[0], rows)
        if self.table.size() + self.room_for(root_id, value, flags, track_value, cohorts) > self.table.capacity():
            raise ValueError("the table has no room for so many rows")
        rules.time_ms = time_ms
        rules.high_water = <uint64_t> -1 if high_water is None else <uint64_t> high_water
        rules.every_message_refreshes = every_message_refreshes
        cdef bint timed = cohorts is not None
        cdef Py_ssize_t most_gone = rows
        if timed:
            _read_cohorts(&rules.cohorts, cohorts)
            if event_ms is None or event_ms.shape[0] != rows:
                raise ValueError("event_ms: expected one value for each row")
            # A tree may take any number of the entries that wait for it.
            most_gone += <Py_ssize_t> self.table.size()
        cdef _CompletionsBuffer done = _CompletionsBuffer(rows)
        position = np.empty(rows, np.uint32)
        gone = np.empty((2, most_gone), np.int64)
        cdef uint32_t[::1] positions = position
        cdef int64_t[:, ::1] gone_rows = gone
        changes.positions = 0
        changes.gone = 0
        if rows > 0:
            partials.root_id = &root_id[0]
            partials.value = &value[0]
            partials.flags = &flags[0]
            partials.track_value = &track_value[0]
            partials.task_id = &task_id[0]
            partials.message_id = &message_id[0]
            partials.rows = <size_t> rows
            changes.position = &positions[0]
            changes.root_id = &gone_rows[0, 0]
            changes.start_ms = &gone_rows[1, 0]
            if timed:
                partials.event_ms = &event_ms[0]
                with nogil:
                    self.table.merge_timed(partials, rules, &done.out, &changes, &counts)
            else:
                with nogil:
                    self.table.merge(partials, rules, &done.out, &changes, &counts)
        return (
            done.columns(), position[:<Py_ssize_t> changes.positions], gone[:, :<Py_ssize_t> changes.gone],
            _counters_of(counts),
        )

    def expire(self, int64_t before_ms, int64_t now_ms, const int64_t[::1] bound_ms not None):
        """Remove what was placed before a moment.

        Return completions, the start of the oldest left, the counts, and those of open trees whose age is below each
        bound, and from the last one on.
        """
        cdef Counters counts
        cdef int64_t oldest_ms
        cdef _CompletionsBuffer done = _CompletionsBuffer(<Py_ssize_t> self.table.open())
        cdef c_OpenTreesAges ages
        by_age = np.zeros(bound_ms.shape[0] + 1, np.int64)
        cdef int64_t[::1] count = by_age
        ages.bounds = <size_t> bound_ms.shape[0]
        ages.bound_ms = &bound_ms[0] if ages.bounds else NULL
        ages.count = &count[0]
        with nogil:
            oldest_ms = self.table.expire(before_ms, now_ms, &done.out, &counts, ages)
        return done.columns(), oldest_ms, _counters_of(counts), by_age

    def take(self, const uint32_t[::1] position not None, uint32_t chunk):
        """Return the columns of some entries, and note their chunk of the log."""
        cdef Py_ssize_t rows = position.shape[0]
        cdef c_OpenTreesColumns columns
        longs = np.empty((5, rows), np.int64)
        task_id = np.empty(rows, np.int32)
        if rows > 0:
            if not self.table.holds(&position[0], <size_t> rows):
                raise ValueError("position: expected positions of entries")
            columns = _entry_columns(longs[0], longs[1], longs[2], longs[3], longs[4], task_id)
            with nogil:
                self.table.take(&position[0], <size_t> rows, chunk, columns)
        return longs[0], longs[1], longs[2], longs[3], longs[4], task_id

    def logged_before(self, uint32_t chunk, Py_ssize_t most):
        """Return the positions of at most `most` logged entries whose chunk is before this one."""
        cdef size_t found = 0
        position = np.empty(most, np.uint32)
        cdef uint32_t[::1] positions = position
        if most > 0:
            with nogil:
                found = self.table.logged_before(chunk, &positions[0], <size_t> most)
        return position[:<Py_ssize_t> found]

    def put(
        self,
        int64_t[::1] root_id not None,
        int64_t[::1] value not None,
        int64_t[::1] message_id not None,
        int64_t[::1] start_ms not None,
        int64_t[::1] since_ms not None,
        int32_t[::1] task_id not None,
        uint32_t chunk,
    ):
        """Insert entries, or overwrite those with the same root and start."""
        cdef Py_ssize_t rows = root_id.shape[0]
        cdef c_OpenTreesColumns columns
        _expect_rows("value", value.shape[0], rows)
        _expect_rows("message_id", message_id.shape[0], rows)
        _expect_rows("start_ms", start_ms.shape[0], rows)
        _expect_rows("since_ms", since_ms.shape[0], rows)
        _expect_rows("task_id", task_id.shape[0], rows)
        for row in range(rows):
            if task_id[row] != UNTRACKED_RESET:
                _expect("task_id", task_id[row], UNTRACKED_FAILED, INT32_MAX)
        if self.table.size() + <size_t> rows > self.table.capacity():
            raise ValueError("the table has no room for so many rows")
        if rows > 0:
            columns = _entry_columns(root_id, value, message_id, start_ms, since_ms, task_id)
            with nogil:
                self.table.put(columns, <size_t> rows, chunk)

    def erase(self, const int64_t[::1] root_id not None, const int64_t[::1] start_ms not None):
        """Remove entries, each named by its root and start; unknown ones are ignored."""
        if start_ms.shape[0] != root_id.shape[0]:
            raise ValueError("start_ms: expected one value for each root id")
        if root_id.shape[0] > 0:
            with nogil:
                self.table.erase(&root_id[0], &start_ms[0], <size_t> root_id.shape[0])

    def copy_to(self, OpenTreesTable other not None):
        """Copy all entries into an empty table."""
        if len(other) > 0 or other.table.capacity() < self.table.size():
            raise ValueError(f"other: expected an empty table with room for {self.table.size()} entries")
        with nogil:
            self.table.copy_to(&other.table)


cdef c_OpenTreesColumns _entry_columns(
    int64_t[::1] root_id,
    int64_t[::1] value,
    int64_t[::1] message_id,
    int64_t[::1] start_ms,
    int64_t[::1] since_ms,
    int32_t[::1] task_id,
):
    cdef c_OpenTreesColumns columns
    columns.root_id = &root_id[0]
    columns.value = &value[0]
    columns.message_id = &message_id[0]
    columns.start_ms = &start_ms[0]
    columns.since_ms = &since_ms[0]
    columns.task_id = &task_id[0]
    return columns
