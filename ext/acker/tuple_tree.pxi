"""The native half of `acker.TupleTree`: what it keeps, and what it does for each message."""

from time import monotonic_ns as _monotonic_ns

from libcpp.vector cimport vector

from acker._engine import misuse as _misuse
from acker._engine.ids import IdGenerator as _IdGenerator
from acker._engine.protocol import Kind as _Kind
from acker._engine.protocol import Message as _Message
from acker._engine.protocol import PendingTree as _PendingTree
from acker._engine.protocol import check_integer as _check_integer
from acker._engine.protocol import check_ms as _check_ms


cdef extern from "encoded_id.h" namespace "acker" nogil:
    enum:
        ENCODED_ID_MAX

    struct EncodedId:
        int64_t root_id
        int64_t tuple_id
        bint anchored

    bint parse_encoded_id(const char* text, size_t size, EncodedId* id) noexcept
    size_t write_encoded_id(const EncodedId& id, char* text) noexcept


cdef extern from "recent_ids.h" namespace "acker" nogil:
    cppclass RecentIds:
        bint start() noexcept
        bint contains(int64_t root_id, int64_t tuple_id) noexcept
        void add(int64_t root_id, int64_t tuple_id) noexcept


cdef extern from * namespace "acker":
    """
namespace acker {

// A tree that its spout has not closed, in the list of those of one TupleTree.
struct SpoutTree {
    SpoutTree* before = nullptr;
    SpoutTree* after = nullptr;
    int64_t root_id = 0;
    int64_t message_id = 0;
    int64_t since_ms = 0;
    int64_t emitted = 0;  // the xor of the tuple ids
    int32_t task_id = 0;

    void link(SpoutTree* others) noexcept {
        before = others->before;
        after = others;
        before->after = after->before = this;
    }

    // A second call does nothing.
    void unlink() noexcept {
        if (after == nullptr) return;
        before->after = after;
        after->before = before;
        before = after = nullptr;
    }
};

// A named tuple of these fields. Python's own constructor of named tuples takes a frame more.
inline PyObject* named_tuple(PyObject* type, PyObject* fields) noexcept {
    PyObject* arguments = PyTuple_Pack(1, fields);
    if (arguments == nullptr) return nullptr;
    PyObject* made = PyTuple_Type.tp_new(reinterpret_cast<PyTypeObject*>(type), arguments, nullptr);
    Py_DECREF(arguments);
    return made;
}

inline bool is_ascii(PyObject* text) noexcept { return PyUnicode_IS_ASCII(text); }

inline const char* ascii_of(PyObject* text) noexcept { return static_cast<const char*>(PyUnicode_DATA(text)); }

}  // namespace acker
    """
    cppclass SpoutTree:
        SpoutTree* before
        SpoutTree* after
        int64_t root_id
        int64_t message_id
        int64_t since_ms
        int64_t emitted
        int32_t task_id
        void link(SpoutTree* others) noexcept
        void unlink() noexcept

    object named_tuple(object type, tuple fields)
    bint is_ascii(object text) noexcept
    const char* ascii_of(object text) noexcept


cdef enum:
    # The number of unacknowledged inputs from which on their age is checked, and the age that is worth a warning.
    _MANY_INPUTS = 1024
    _LONG_WAIT_MS = 600_000
    _IDS_AT_ONCE = 256

cdef object _TRACK = _Kind.TRACK
cdef object _ANCHOR = _Kind.ANCHOR
cdef object _OK = _Kind.OK
cdef object _FAIL = _Kind.FAIL
cdef object _RESET_TIMEOUT = _Kind.RESET_TIMEOUT


cdef object _integer(str name, object number, int64_t least, int64_t most):
    """Return what `check_integer` returns, without calling it for the integers that nearly all are."""
    cdef int overflow = 0
    if type(number) is int:
        found = PyLong_AsLongLongAndOverflow(number, &overflow)
        if not overflow and least <= found <= most:
            return number
    return _check_integer(name, number, least, most)


cdef object _age_ms(object since_ms, object now_ms):
    """Return the difference, which an int64 may not hold; 0 if the clock was set back."""
    return max(0, now_ms - since_ms)


cdef str _encoded(int64_t root_id, int64_t tuple_id, bint anchored):
    cdef char[ENCODED_ID_MAX] text
    cdef EncodedId id
    id.root_id = root_id
    id.tuple_id = tuple_id
    id.anchored = anchored
    return text[:write_encoded_id(id, text)].decode("ascii")


