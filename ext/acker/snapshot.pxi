"""The blocks of a snapshot, written and read. acker._engine.snapshot has the format around them."""

from cpython.bytes cimport PyBytes_AsString, PyBytes_FromStringAndSize
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy


cdef extern from "memory.h" namespace "acker" nogil:
    void prefer_huge_pages(void* block, size_t size) noexcept


cdef extern from "snapshot.h" namespace "acker" nogil:
    size_t BLOCK_ENTRIES
    size_t block_bytes(size_t entries) noexcept

    enum Fault:
        CHECKSUM_WRONG
        NO_MEMORY
        NO_FAULT

    cppclass c_SnapshotWriter "acker::SnapshotWriter":
        c_SnapshotWriter(AckerCore** cores, size_t count, uint64_t checksum)
        size_t bytes() noexcept
        size_t next_entries() noexcept
        void write(uint8_t* block) noexcept

    cppclass c_SnapshotReader "acker::SnapshotReader":
        c_SnapshotReader(AckerCore** cores, size_t count, uint64_t checksum, uint64_t entries)
        Fault read(const uint8_t* block, size_t entries, size_t* row) noexcept


cdef enum:
    COUNTERS = 11  # the fields of Counters


cdef void _set_counters(Counters* counters, tuple numbers) except *:
    cdef int64_t[COUNTERS] values
    if len(numbers) != COUNTERS:
        raise ValueError(f"counters: expected {COUNTERS}, got {len(numbers)}")
    for i in range(COUNTERS):
        values[i] = numbers[i]
    memcpy(counters, values, sizeof(Counters))


@cython.final
cdef class SnapshotWriter:
    """Writes the entries of some cores as blocks, inside a `with` statement that keeps other threads out.

    Read `counters` and `entries` for the header, call `begin`, then `whole` once or `next_block` until it returns b"".
    """

    cdef object owner  # keeps the cores alive
    cdef SingleEntry* single_entry
    cdef AckerCore** cores
    cdef size_t count
    cdef bint inside
    cdef SingleEntry calls  # the blocks are written without the GIL, one call at a time
    cdef c_SnapshotWriter* blocks

    def __cinit__(self):
        self.inside = False
        self.blocks = NULL

    def __dealloc__(self):
        del self.blocks

    def __enter__(self):
        self.expect(self.single_entry != NULL)
        _enter(self.single_entry, "Acker")
        self.inside = True
        return self

    def __exit__(self, *_):
        self.expect(self.inside)
        _enter(&self.calls, "snapshot's writer")
        self.inside = False
        del self.blocks  # its pointers lead into tables that may change from now on
        self.blocks = NULL
        self.calls.leave()
        self.single_entry.leave()

    @property
    def entries(self):
        """How many entries the cores hold."""
        self.expect(self.inside)
        cdef size_t entries = 0
        for core in range(self.count):
            entries += self.cores[core].arena.count()
        return entries

    @property
    def counters(self):
        """The counters, summed over the cores."""
        self.expect(self.inside)
        per_core = [_counters_of(self.cores[core].counters) for core in range(self.count)]
        return tuple([sum(column) for column in zip(*per_core)])

    def begin(self, uint64_t checksum):
        """Go to the first block; `checksum` is that of the header."""
        self.expect(self.inside and self.blocks == NULL)
        self.blocks = new c_SnapshotWriter(self.cores, self.count, checksum)

    def next_block(self):
        """Return the next block as bytes, or b"" if all are written."""
        self.expect(self.inside and self.blocks != NULL)
        cdef size_t entries = self.blocks.next_entries()
        if entries == 0:
            return b""
        block = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>block_bytes(entries))
        cdef uint8_t* data = <uint8_t*>PyBytes_AsString(block)
        _enter(&self.calls, "snapshot's writer")
        with nogil:
            self.blocks.write(data)
        self.calls.leave()
        return block

    def whole(self, bytes header not None):
        """Return the header followed by all blocks."""
        self.expect(self.inside and self.blocks != NULL)
        cdef size_t at = <size_t>len(header)
        cdef size_t size = at + self.blocks.bytes()
        cdef size_t entries
        snapshot = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>size)
        cdef uint8_t* data = <uint8_t*>PyBytes_AsString(snapshot)
        prefer_huge_pages(data, size)
        memcpy(data, PyBytes_AsString(header), at)
        _enter(&self.calls, "snapshot's writer")
        with nogil:
            entries = self.blocks.next_entries()
            while entries > 0:
                self.blocks.write(data + at)
                at += block_bytes(entries)
                entries = self.blocks.next_entries()
        self.calls.leave()
        return snapshot

    cdef int expect(self, bint holds) except -1:
        if not holds:
            raise AssertionError("SnapshotWriter: expected `with`, then begin, then next_block or whole")
        return 0


cdef SnapshotWriter _writer(object owner, SingleEntry* single_entry, AckerCore** cores, size_t count):
    """A writer of the entries of `count` cores, one core after the other; the owner keeps both alive."""
    writer = SnapshotWriter()
    writer.owner, writer.single_entry, writer.cores, writer.count = owner, single_entry, cores, count
    return writer


@cython.final
cdef class SnapshotReader:
    """Fills new cores, which no other thread knows yet, from the blocks of a snapshot."""

    cdef object owner  # keeps the cores and the single entry alive
    cdef SingleEntry* single_entry
    cdef AckerCore** cores
    cdef size_t count
    cdef uint64_t entries
    cdef c_SnapshotReader* blocks

    def __cinit__(self):
        self.blocks = NULL

    def __dealloc__(self):
        del self.blocks

    def read(self, const uint8_t[::1] block not None, size_t entries):
        """Read a block; return None, or (fault, entry): what is wrong, and with which entry of the block."""
        cdef Fault fault = NO_FAULT
        cdef size_t row = 0
        if self.blocks == NULL:
            raise AssertionError("SnapshotReader: only Core.reader creates one")
        _expect("entries", <int64_t>entries, 1, BLOCK_ENTRIES)
        if <size_t>block.shape[0] != block_bytes(entries):
            raise ValueError(f"block: expected {block_bytes(entries)} bytes, got {block.shape[0]}")
        _enter(self.single_entry, "Acker")
        with nogil:
            fault = self.blocks.read(&block[0], entries, &row)
        self.single_entry.leave()
        if fault == NO_MEMORY:
            raise MemoryError(f"no memory for the {self.entries} entries of the snapshot")
        return None if fault == NO_FAULT else (<int>fault, row)

    @property
    def open(self):
        """How many tracked entries the cores hold now."""
        cdef int64_t tracked = 0
        for core in range(self.count):
            tracked += self.cores[core].open()
        return tracked


cdef SnapshotReader _reader(
    object owner, SingleEntry* single_entry, AckerCore** cores, size_t count, uint64_t checksum, uint64_t entries
):
    """Return a reader into `count` new cores, each root into the one of `acker_of`; `owner` keeps them alive."""
    reader = SnapshotReader()
    reader.owner, reader.single_entry, reader.cores, reader.count = owner, single_entry, cores, count
    reader.entries = entries
    reader.blocks = new c_SnapshotReader(cores, count, checksum, entries)
    return reader