cdef int _read_id(object tuple_id, Py_ssize_t index, EncodedId* id) except -1:
    """Read the parts of an encoded id; raise for anything else."""
    if not (
        isinstance(tuple_id, str)
        and is_ascii(tuple_id)
        and parse_encoded_id(ascii_of(tuple_id), <size_t>len(<str>tuple_id), id)
    ):
        _misuse.read_id(tuple_id, index)
        raise AssertionError(f"{tuple_id!r} is an encoded id")
    return 0


cdef list _read_ids(object tuple_ids):
    """Return (root id, tuple id) of each anchored one of some encoded ids."""
    cdef EncodedId id
    cdef Py_ssize_t index
    cdef tuple every
    if type(tuple_ids) is list or type(tuple_ids) is tuple:
        every = tuple(tuple_ids)
    else:
        every = _misuse.sequence_of(tuple_ids)
    parsed = []
    for index in range(len(every)):
        _read_id(every[index], index, &id)
        if id.anchored:
            parsed.append((id.root_id, id.tuple_id))
    return parsed


@cython.final
@cython.internal
cdef class Input:
    """An input from its first anchor to its acknowledgement."""

    cdef int64_t root_id
    cdef int64_t tuple_id
    cdef int64_t since_ms
    cdef int64_t emitted  # the xor of the tuple ids that were emitted under it, for its OK to carry
    cdef bint settled


@cython.boundscheck(True)
@cython.nonecheck(True)
cdef class TreeBase:
    """The state of a `TupleTree`, and its work for each message."""

    cdef tuple ackers
    cdef bint one_by_one
    cdef object next_id  # None: the ids of `generator`, of which `unused` are left
    cdef object generator
    cdef int64_t[_IDS_AT_ONCE] ids
    cdef size_t unused
    cdef int64_t drawn_by  # the process, since a forked child must not use the same ids
    cdef object now_ms  # None: the monotonic clock
    cdef dict inputs  # by root id and tuple id
    cdef SpoutTree spouts  # the ends of the list of trees that the spout has not closed yet
    cdef RecentIds acknowledged
    cdef int64_t look_at

    def __cinit__(self, *_, **__):
        self.ackers = ()
        self.inputs = {}
        self.spouts.before = self.spouts.after = &self.spouts
        self.look_at = _MANY_INPUTS

    def __init__(self, tuple ackers not None, bint one_by_one, next_id, now_ms):
        self.ackers = ackers
        self.one_by_one = one_by_one
        self.next_id = next_id
        self.generator = _IdGenerator() if next_id is None else None
        self.now_ms = now_ms

    def __len__(self):
        """Return the number of anchored ids of inputs that are not acknowledged yet."""
        return len(self.inputs)

    @cython.critical_section
    cdef int64_t draw(self, str name) except? 0:
        if self.next_id is not None:
            return _integer(name, self.next_id(), INT64_MIN, INT64_MAX)
        if self.unused == 0 or self.drawn_by != process_id():
            self.refill_ids()
        self.unused -= 1
        return self.ids[self.unused]

    cdef int refill_ids(self) except -1:
        """Draw the next ids at once; in a forked child those that the parent may use too are left out."""
        cdef int64_t[::1] drawn = self.generator.take(_IDS_AT_ONCE)
        _expect_rows("ids", drawn.shape[0], _IDS_AT_ONCE)
        memcpy(self.ids, &drawn[0], _IDS_AT_ONCE * sizeof(int64_t))
        self.unused = _IDS_AT_ONCE
        self.drawn_by = process_id()
        return 0

    cdef int64_t now(self) except? 0:
        if self.now_ms is None:
            return <int64_t>_monotonic_ns() // 1_000_000
        return _check_ms("now_ms", self.now_ms())

    @cython.critical_section
    cdef int link(self, SpoutTree* spout) except -1:
        spout.link(&self.spouts)
        return 0

    @cython.critical_section
    cdef int unlink(self, SpoutTree* spout) except -1:
        spout.unlink()
        return 0

    @cython.critical_section
    cdef bint is_acknowledged(self, int64_t root_id, int64_t tuple_id) except -1:
        return self.acknowledged.contains(root_id, tuple_id)

    @cython.critical_section
    cdef bint note_acknowledged(self, int64_t root_id, int64_t tuple_id) except -1:
        """Remember an input; return False if it is remembered already."""
        if not self.acknowledged.start():
            raise MemoryError("no memory for the inputs that were acknowledged")
        if self.acknowledged.contains(root_id, tuple_id):
            return False
        self.acknowledged.add(root_id, tuple_id)
        return True

    def _track(self, task_id, message_id):
        """Begin a tree."""
        tracking = <Tracking>Tracking.__new__(Tracking)
        tracking.begin(self, task_id, message_id)
        return tracking

    def _anchor(self, tuple_ids):
        """Prepare to emit tuples that belong to the trees of the input."""
        anchoring = <Anchoring>Anchoring.__new__(Anchoring)
        anchoring.begin(self, tuple_ids)
        return anchoring

    def _acknowledge(self, kind, tuple_id):
        """Send the OK or FAIL of an input."""
        cdef EncodedId id
        _read_id(tuple_id, -1, &id)
        if not id.anchored:
            return
        if not self.note_acknowledged(id.root_id, id.tuple_id):
            raise _misuse.acknowledged_error(tuple_id)
        value = id.tuple_id
        if self.inputs:
            known = <Input>self.inputs.pop((id.root_id, id.tuple_id), None)
            if known is not None:
                known.settled = True
                if kind is _OK:
                    value ^= known.emitted
        self.send(kind, id.root_id, id.root_id, value, 0, 0)

    def _reset_timeout(self, tuple_ids):
        """Send a RESET_TIMEOUT for each tree of an input."""
        for root_id in dict.fromkeys([root_id for root_id, _ in _read_ids(tuple_ids)]):
            self.send(_RESET_TIMEOUT, root_id, root_id, 0, 0, 0)

    cdef list begin(self, list parsed):
        """Return the inputs that tuples will be anchored to, remembered until they are acknowledged."""
        cdef Input known
        now = self.now()
        for root_id, tuple_id in parsed:
            if self.is_acknowledged(root_id, tuple_id):
                raise _misuse.settled_error(root_id, tuple_id)
        inputs = []
        for each in parsed:
            known = <Input>self.inputs.get(each)
            if known is None:
                known = Input.__new__(Input)
                known.root_id, known.tuple_id = each
                known.since_ms = now
                self.inputs[each] = known
            inputs.append(known)
        if len(self.inputs) >= self.look_at:
            self.look_at_oldest(now)
        return inputs

    cdef int look_at_oldest(self, int64_t now) except -1:
        cdef Input known
        cdef int64_t since_ms = now
        self.look_at = 2 * len(self.inputs)
        for each in list(self.inputs.values()):
            known = <Input>each
            since_ms = min(since_ms, known.since_ms)
        age_ms = _age_ms(since_ms, now)
        if age_ms >= _LONG_WAIT_MS:
            self.look_at = INT64_MAX
            _misuse.warn_never_acknowledged(len(self.inputs), age_ms, 3)
        return 0

    def _waiting(self):
        """Return the trees and inputs that wait on this side."""
        cdef Input known
        cdef vector[SpoutTree] spouts
        now = self.now()
        self.copy_spouts(&spouts)
        trees = []
        for spout in spouts:
            age_ms = _age_ms(spout.since_ms, now)
            row = (spout.message_id, age_ms, "tracking", spout.root_id, spout.task_id, spout.emitted, None)
            trees.append(named_tuple(_PendingTree, row))
        for each in list(self.inputs.values()):
            known = <Input>each
            age_ms = _age_ms(known.since_ms, now)
            row = (None, age_ms, "anchored", known.root_id, None, known.tuple_id ^ known.emitted, None)
            trees.append(named_tuple(_PendingTree, row))
        return trees

    @cython.critical_section
    cdef int copy_spouts(self, vector[SpoutTree]* spouts) except -1:
        """Copy the list before Python objects are made of it: meanwhile a finalizer may end any of its trees."""
        spout = self.spouts.after
        while spout != &self.spouts:
            spouts.push_back(spout[0])
            spout = spout.after
        return 0

    cdef int send(self, kind, root_id, int64_t root, int64_t value, task_id, message_id) except -1:
        """Send a message to the acker that owns the root id, given as an object and as a number."""
        message = named_tuple(_Message, (kind, root_id, value, task_id, message_id))
        cdef Py_ssize_t owner = 0
        if len(self.ackers) > 1:
            owner = <Py_ssize_t>((0 - <uint64_t>root if root < 0 else <uint64_t>root) % <uint64_t>len(self.ackers))
        self.ackers[owner](message)
        return 0


@cython.boundscheck(True)
@cython.nonecheck(True)
@cython.final
cdef class Tracking:
    """One tree that a spout begins; see `TupleTree.track`. Calling it returns the ids of one delivery.

    If the ``with`` block raises, the tree is failed: some deliveries may have been sent, and the spout must know.
    """

    cdef object __weakref__
    cdef TreeBase tree
    cdef object root_id
    cdef object task_id
    cdef object message_id
    cdef SpoutTree spout
    cdef int64_t deliveries
    cdef bint open

    cdef int begin(self, TreeBase tree, task_id, message_id) except -1:
        self.tree = tree
        self.task_id = _integer("task_id", task_id, 0, INT32_MAX)
        if message_id is not None:
            self.message_id = _integer("message_id", message_id, INT64_MIN, INT64_MAX)
        self.spout.root_id = tree.draw("root_id")
        self.root_id = self.spout.root_id
        if message_id is None:
            return 0
        self.spout.task_id = self.task_id
        self.spout.message_id = self.message_id
        self.spout.since_ms = tree.now()
        tree.link(&self.spout)
        self.open = True
        if tree.one_by_one:
            tree.send(_TRACK, self.root_id, self.spout.root_id, 0, self.task_id, self.message_id)
        return 0

    def __call__(self):
        """Return the encoded ids of one more delivery."""
        tuple_id = self.tree.draw("tuple_id")
        if self.message_id is None:
            return [_encoded(0, tuple_id, False)]
        if not self.open:
            raise _misuse.closed_error()
        self.spout.emitted ^= tuple_id
        self.deliveries += 1
        if self.tree.one_by_one:
            self.tree.send(_ANCHOR, self.root_id, self.spout.root_id, tuple_id, 0, 0)
        return [_encoded(self.spout.root_id, tuple_id, True)]

    def close(self):
        """Send the last message of the spout, after the last delivery. A second call does nothing."""
        self.end()

    cdef int end(self) except -1:
        if not self.open:
            return 0
        self.open = False
        self.tree.unlink(&self.spout)
        if not self.tree.one_by_one:
            self.tree.send(_TRACK, self.root_id, self.spout.root_id, self.spout.emitted, self.task_id, self.message_id)
        elif self.deliveries == 0:
            # No bolt reads the stream. A TRACK alone never finishes a tree here, and OK does if the ack val is 0.
            self.tree.send(_OK, self.root_id, self.spout.root_id, 0, 0, 0)
        return 0

    cdef int fail(self) except -1:
        if not self.open:
            return 0
        # One more edge that is never acked: without it the ack val may be 0, and ACKED wins over FAILED.
        self()
        self.end()
        return self.tree.send(_FAIL, self.root_id, self.spout.root_id, 0, 0, 0)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is None:
            self.end()
        else:
            self.fail()

    def __del__(self):
        if not self.open:
            return
        self.open = False
        self.tree.unlink(&self.spout)
        if not self.tree.one_by_one:
            _misuse.warn_never_closed(self, self.message_id, 2)

    def __reduce__(self):
        raise _misuse.copy_error("Tracking")


@cython.boundscheck(True)
@cython.nonecheck(True)
@cython.final
cdef class Anchoring:
    """The trees that a bolt's outputs belong to; see `TupleTree.anchor`. Calling it returns the ids of one delivery."""

    cdef TreeBase tree
    cdef list inputs
    # The first input of each root, whose OK carries the emitted ids. One is enough if several inputs share a root: the
    # acker sees the xor of all.
    cdef list anchors

    cdef int begin(self, TreeBase tree, tuple_ids) except -1:
        parsed = _read_ids(tuple_ids)
        self.tree = tree
        self.inputs = tree.begin(parsed)
        self.anchors = self.inputs
        if len(self.inputs) > 1:
            first = {}
            for (root_id, _), known in zip(parsed, self.inputs):
                first.setdefault(root_id, known)
            self.anchors = list(first.values())
        return 0

    def __call__(self):
        """Return the encoded ids of one more delivery."""
        cdef Input anchor
        tuple_id = self.tree.draw("tuple_id")
        for each in self.anchors:
            anchor = <Input>each
            if anchor.settled:
                raise _misuse.settled_error(anchor.root_id, anchor.tuple_id)
        if not self.anchors:
            return [_encoded(0, tuple_id, False)]
        ids = []
        for each in self.anchors:
            anchor = <Input>each
            if self.tree.one_by_one:
                self.tree.send(_ANCHOR, anchor.root_id, anchor.root_id, tuple_id, 0, 0)
            else:
                anchor.emitted ^= tuple_id
            ids.append(_encoded(anchor.root_id, tuple_id, True))
        return ids

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        cdef Input known
        acknowledge = self.tree.ok if kind is None else self.tree.fail
        for each in self.inputs:
            known = <Input>each
            if not known.settled:  # Else it was acknowledged inside the block.
                acknowledge(_encoded(known.root_id, known.tuple_id, True))

    def __reduce__(self):
        raise _misuse.copy_error("Anchoring")
