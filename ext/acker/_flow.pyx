# cython: language_level=3, boundscheck=True, nonecheck=True, wraparound=False, cdivision=True
# cython: auto_pickle=False, freethreading_compatible=True
"""The native half of the local runtime: ids, anchors, routing, deliveries and messages to ackers, for each tuple.

All of it runs with the GIL, between two calls of user code. Rare cases (errors, hooks, traces) are left to the Python
classes that inherit from these. Each object belongs to one executor; a tuple moves to another one through a queue.

User code may also call a component from its own threads (see `Emitter.on_executor_thread`). What such a thread shares
with the executor is read and written in one step, which the GIL protects; free-threaded builds use a critical section,
which costs nothing otherwise.

Objects built by hand or left incomplete raise and do not crash: list positions are checked, and so is None in place of
an object. Counted by callgrind in a topology stepped from one thread, these checks are a seventh more instructions here
and 1 to 2 % of all instructions of a tracked tuple; run times with and without them could not be told apart.
"""

import threading
import types
from collections import deque

cimport cython
from cpython.dict cimport PyDict_DelItem, PyDict_SetItem
from cpython.ref cimport Py_INCREF, Py_XDECREF, PyObject
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libcpp.vector cimport vector

import numpy as np

cdef extern from *:
    """
    /* Creates an instance of a Python class that inherits from one of these, without calling its __init__. */
    static inline PyObject* acker_blank(PyObject* type, PyObject* no_arguments) {
        return ((PyTypeObject*)type)->tp_new((PyTypeObject*)type, no_arguments, NULL);
    }
    """
    void PyObject_GC_Track(object value)
    void PyObject_GC_UnTrack(object value)
    bint PyObject_GC_IsTracked(object value)
    void PyTuple_SET_ITEM(object values, Py_ssize_t position, object value)
    object blank "acker_blank"(object type, object no_arguments)
    object blank_tuple "PyType_GenericAlloc"(type kind, Py_ssize_t items)
    unsigned long PyThread_get_thread_ident()

cdef extern from *:
    """
    #include <structmember.h>

    /* The offset of an attribute in the __slots__ of a class, which is made read-only; -1 for any other object. */
    static inline Py_ssize_t acker_slot_offset(PyObject* type, PyObject* descriptor) {
        if (!Py_IS_TYPE(descriptor, &PyMemberDescr_Type) || (PyObject*)PyDescr_TYPE(descriptor) != type) return -1;
        PyMemberDef* member = ((PyMemberDescrObject*)descriptor)->d_member;
        if (member->type != T_OBJECT_EX) return -1;
        member->flags |= READONLY;
        return member->offset;
    }

    static inline PyObject** acker_slot(PyObject* instance, Py_ssize_t offset) {
        return (PyObject**)((char*)instance + offset);
    }
    """
    Py_ssize_t slot_offset "acker_slot_offset"(object type, object descriptor)
    PyObject** slot_of "acker_slot"(object instance, Py_ssize_t offset)

cdef extern from *:
    """
    /* Calls `process(tup)`, or `process(bolt, tup)` if a bolt is given: NULL, with the error set, if it raises. */
    static inline PyObject* acker_call_process(PyObject* process, PyObject* bolt, PyObject* tup) {
        PyObject* arguments[3] = {NULL, bolt, tup};
        if (bolt == Py_None) return PyObject_Vectorcall(process, arguments + 2, 1, NULL);
        return PyObject_Vectorcall(process, arguments + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    }

    /* For Cython, in which a call raises if an error is set. */
    static inline int acker_raise(void) { return -1; }
    """
    PyObject* call_process "acker_call_process"(object process, object bolt, object tup)
    int raise_error "acker_raise"() except -1

include "tuple_memory.pxi"
include "turn.pxi"
include "hash_columns.pxi"

cdef extern from *:
    """
    /* The UTF-8 of a str, which the str keeps; NULL for one with a lone surrogate. */
    static inline const char* acker_text_of(PyObject* value, Py_ssize_t* size) {
        const char* text = PyUnicode_AsUTF8AndSize(value, size);
        if (text == NULL) PyErr_Clear();
        return text;
    }
    """
    const char* text_of "acker_text_of"(object value, Py_ssize_t* size)

cdef extern from *:
    """
    /* A new reference to the value of a key, since another thread may replace it; `missing` without the key. */
    static inline PyObject* acker_value_of(PyObject* values, PyObject* key, PyObject* missing) {
        PyObject* found;
    #if PY_VERSION_HEX >= 0x030D0000
        if (PyDict_GetItemRef(values, key, &found) < 0) return NULL;
    #else
        found = PyDict_GetItemWithError(values, key);
        if (found == NULL && PyErr_Occurred()) return NULL;
        Py_XINCREF(found);
    #endif
        return found != NULL ? found : Py_NewRef(missing);
    }
    """
    object value_of "acker_value_of"(object values, object key, object missing)

cdef extern from "crc32.h" namespace "acker":
    uint32_t crc32_of(const char* text, size_t size)

cdef extern from "codes.h" namespace "acker":
    int8_t TRACK
    int8_t OK
    int8_t FAIL
    int8_t RESET_TIMEOUT
    int8_t OUTCOME_ACKED

cdef extern from "<atomic>":
    cdef cppclass ThreadId "std::atomic<unsigned long>":
        unsigned long load()
        void store(unsigned long)
        unsigned long exchange(unsigned long)

    cdef cppclass AtomicBool "std::atomic<bool>":
        void store(bint)

cdef extern from "step_mark.h" namespace "acker":
    cdef cppclass StepMark:
        ThreadId stepping
        ThreadId resting
        AtomicBool woken
        void begin(unsigned long)

    bint wait_for_step_of "acker::wait_for_step"(vector[StepMark*]&, double) except + nogil

cdef tuple NO_ARGUMENTS = ()

# The owner of a tuple that was acked or failed. Python does not count references to this object: on free-threaded
# builds, threads that count references to one object at the same time slow each other down.
cdef object SETTLED = ...

# What `value_of` returns for a key that a dict does not have.
cdef object MISSING = object()

cdef type MethodType = types.MethodType

# Tuples of values are looked into this deep.
cdef int NESTED_MAX = 8

# How many ids one call of the generator returns: the call costs as much as a hundred ids.
cdef Py_ssize_t IDS_AT_ONCE = 2048

# The hash of longer texts, in bytes, is left to zlib, which is faster there.
cdef Py_ssize_t TEXT_MAX = 64


cdef bint is_fixed(object value, int depth) except -1:
    """Whether a value can never change in place: a number, a string, None, or a tuple of these."""
    cdef object kind = type(value)
    if kind is int or kind is str or kind is float or value is None or kind is bool or kind is bytes:
        return True
    if kind is not tuple or depth == NESTED_MAX:
        return False
    for each in <tuple>value:
        if not is_fixed(each, depth + 1):
            return False
    return True


cdef class TupleBase:
    """One delivery of a tuple: its values, its source, and its tuple id in each tree that it belongs to.

    The class of a stream's tuples inherits from this one, with a slot for each value.

    Python's cyclic collector does not look at a tuple of fixed values until a task holds it: in a queue it can be part
    of no cycle, and many tuples wait there.
    """

    cdef readonly object _source
    cdef object owner  # the task that it was handed to, as its Emitter, or SETTLED
    cdef public int64_t _ack_val
    # Most tuples belong to one tree or none. A tuple of several trees keeps all of them in `more`.
    cdef bint tracked
    cdef int64_t root_id
    cdef int64_t tuple_id
    cdef dict more
    # The values as one object, once they were read as such; those of a stream are in the slots of its class.
    cdef object together

    # The class of a stream's tuples has a ValueSlots here.
    _slots = None

    def __init__(self, values, source, ids=None):
        slots = type(self)._slots
        if slots is not None:
            (<ValueSlots?>slots).fill(self, values)
        self.together = values
        self._source = source
        self._set_ids(ids or {})
        self.show_to_collector()

    @property
    def values(self):
        """The values, in the order of the fields."""
        return self.values_together()

    @property
    def _owner(self):
        return self.owner

    @_owner.setter
    def _owner(self, owner):
        self.owner = owner
        self.show_to_collector()

    @cython.final
    cdef int show_to_collector(self) except -1:
        """Let Python's cyclic collector look at this tuple, which its task holds."""
        if not PyObject_GC_IsTracked(self):
            PyObject_GC_Track(self)
        return 0

    @cython.final
    @cython.critical_section
    cdef object values_together(self):
        if self.together is None:
            self.together = (<ValueSlots?>type(self)._slots).values_of(self)
        return self.together

    cdef int _set_ids(self, dict ids) except -1:
        self.tracked = len(ids) == 1
        self.more = ids if len(ids) > 1 else None
        for self.root_id, self.tuple_id in ids.items():
            break
        return 0

    @cython.final
    @cython.critical_section
    cdef int add_emitted_id(self, int64_t tuple_id) except -1:
        """Xor the id of a tuple that was emitted under this one into its ack val."""
        self._ack_val ^= tuple_id
        return 0

    @cython.final
    @cython.critical_section
    cdef bint change_owner(self, before, after) except -1:
        """Replace the owner; False if the owner was not `before`."""
        if self.owner is not before:
            return False
        self.owner = after
        return True

    @property
    def _ids(self):
        if self.more is not None:
            return self.more
        return {self.root_id: self.tuple_id} if self.tracked else None

    @property
    def _is_settled(self):
        return self.owner is SETTLED


cdef class ValueSlots:
    """Where the tuples of one class, which has a slot for each field, keep their values.

    The interpreter reads such a slot faster than anything else that a class can offer as an attribute.

    Parameters
    ----------
    tuple_type : type
        A subclass of TupleBase. Its slots become read-only.
    values_type : type
        The named tuple of the fields.
    names : sequence of str
        The slots, in the order of the fields.
    """

    cdef readonly type tuple_type
    cdef readonly type values_type
    cdef vector[Py_ssize_t] offsets

    def __init__(self, type tuple_type not None, type values_type not None, names):
        cdef vector[Py_ssize_t] offsets
        cdef Py_ssize_t offset
        if not issubclass(values_type, tuple) or not issubclass(tuple_type, TupleBase):
            raise TypeError("expected values_type to be a subclass of tuple, and tuple_type of TupleBase")
        for name in names:
            offset = slot_offset(tuple_type, vars(tuple_type).get(name))
            if offset < 0:
                raise TypeError(f"{name!r} is no slot of {tuple_type!r}")
            offsets.push_back(offset)
        self.offsets.swap(offsets)
        self.tuple_type = tuple_type
        self.values_type = values_type
        make_memory_faster(tuple_type, TupleBase)

    def __len__(self):
        return self.offsets.size()

    cdef TupleBase new_tuple(self, source):
        """Return a tuple without values, which belongs to no tree and which the cyclic collector does not look at."""
        if self.tuple_type is None:
            raise TypeError("these slots have no class: ValueSlots.__init__ was not called")
        made = blank(self.tuple_type, NO_ARGUMENTS)
        if type(made) is not self.tuple_type:
            raise TypeError(f"{self.tuple_type!r} has a __new__ of its own, which returned a {type(made)!r}")
        cdef TupleBase tup = <TupleBase>made
        tup._source = source
        return tup

    @cython.final
    cdef inline int check(self, TupleBase tup, Py_ssize_t position) except -1:
        if type(tup) is not self.tuple_type or not 0 <= position < <Py_ssize_t>self.offsets.size():
            raise IndexError(f"no field {position} of {type(tup)!r}")
        return 0

    @cython.final
    cdef int put(self, TupleBase tup, Py_ssize_t position, object value) except -1:
        cdef PyObject** slot
        self.check(tup, position)
        slot = slot_of(tup, self.offsets[position])
        cdef PyObject* before = slot[0]
        Py_INCREF(value)
        slot[0] = <PyObject*>value
        Py_XDECREF(before)
        return 0

    @cython.final
    cdef object at(self, TupleBase tup, Py_ssize_t position):
        cdef PyObject* value
        self.check(tup, position)
        value = slot_of(tup, self.offsets[position])[0]
        if value is NULL:
            raise AttributeError(f"field {position} of {type(tup)!r} has no value")
        return <object>value

    cdef int fill(self, TupleBase tup, values) except -1:
        """Put all values into a tuple."""
        cdef Py_ssize_t position, width = self.offsets.size()
        if type(tup) is not self.tuple_type:
            raise TypeError(f"expected a {self.tuple_type!r}, got a {type(tup)!r}")
        if len(values) != width:
            raise ValueError(f"{len(values)} values, expected {width}")
        for position in range(width):
            self.put(tup, position, values[position])
        return 0

    cdef TupleBase copy(self, TupleBase tup):
        """Return another tuple with the same values and source, which belongs to no tree."""
        cdef TupleBase copied = self.new_tuple(tup._source)
        cdef Py_ssize_t position
        for position in range(<Py_ssize_t>self.offsets.size()):
            self.put(copied, position, self.at(tup, position))
        copied.together = tup.together
        return self.show_unless_fixed(copied)

    @cython.final
    cdef TupleBase show_unless_fixed(self, TupleBase tup):
        """Let Python's cyclic collector look at a new tuple, unless its values are fixed: then it is in no cycle."""
        cdef Py_ssize_t position
        for position in range(<Py_ssize_t>self.offsets.size()):
            if not is_fixed(self.at(tup, position), 0):
                tup.show_to_collector()
                break
        return tup

    cdef object values_of(self, TupleBase tup):
        """Return the values of a tuple as a named tuple."""
        cdef Py_ssize_t position, width = self.offsets.size()
        # Python's cyclic collector may look at it from here on; it accepts items that are still NULL.
        named = blank_tuple(self.values_type, width)
        for position in range(width):
            value = self.at(tup, position)
            Py_INCREF(value)
            PyTuple_SET_ITEM(named, position, value)
        return named


cdef class Outlet:
    """The connection from one task to another, with the emitted tuples that are not in the other task's queue yet."""

    cdef list buffer
    cdef bint mixed  # whether the buffer holds batches too
    cdef Py_ssize_t more_rows  # of these batches, beside one for each
    cdef public object queue
    cdef readonly int64_t index  # of the task within its executor
    cdef readonly int64_t task
    cdef public int64_t sent

    def __init__(self, queue, index, task):
        self.buffer = []
        self.queue = queue
        self.index = index
        self.task = task

    @cython.final
    @cython.critical_section
    cdef int count(self, Py_ssize_t tuples) except -1:
        self.sent += tuples
        return 0

    @cython.critical_section
    def waiting(self):
        """Return the tuples and batches that are not in the queue yet. Any thread may call this."""
        return list(self.buffer)

    @cython.final
    @cython.critical_section
    cdef list take(self, bint* mixed):
        """Empty the buffer; return what it held, and whether batches are among it."""
        cdef list taken = self.buffer
        mixed[0] = self.mixed
        self.buffer = []
        self.mixed = False
        self.more_rows = 0
        return taken

    @cython.final
    cdef int send(self, list tuples) except -1:
        """Put tuples into the other task's queue. Any thread may call this."""
        self.count(len(tuples))
        self.queue.put((self.index, tuples), len(tuples))
        return 0

    cdef Py_ssize_t send_mixed(self, list items) except -1:
        """Put tuples and batches into the other task's queue, each batch alone; return how many rows there were."""
        cdef Py_ssize_t begin = 0, end = 0, rows = 0
        for item in items:
            end += 1
            if isinstance(item, TupleBase):
                continue
            if end - 1 > begin:
                self.send(items[begin : end - 1])
                rows += end - 1 - begin
            self.count(len(item))
            self.queue.put((self.index, item), len(item))
            rows += len(item)
            begin = end
        if end > begin:
            self.send(items[begin:end])
            rows += end - begin
        return rows


cdef class OutputBuffer:
    """The tuples that an executor has emitted and not yet put into the consumers' queues.

    `dirty`: outlets that hold tuples, in the order of their first one. `must_yield`: the executor must stop and flush,
    because a buffer has `flush_at` tuples, rows of batches included, or another thread asked for it. `lock`: held by
    other threads while they call the executor's components. `closed`: other threads are refused. `keep_alive_at`: when
    to call `_keep_alive`, in ns of the runtime's clock; 0: never.
    """

    cdef readonly list dirty
    cdef public bint must_yield
    cdef readonly Py_ssize_t flush_at
    cdef public int64_t keep_alive_at
    cdef readonly object lock
    cdef readonly bint closed
    cdef StepMark mark

    def __init__(self, flush_at):
        self.dirty = []
        self.flush_at = flush_at
        # Reentrant: a finalizer may run while the lock is held, and may ack.
        self.lock = threading.RLock()

    def enter(self, bint resting=False):
        """Make this thread the executor's until `leave`; return what to pass to `leave`."""
        cdef unsigned long me = PyThread_get_thread_ident()
        before = self.mark.stepping.load(), self.mark.resting.load()
        if resting:
            self.mark.stepping.store(0)
        else:
            self.mark.begin(me)
        self.mark.resting.store(me if resting else 0)
        return before

    def leave(self, before):
        """Restore the threads from before `enter`."""
        stepping, resting = before
        self.mark.stepping.store(stepping)
        self.mark.resting.store(resting)

    def close(self):
        """Refuse calls from other threads; after this returns, none of them is running."""
        with self.lock:
            self.closed = True

    @cython.final
    cdef bint on_executor_thread(self) except -1:
        """Whether this thread is the executor's. Between steps it wakes the executor, which then flushes."""
        cdef unsigned long me = PyThread_get_thread_ident()
        if me == self.mark.stepping.load():
            return True
        if me != self.mark.resting.load():
            return False
        self.mark.woken.store(True)
        self._wake()
        return True

    @cython.final
    cdef int put(self, Outlet outlet, TupleBase tup) except -1:
        # Another thread may take what is here: see `send`.
        with cython.critical_section(self, outlet):
            if not outlet.buffer:
                self.dirty.append(outlet)
            outlet.buffer.append(tup)
            if len(outlet.buffer) + outlet.more_rows >= self.flush_at:
                self.must_yield = True
        return 0

    def put_batches(self, list pairs not None):
        """Add batches, which are no tuples and have a length, to what goes to some tasks: (outlet, batch) of each.

        No other thread sends only some of them.
        """
        cdef Outlet outlet
        cdef Py_ssize_t index, rows
        # Here already, since a length is code of Python, in which other threads may run.
        cdef list sizes = [len(batch) for _, batch in pairs]
        for index in range(len(pairs)):
            outlet = <Outlet?>(<tuple?>pairs[index])[0]
            rows = sizes[index]
            with cython.critical_section(self, outlet):
                if not outlet.buffer:
                    self.dirty.append(outlet)
                outlet.buffer.append((<tuple>pairs[index])[1])
                outlet.mixed = True
                outlet.more_rows += rows - 1
                if len(outlet.buffer) + outlet.more_rows >= self.flush_at:
                    self.must_yield = True

    @cython.final
    @cython.critical_section
    cdef list take_dirty(self):
        cdef list taken = self.dirty
        self.dirty = []
        return taken

    def send(self):
        """Put all tuples into the queues; return how many there were.

        Another thread than the executor's may call it at any time, but only one thread at a time, so that the tuples
        from one task to another keep their order.
        """
        cdef Outlet outlet
        cdef list tuples
        cdef list dirty = self.take_dirty()
        cdef Py_ssize_t sent = 0
        cdef Py_ssize_t index = 0
        cdef bint mixed = False
        try:
            for index in range(len(dirty)):
                outlet = <Outlet?>dirty[index]
                tuples = outlet.take(&mixed)
                if mixed:
                    sent += outlet.send_mixed(tuples)
                elif tuples:
                    outlet.send(tuples)
                    sent += len(tuples)
        except BaseException:
            self.dirty = dirty[index:] + self.dirty  # the others are sent with the next call
            raise
        return sent

    def flush(self):
        """Put all tuples into the queues, so that the executor may go on."""
        self.must_yield = False
        self.send()

    def discard(self):
        """Drop all tuples."""
        cdef Outlet outlet
        cdef bint mixed = False
        self.must_yield = False
        for outlet in self.dirty:
            outlet.take(&mixed)
        self.dirty.clear()


def wait_for_step(list outputs not None, double secs):
    """Wait without the GIL until something may have to be sent early, for the flusher.

    Returns
    -------
    bool
        True: an executor is inside a step that has gone on for `secs`, or a coroutine has done something between steps.
        False: no executor has been inside a step for some looks.
    """
    cdef vector[StepMark*] marks
    cdef OutputBuffer output
    cdef bint found
    for each in outputs:
        output = <OutputBuffer?>each
        marks.push_back(&output.mark)
    with nogil:
        found = wait_for_step_of(marks, secs)
    return found


cdef class StreamGrouping:
    """Chooses the outlets for a tuple by its values, which are in `slots`."""

    cdef list choose(self, ValueSlots slots, TupleBase tup):
        raise NotImplementedError


cdef class AllGrouping(StreamGrouping):
    """All outlets."""

    cdef list outlets

    def __init__(self, outlets):
        self.outlets = list(outlets)

    cdef list choose(self, ValueSlots slots, TupleBase tup):
        return self.outlets


cdef class ShuffleGrouping(StreamGrouping):
    """The outlets in turn."""

    cdef list single_outlets
    cdef Py_ssize_t next

    def __init__(self, outlets, begin):
        self.single_outlets = [[outlet] for outlet in outlets]
        self.next = begin

    @cython.critical_section
    cdef list choose(self, ValueSlots slots, TupleBase tup):
        cdef list chosen = <list>self.single_outlets[self.next]
        self.next += 1
        if self.next == len(self.single_outlets):
            self.next = 0
        return chosen


cdef class FieldsGrouping(StreamGrouping):
    """The outlet that the hash of one value selects: that of text natively, that of others by `hash_of`."""

    cdef list single_outlets
    cdef Py_ssize_t position
    cdef object hash_of

    def __init__(self, outlets, position, hash_of):
        self.single_outlets = [[outlet] for outlet in outlets]
        self.position = position
        self.hash_of = hash_of

    cdef list choose(self, ValueSlots slots, TupleBase tup):
        cdef Py_ssize_t size = 0
        cdef const char* text = NULL
        value = slots.at(tup, self.position)
        if type(value) is str:
            text = text_of(value, &size)
        if text != NULL and size <= TEXT_MAX and self.single_outlets:
            return <list>self.single_outlets[crc32_of(text, size) % <uint32_t>len(self.single_outlets)]
        return <list>self.single_outlets[self.hash_of(value) % len(self.single_outlets)]


cdef class CustomGrouping(StreamGrouping):
    """The outlets that a function returns as a list."""

    cdef object function

    def __init__(self, function):
        self.function = function

    cdef list choose(self, ValueSlots slots, TupleBase tup):
        return self.function(tup.values_together())


cdef class CombinedGrouping(StreamGrouping):
    """The outlets of several groupings together."""

    cdef list groupings

    def __init__(self, groupings):
        self.groupings = list(groupings)

    cdef list choose(self, ValueSlots slots, TupleBase tup):
        cdef list chosen = []
        cdef StreamGrouping grouping
        for grouping in self.groupings:
            chosen.extend(grouping.choose(slots, tup))
        return chosen


cdef class Route:
    """One stream of one task: the class of its tuples, and where they go."""

    cdef readonly object source
    cdef readonly Py_ssize_t width
    cdef readonly dict direct
    cdef readonly bint is_direct
    cdef public int64_t emitted
    cdef public object batches  # how batches of this stream are checked and divided; the native half does not use it
    cdef ValueSlots slots
    cdef StreamGrouping grouping

    def __init__(self, source, grouping, is_direct, direct):
        self.slots = <ValueSlots?>source.tuple_type._slots
        self.source = source
        self.width = len(self.slots)
        self.grouping = grouping
        self.is_direct = is_direct
        self.direct = dict(direct)

    @cython.final
    @cython.critical_section
    cdef int count(self) except -1:
        self.emitted += 1
        return 0

    cdef TupleBase tuple_of(self, values):
        """Return a tuple of emitted values that belongs to no tree; None if they are no row or do not match the fields.
        """
        if type(values) is not list and type(values) is not tuple:
            values = self.source.row_of(values)
            if values is None:
                return None
            values = <tuple?>values
        if len(values) != self.width:
            return None
        if self.slots is None:
            raise TypeError("this route has no stream: Route.__init__ was not called")
        cdef TupleBase tup = self.slots.new_tuple(self.source)
        cdef Py_ssize_t position
        cdef bint fixed = True
        for position in range(self.width):
            value = (<list>values)[position] if type(values) is list else (<tuple>values)[position]
            self.slots.put(tup, position, value)
            fixed = fixed and is_fixed(value, 0)
        if not fixed:
            tup.show_to_collector()
        return tup


cdef struct Track:
    int64_t root_id
    int64_t value
    int64_t task
    int64_t message_id


cdef struct Ok:
    int64_t root_id
    int64_t value


cdef class AckBatch:
    """Messages of one executor for one acker. The order in which they are applied does not matter (protocol "storm").

    A message is added whole or, if memory runs out, not at all.
    """

    cdef vector[Track] tracks
    cdef vector[Ok] oks
    cdef list failures  # (root id, reason)
    cdef vector[int64_t] resets

    def __cinit__(self):
        self.failures = []

    def __len__(self):
        return self.tracks.size() + self.oks.size() + len(self.failures) + self.resets.size()

    def fails(self):
        """Return (root id, reason) of each FAIL."""
        return list(self.failures)


cdef class AckSender:
    """The batches of an executor, one for each acker. Without an acker nothing is tracked and nothing is sent."""

    cdef list queues
    cdef list batches
    cdef AckBatch only  # the batch, if there is one acker

    def __init__(self, queues):
        self.queues = list(queues)
        self.batches = [AckBatch() for _ in self.queues]
        self.only = self.batches[0] if len(self.batches) == 1 else None

    def __len__(self):
        return len(self.queues)

    cdef AckSender new_sender(self):
        """Return an empty sender to the same ackers, for a call of another thread that sends at once."""
        return AckSender(self.queues)

    cdef AckBatch batch_for(self, int64_t root_id):
        if self.only is not None:
            return self.only
        if not self.batches:
            raise ValueError("there is no acker to send to: the topology tracks nothing")
        # docs/protocol.md, *Which acker*: the remainder has the sign of the root id, as in C.
        return <AckBatch>self.batches[abs(root_id % <int64_t>len(self.batches))]

    @cython.critical_section
    cdef int add_track(self, int64_t root_id, int64_t value, int64_t task, int64_t message_id) except -1:
        self.batch_for(root_id).tracks.push_back(Track(root_id, value, task, message_id))
        return 0

    @cython.critical_section
    cdef int add_ok(self, int64_t root_id, int64_t value) except -1:
        self.batch_for(root_id).oks.push_back(Ok(root_id, value))
        return 0

    cdef int add_oks(self, TupleBase tup) except -1:
        """Add one OK for each tree: the tuple's id in it xor the ids of the tuples emitted under it."""
        if tup.tracked:
            return self.add_ok(tup.root_id, tup.tuple_id ^ tup._ack_val)
        if tup.more is not None:
            for root_id, tuple_id in tup.more.items():
                self.add_ok(root_id, <int64_t>tuple_id ^ tup._ack_val)
        return 0

    def track(self, root_id, value, task, message_id):
        """Add a TRACK."""
        self.add_track(root_id, value, task, message_id)

    @cython.boundscheck(False)
    @cython.critical_section
    def track_rows(
        self,
        const int64_t[::1] root_ids not None,
        const int64_t[::1] values not None,
        int64_t task,
        const int64_t[::1] message_ids not None,
    ):
        """Add a TRACK for each row."""
        cdef Py_ssize_t row, count = root_ids.shape[0]
        cdef AckBatch only = self.only
        cdef vector[Track]* tracks
        if values.shape[0] != count or message_ids.shape[0] != count:
            raise ValueError(f"expected columns of {count} values")
        if only is None:
            for row in range(count):
                self.add_track(root_ids[row], values[row], task, message_ids[row])
            return
        tracks = &only.tracks
        tracks.reserve(max(tracks.size() + count, 2 * tracks.size()))
        for row in range(count):
            tracks.push_back(Track(root_ids[row], values[row], task, message_ids[row]))

    @cython.boundscheck(False)
    @cython.critical_section
    def ack_rows(self, const int64_t[::1] root_ids not None, const int64_t[::1] values not None):
        """Add an OK for each row: one for neighbours of one tree, and none that says 0, which changes nothing."""
        cdef Py_ssize_t row, count = root_ids.shape[0], added = 0
        cdef int64_t value = 0
        cdef size_t before
        cdef bint ends
        cdef AckBatch only = self.only
        cdef Ok* oks
        if values.shape[0] != count:
            raise ValueError(f"expected columns of {count} values")
        if only is not None:
            before = only.oks.size()
            only.oks.resize(before + count)
            oks = only.oks.data() + before
            # Without a branch that depends on the data: where trees end is random.
            for row in range(count):
                value ^= values[row]
                ends = row + 1 == count or root_ids[row + 1] != root_ids[row]
                oks[added] = Ok(root_ids[row], value)
                added += ends & (value != 0)
                value &= <int64_t>ends - 1
            only.oks.resize(before + added)
            return
        for row in range(count):
            if values[row]:
                self.add_ok(root_ids[row], values[row])

    @cython.critical_section
    def fail(self, root_ids, reason):
        """Add a FAIL for each tree."""
        cdef int64_t root_id
        for root_id in root_ids:
            self.batch_for(root_id).failures.append((root_id, reason))

    @cython.critical_section
    def reset_timeout(self, root_ids):
        """Add a RESET_TIMEOUT for each tree."""
        for root_id in root_ids:
            self.batch_for(root_id).resets.push_back(root_id)

    def has_room(self, signal):
        """Return whether all ackers have room; if not, `signal` is set once they have."""
        return all([queue.has_room(signal) for queue in self.queues])

    @cython.critical_section
    cdef AckBatch take(self, Py_ssize_t index):
        """Return a batch and replace it by an empty one; None if it is empty.

        What a finalizer acks from now on, also while the batch is put into its queue, goes to the empty one.
        """
        cdef AckBatch batch = <AckBatch>self.batches[index]
        cdef AckBatch empty
        if not len(batch):
            return None
        empty = AckBatch()
        self.batches[index] = empty
        if self.only is not None:
            self.only = empty
        return batch

    def has_unsent(self):
        """Return whether a batch is not empty. Any thread may call it."""
        return any([len(batch) for batch in self.batches])

    def send(self):
        """Send all batches that are not empty; return how many messages they held. Any thread may call it."""
        cdef Py_ssize_t index
        cdef Py_ssize_t sent = 0
        cdef AckBatch batch
        for index in range(len(self.queues)):
            batch = self.take(index)
            if batch is not None:
                self.queues[index].put(batch, len(batch))
                sent += len(batch)
        return sent


@cython.boundscheck(False)
def columns_of(list batches not None):
    """Return batches as the columns of `Acker.ingest`: of each batch the TRACKs, OKs, FAILs and RESET_TIMEOUTs."""
    cdef AckBatch batch
    cdef Py_ssize_t rows = 0
    for batch in batches:
        rows += len(batch)
    kind_array, root_array, value_array = np.empty(rows, np.int8), np.empty(rows, np.int64), np.zeros(rows, np.int64)
    task_array, message_array = np.zeros(rows, np.int32), np.zeros(rows, np.int64)
    cdef int8_t[::1] kind = kind_array
    cdef int64_t[::1] root = root_array
    cdef int64_t[::1] value = value_array
    cdef int32_t[::1] task = task_array
    cdef int64_t[::1] message = message_array
    cdef Py_ssize_t row = 0, index, count
    cdef const Track* tracks
    cdef const Ok* oks
    for batch in batches:
        if len(batch) > rows - row:
            raise ValueError("a batch has grown meanwhile")
        tracks, count = batch.tracks.data(), <Py_ssize_t>batch.tracks.size()
        for index in range(count):
            kind[row + index] = TRACK
            root[row + index] = tracks[index].root_id
            value[row + index] = tracks[index].value
            task[row + index] = <int32_t>tracks[index].task
            message[row + index] = tracks[index].message_id
        row += count
        oks, count = batch.oks.data(), <Py_ssize_t>batch.oks.size()
        for index in range(count):
            kind[row + index] = OK
            root[row + index] = oks[index].root_id
            value[row + index] = oks[index].value
        row += count
        for root_id, _ in batch.failures:
            kind[row] = FAIL
            root[row] = root_id
            row += 1
        for index in range(<Py_ssize_t>batch.resets.size()):
            kind[row] = RESET_TIMEOUT
            root[row] = batch.resets[index]
            row += 1
    return kind_array, root_array, value_array, task_array, message_array


cdef class Latencies:
    """A histogram of latencies: `bounds_ns` are the inclusive upper bounds of its buckets, ascending; one more is open.

    One thread records; any thread may read.
    """

    cdef vector[int64_t] bounds_ns
    cdef vector[int64_t] counts
    cdef int64_t sum_ns

    def __init__(self, bounds_ns):
        self.bounds_ns = bounds_ns
        self.counts.assign(self.bounds_ns.size() + 1, 0)

    cdef int add(self, int64_t ns, int64_t values=1) except -1:
        cdef size_t low = 0, high = self.bounds_ns.size(), middle
        if self.counts.size() <= high:
            raise ValueError("these latencies have no bounds: Latencies.__init__ was not called")
        while low < high:
            middle = (low + high) // 2
            if self.bounds_ns[middle] < ns:
                low = middle + 1
            else:
                high = middle
        self.counts[low] += values
        self.sum_ns += ns * values
        return 0

    def record(self, ns, values=1):
        """Count one latency in nanoseconds, or the same for several values.

        A negative one, from a clock that was set back, counts as the shortest.
        """
        self.add(ns, values)

    def record_all(self, const int64_t[::1] ns not None):
        """Count latencies in nanoseconds: an int64 array of any length."""
        cdef Py_ssize_t place
        for place in range(ns.shape[0]):
            self.add(ns[place])

    def totals(self):
        """Return the counts of the buckets, and the sum of the latencies in ns."""
        return tuple(self.counts), self.sum_ns


cdef class Emitter:
    """The part that spouts and bolts share: routes, tuple ids and the output buffer.

    `has_observers`: hooks or traces want each emit, delivery, ack and fail, so the `_on_...` methods are called.
    """

    cdef readonly dict routes
    cdef Route default_route  # that of None, if there is one
    cdef readonly object task
    cdef public bint has_observers
    cdef public int64_t acked
    cdef public dict user
    cdef readonly AckSender ack_sender
    cdef readonly OutputBuffer output
    cdef public Latencies latency
    cdef object generator
    cdef const int64_t[::1] ids
    cdef Py_ssize_t next_index
    cdef Py_ssize_t id_count

    def __init__(
        self,
        task,
        dict routes not None,
        OutputBuffer output not None,
        AckSender ack_sender not None,
        generator,
        Latencies latency not None,
    ):
        self.task = task
        self.user = {}
        self.routes = routes
        self.default_route = self.route_of(None)
        self.output = output
        self.ack_sender = ack_sender
        self.generator = generator
        self.latency = latency

    @cython.critical_section
    def count(self, name, n=1):
        """Add to a counter that the component keeps itself."""
        self.user[name] = self.user.get(name, 0) + n

    @cython.critical_section
    def take_ids(self, Py_ssize_t count):
        """Return new ids, (count,) int64."""
        return self.generator.take(count)

    @property
    def on_executor_thread(self):
        """Whether this thread is the executor's, inside a step or a coroutine."""
        return self.output.on_executor_thread()

    cdef int check_open(self, what) except -1:
        if self.output.closed:
            self._refuse_ended(f"cannot {what}")
        return 0

    @cython.final
    @cython.critical_section
    cdef int64_t next_id(self) except? 0:
        if self.next_index >= self.id_count:
            self.refill_ids()
        cdef int64_t found = self.ids[self.next_index]
        self.next_index += 1
        return found

    cdef int refill_ids(self) except -1:
        self.ids = self.generator.take(IDS_AT_ONCE)
        self.id_count = self.ids.shape[0]
        self.next_index = 0
        if not self.id_count:
            raise ValueError(f"the id generator returned no ids, expected {IDS_AT_ONCE}")
        return 0

    @cython.final
    cdef int put(self, Outlet outlet, TupleBase tup, bint own) except -1:
        """Send a tuple: through the output buffer from the executor's thread, at once from another thread."""
        if own:
            self.output.put(outlet, tup)
        if self.has_observers:
            self._on_delivery(outlet.task, tup._ids)
        if not own:
            outlet.send([tup])
        return 0

    @cython.final
    cdef Route route_of(self, stream):
        if stream is None and self.default_route is not None:
            return self.default_route
        if stream is not None and not isinstance(stream, str):
            return None
        route = self.routes.get(stream)
        return None if route is None else <Route?>route

    @cython.final
    cdef bint is_collector_of(self, component, type emitter_type) except -1:
        """Whether this emitter is the whole collector of a component, as none has a class or an object of its own."""
        return type(self).emit is emitter_type.emit and getattr(component, "_collector", None) is self

    cdef list outlets_of(self, Route route, TupleBase tup, direct_task):
        if direct_task is None and not route.is_direct:
            return route.grouping.choose(route.slots, tup)
        return self._direct(route, direct_task)


cdef class BoltEmitter(Emitter):
    """The native half of a bolt's collector: what the bolt calls, and how its executor calls the bolt.

    `inputs`: the tuples that are being processed; with `auto_anchor`, `emit` anchors to them unless it gets `anchors`.
    """

    cdef object processed  # one tuple of a stream, or a Python tuple of them
    cdef public bint auto_anchor
    cdef public int64_t executed
    cdef public int64_t failed
    cdef readonly int64_t sample_every
    cdef int64_t unmeasured  # tuples until the next one whose latency is measured
    cdef object now_ns

    def __init__(self, *arguments, auto_anchor, sample_every, now_ns):
        super().__init__(*arguments)
        if sample_every < 1:
            raise ValueError(f"sample_every: expected 1 or more, got {sample_every}")
        self.processed = ()
        self.auto_anchor = auto_anchor
        self.sample_every = sample_every
        self.now_ns = now_ns

    @property
    def inputs(self):
        """The tuples that are being processed. Any thread may read them."""
        return self.read_inputs()

    @inputs.setter
    def inputs(self, tuple inputs not None):
        self.set_inputs(inputs)

    @cython.final
    @cython.critical_section
    cdef tuple read_inputs(self):
        return self.processed if type(self.processed) is tuple else (self.processed,)

    @cython.final
    @cython.critical_section
    cdef int set_inputs(self, inputs) except -1:
        # The tuples before are released once these have replaced them: another thread may read them meanwhile.
        cdef object _before = self.processed
        self.processed = inputs
        return 0

    def emit(self, tup, stream=None, anchors=None, direct_task=None, bint need_task_ids=False):
        """Send a tuple to the consumers of the stream."""
        return self.emit_tuple(tup, stream, anchors, direct_task, need_task_ids)

    @cython.final
    cdef object emit_tuple(self, tup, stream, anchors, direct_task, bint need_task_ids):
        cdef Route route = self.route_of(stream)
        cdef TupleBase first = None if route is None else route.tuple_of(tup)
        if first is None:
            self._unroutable(tup, stream)
        cdef list outlets = self.outlets_of(route, first, direct_task)
        cdef bint own = self.output.on_executor_thread()
        cdef object anchored_to
        if anchors is not None:
            anchored_to = tuple(anchors) if type(anchors) is list else <tuple?>self._anchors_of(anchors)
        elif not self.auto_anchor:
            anchored_to = ()
        else:
            anchored_to = self.processed if own else <tuple?>self._refuse_unanchored()
        if own:
            self.emit_to(route, first, outlets, anchored_to, own)
        else:
            self.output._wait_for_room()
            with self.output.lock:
                self.check_open("emit")
                self.emit_to(route, first, outlets, anchored_to, own)
        if self.has_observers:
            self._on_emit(route, first.values_together(), outlets)
        return [(<Outlet?>outlet).task for outlet in outlets] if need_task_ids else None

    @cython.final
    cdef int emit_to(self, Route route, TupleBase first, list outlets, anchored_to, bint own) except -1:
        """Send a tuple that is anchored to one tuple, or to a Python tuple of them."""
        cdef Outlet outlet
        cdef TupleBase anchor = None
        cdef TupleBase delivery = first
        if type(anchored_to) is not tuple:
            anchor = <TupleBase>anchored_to  # what `processed` is
            if anchor.owner is not self:
                self._refuse(anchor, "anchored to")
        else:
            for each in <tuple>anchored_to:
                anchor = self.check_owned(each, "anchored to")
            if len(<tuple>anchored_to) > 1:
                anchor = None
        for outlet in outlets:
            if delivery is None:
                delivery = route.slots.copy(first)
            if anchor is not None:
                self.anchor(delivery, anchor)
            elif anchored_to:
                self.join(delivery, <tuple>anchored_to)
            self.put(outlet, delivery, own)
            delivery = None
        route.count()
        return 0

    @cython.final
    cdef int anchor(self, TupleBase tup, TupleBase anchor) except -1:
        """Let a tuple join the trees of its only anchor."""
        if anchor.tracked:
            tup.tuple_id = self.next_id()
            tup.root_id = anchor.root_id
            tup.tracked = True
            anchor.add_emitted_id(tup.tuple_id)
            return 0
        return 0 if anchor.more is None else self.join(tup, (anchor,))

    cdef int join(self, TupleBase tup, tuple anchors) except -1:
        """Let a tuple join the trees of all its anchors.

        Each anchor contributes one new id in all of its trees; a tree that two anchors share sees the xor of both ids.
        """
        cdef dict ids = {}
        cdef int64_t tuple_id
        cdef TupleBase anchor
        for anchor in anchors:
            roots = anchor._ids
            if roots:
                tuple_id = self.next_id()
                anchor.add_emitted_id(tuple_id)
                for root_id in roots:
                    ids[root_id] = <int64_t>ids.get(root_id, 0) ^ tuple_id
        return tup._set_ids(ids)

    @cython.final
    @cython.critical_section
    cdef int count_settled(self, bint failed) except -1:
        if failed:
            self.failed += 1
        else:
            self.acked += 1
        return 0

    cdef TupleBase check_owned(self, tup, what):
        """Return the tuple if this task owns it and it is not settled; raise otherwise."""
        if not isinstance(tup, TupleBase) or (<TupleBase>tup).owner is not self:
            self._refuse(tup, what)
        return <TupleBase?>tup

    def ack(self, tup):
        """Tell the ackers that this task is done with a tuple."""
        cdef AckSender ack_sender
        if self.output.on_executor_thread():
            self.ack_to(tup, self.ack_sender)
        else:
            ack_sender = self.ack_sender.new_sender()
            with self.output.lock:
                self.check_external_call(tup, "acked")
                self.ack_to(tup, ack_sender)
                ack_sender.send()
        if self.has_observers:
            self._on_ack(tup)

    @cython.final
    cdef int ack_to(self, tup, AckSender ack_sender) except -1:
        self.claim(tup, "acked")
        ack_sender.add_oks(<TupleBase>tup)
        return self.count_settled(False)

    def fail(self, tup, reason=None):
        """Tell the ackers that a tuple cannot be processed; its trees fail."""
        cdef AckSender ack_sender
        reason = self._reason_of(reason)
        if self.output.on_executor_thread():
            self.fail_to(tup, reason, self.ack_sender)
        else:
            ack_sender = self.ack_sender.new_sender()
            with self.output.lock:
                self.check_external_call(tup, "failed")
                self.fail_to(tup, reason, ack_sender)
                ack_sender.send()
        if self.has_observers:
            self._on_fail(tup, reason)

    cdef int fail_to(self, tup, reason, AckSender ack_sender) except -1:
        self.claim(tup, "failed")
        ack_sender.fail((<TupleBase>tup)._ids or (), reason)
        return self.count_settled(True)

    @cython.final
    cdef int claim(self, tup, what) except -1:
        """Mark a tuple of this task as settled; raise if another call was first."""
        if not self.check_owned(tup, what).change_owner(self, SETTLED):
            self._refuse(tup, what)
        return 0

    cdef int check_external_call(self, tup, what) except -1:
        """Raise if another thread must not settle this tuple: it is not this task's, or its trees have failed."""
        self.check_owned(tup, what)
        if self.output.closed:
            self._refuse_ended(f"{tup!r} cannot be {what}")
        return 0

    def reset_timeout(self, tup):
        """Restart the timeout of the trees of a tuple that takes long."""
        cdef AckSender ack_sender
        if self.output.on_executor_thread():
            self.ack_sender.reset_timeout(self.check_owned(tup, "given more time")._ids or ())
            return
        ack_sender = self.ack_sender.new_sender()
        with self.output.lock:
            self.check_external_call(tup, "given more time")
            ack_sender.reset_timeout((<TupleBase>tup)._ids or ())
            ack_sender.send()

    def ack_unless_settled(self, TupleBase tup not None):
        """Ack a tuple unless it is settled. For the executor."""
        self.settle(tup)

    @cython.final
    cdef int settle(self, TupleBase tup) except -1:
        if not tup.change_owner(self, SETTLED):
            return 0
        self.ack_sender.add_oks(tup)
        self.count_settled(False)
        if self.has_observers:
            self._on_ack(tup)
        return 0

    def fail_unless_settled(self, TupleBase tup not None, reason):
        """Fail a tuple unless it is settled; return whether it was not. For the executor."""
        if not tup.change_owner(self, SETTLED):
            return False
        reason = self._reason_of(reason)
        self.ack_sender.fail(tup._ids or (), reason)
        self.count_settled(True)
        if self.has_observers:
            self._on_fail(tup, reason)
        return True

    def run(self, list tuples not None, Py_ssize_t begin, Py_ssize_t end, bolt, bint auto_ack, on_error):
        """Let a bolt process tuples[begin:end], and ack each one when `process` returns; errors go to
        `on_error(tup, error)`.

        Returns the position of the first tuple that was not processed, before `end` if the executor must yield. The
        latency of one tuple in `sample_every` is measured.
        """
        cdef TupleBase tup
        cdef Py_ssize_t index
        cdef PyObject* returned
        cdef int64_t since = 0
        cdef bint measured
        if begin < 0 or end > len(tuples):
            raise IndexError(f"tuples[{begin}:{end}]: there are {len(tuples)} tuples")
        if self.sample_every < 1:
            raise ValueError("this emitter has no sample_every: BoltEmitter.__init__ was not called")
        process = bolt.process
        receiver = None
        if type(process) is MethodType:
            process, receiver = process.__func__, process.__self__
        cdef Turn before = begin_turn(bolt if self.is_collector_of(bolt, BoltEmitter) else self, self, False)
        try:
            for index in range(begin, end):
                tup = <TupleBase?>tuples[index]
                tup.owner = self
                self.set_inputs(tup)
                self.executed += 1
                measured = self.unmeasured == 0
                if measured:
                    self.unmeasured = self.sample_every
                    since = self.now_ns()
                self.unmeasured -= 1
                returned = call_process(process, receiver, tup)
                if self.is_processed(tup, returned, on_error) and auto_ack:
                    self.settle(tup)
                if tup.owner is self:
                    tup.show_to_collector()
                if measured:
                    self.latency.add(<int64_t>self.now_ns() - since)
                if self.has_observers:
                    self._on_execute(tup)
                if self.output.must_yield:
                    return index + 1
            return end
        finally:
            end_turn(before)
            self.set_inputs(())

    @cython.final
    cdef inline bint is_processed(self, TupleBase tup, PyObject* returned, on_error) except -1:
        """Whether `process` has processed the tuple, by what it returned (null if it raised); else call `on_error`."""
        if returned is <PyObject*>None:
            Py_XDECREF(returned)
            return True
        return self.is_processed_anyway(tup, returned, on_error)

    @cython.final
    cdef bint is_processed_anyway(self, TupleBase tup, PyObject* returned, on_error) except -1:
        """`is_processed` where `process` raised, or returned more than None."""
        try:
            if returned is NULL:
                raise_error()
            self._refuse_unrun("process", <object>returned)
        except BaseException as error:
            tup.show_to_collector()  # `on_error` may raise, and leave the tuple with the task.
            on_error(tup, error)
            return False
        finally:
            Py_XDECREF(returned)
        return True


cdef class PendingTuple:
    """A tracked tuple of a spout whose tree is not finished."""

    cdef readonly object tup_id
    cdef readonly int64_t root_id
    cdef readonly int64_t value
    cdef readonly int64_t emitted_ns


cdef class SpoutEmitter(Emitter):
    """The native half of a spout's collector: what the spout calls, and its tuples whose outcome is not known yet.

    `pending`: message id -> PendingTuple. `pending_rows`: how many rows of batches are open beside them.
    `untracked_ids`: without an acker, the tuple ids to ack when `next_tuple` returns. `emit_count`: how many emits
    there were. `followed`: as `pending`, of tuples without an id; None: they have no trees. `is_known`: takes the
    values and the id of a tuple that the spout emits, and tells whether it is left out, since it came before and has
    not ended for the spout; None: no tuple is.
    """

    cdef readonly dict pending
    cdef public dict followed
    cdef public object is_known
    cdef readonly object untracked_ids  # a deque
    cdef public int64_t emit_count
    cdef public int64_t message_id
    cdef public Py_ssize_t pending_rows
    cdef public int64_t executed
    cdef public int64_t late
    # Acked trees whose `ack` raised.
    cdef public int64_t ack_errors
    # Tuple id -> how often its tree failed, until it is acked.
    cdef public dict _fails
    cdef object now_ns
    cdef bint tracks
    # Outcomes that arrived, and how many of them the spout got.
    cdef list arrived
    cdef Py_ssize_t delivered

    def __init__(self, *arguments, now_ns):
        super().__init__(*arguments)
        self.pending = {}
        self.untracked_ids = deque()
        self.arrived = []
        self._fails = {}
        self.now_ns = now_ns
        self.tracks = len(self.ack_sender) > 0

    def emit(self, tup, tup_id=None, stream=None, direct_task=None, bint need_task_ids=False):
        """Send a tuple to the consumers of the stream; with a tuple id it is tracked."""
        return self.emit_tuple(tup, tup_id, stream, direct_task, need_task_ids)

    def emit_again(self, tup, tup_id, stream=None, direct_task=None):
        """Emit the next attempt of a tuple, which is not left out."""
        self.send(tup, tup_id, stream, direct_task, False)

    def leaves_out(self, tup, tup_id):
        """Return whether a tuple is left out. It counts as an emit: the spout has more, and is called again at once."""
        is_known = self.is_known  # Held here, since it may replace the attribute.
        if is_known is None or tup_id is None or not is_known(tup, tup_id):
            return False
        if self.output.on_executor_thread():
            self.emit_count += 1
        return True

    @cython.final
    cdef object emit_tuple(self, tup, tup_id, stream, direct_task, bint need_task_ids):
        if self.is_known is not None and self.leaves_out(tup, tup_id):
            return [] if need_task_ids else None
        return self.send(tup, tup_id, stream, direct_task, need_task_ids)

    @cython.final
    cdef object send(self, tup, tup_id, stream, direct_task, bint need_task_ids):
        cdef Route route = self.route_of(stream)
        cdef TupleBase first = None if route is None else route.tuple_of(tup)
        if first is None:
            self._unroutable(tup, stream)
        if tup_id is not None:
            self._check_id(tup_id)
        cdef list outlets = self.outlets_of(route, first, direct_task)
        cdef AckSender ack_sender
        if self.output.on_executor_thread():
            self.emit_to(route, first, outlets, tup_id, self.ack_sender, True)
            self.emit_count += 1
        else:
            self.output._wait_for_room()
            ack_sender = self.ack_sender.new_sender()
            with self.output.lock:
                self.check_open("emit")
                self.emit_to(route, first, outlets, tup_id, ack_sender, False)
                ack_sender.send()
            if tup_id is not None and not self.tracks:
                self.output._wake()
        if self.has_observers:
            self._on_emit(route, first.values_together(), outlets)
        return [(<Outlet?>outlet).task for outlet in outlets] if need_task_ids else None

    @cython.final
    cdef int emit_to(
        self, Route route, TupleBase first, list outlets, tup_id, AckSender ack_sender, bint own
    ) except -1:
        cdef Outlet outlet
        cdef TupleBase tup = first
        if tup_id is not None and self.tracks:
            self.track(route, first, outlets, tup_id, self.pending, ack_sender, own)
        elif self.followed is not None:
            self.track(route, first, outlets, None, self.followed, ack_sender, own)
        else:
            for outlet in outlets:
                self.put(outlet, tup if tup is not None else route.slots.copy(first), own)
                tup = None
            if tup_id is not None:
                self.untracked_ids.append(tup_id)
        route.count()
        return 0

    @cython.final
    @cython.critical_section
    cdef int64_t add_pending(self, PendingTuple pending_tuple, dict pending) except -1:
        """Add a tuple to `pending` or `followed`; return its message id."""
        cdef int64_t message_id = self.message_id
        pending[message_id] = pending_tuple
        self.message_id += 1
        return message_id

    cdef int track(
        self, Route route, TupleBase first, list outlets, tup_id, dict pending, AckSender ack_sender, bint own
    ) except -1:
        cdef PendingTuple pending_tuple = PendingTuple.__new__(PendingTuple)
        cdef int64_t message_id
        cdef Outlet outlet
        cdef TupleBase tup = first
        cdef Py_ssize_t index
        cdef list made = None if len(outlets) == 1 else []
        pending_tuple.tup_id = tup_id
        pending_tuple.root_id = self.next_id()
        pending_tuple.emitted_ns = self.now_ns()
        for outlet in outlets:
            if tup is None:
                tup = route.slots.copy(first)
            tup.tracked = True
            tup.root_id = pending_tuple.root_id
            tup.tuple_id = self.next_id()
            pending_tuple.value ^= tup.tuple_id
            if own and self.has_observers:
                self._on_delivery(outlet.task, tup._ids)
            if made is not None:
                made.append(tup)
                tup = None
        # No code of Python runs from here to the tuple's being pending: another thread, which may send what is in the
        # buffers, sends all of a tree, and of none that is not pending.
        for index in range(len(outlets)):
            if made is not None:
                tup = <TupleBase>made[index]
            if own:
                self.output.put(<Outlet>outlets[index], tup)
            else:
                self.put(<Outlet>outlets[index], tup, False)
        if is_fixed(tup_id, 0):
            PyObject_GC_UnTrack(pending_tuple)  # It can be part of no cycle, and many may be open.
        # It is pending before its TRACK is sent: the outcome may come at once.
        message_id = self.add_pending(pending_tuple, pending)
        return ack_sender.add_track(pending_tuple.root_id, pending_tuple.value, self.task, message_id)

    cdef int _check_id(self, tup_id) except -1:
        try:
            hash(tup_id)
        except TypeError:
            self._unhashable(tup_id)
        return 0

    def call_next_tuple(self, spout, ack, Py_ssize_t limit, Py_ssize_t pending_max):
        """Call `spout.next_tuple` until it emits nothing or a limit is reached; return how many calls emitted."""
        cdef Py_ssize_t got
        cdef int64_t emits
        next_tuple = spout.next_tuple
        cdef Turn before = begin_turn(spout if self.is_collector_of(spout, SpoutEmitter) else self, self, True)
        try:
            for got in range(limit):
                if self.output.keep_alive_at:
                    self.keep_alive()
                if spout._finished or len(self.pending) + self.pending_rows >= pending_max or self.output.must_yield:
                    return got
                emits = self.emit_count
                returned = next_tuple()
                if returned is not None:
                    self._refuse_unrun("next_tuple", returned)
                self.executed += 1
                if self.untracked_ids:
                    self.ack_untracked(ack)
                if self.emit_count == emits:
                    return got
            return limit
        finally:
            end_turn(before)

    @cython.final
    cdef int keep_alive(self) except -1:
        """Call `_keep_alive` if it is due, however many tuples and outcomes there are."""
        if <int64_t>self.now_ns() >= self.output.keep_alive_at:
            self.output._keep_alive()
        return 0

    @property
    def undelivered(self):
        """How many outcomes arrived that the spout did not get yet."""
        return len(self.arrived) - self.delivered

    def arrived_outcomes(self):
        """Return the outcomes that arrived and that the spout did not get yet. Any thread may call it."""
        return list(self.arrived)[self.delivered:]

    def deliver_outcomes(self, list outcomes not None, ack, fail, on_error=None):
        """Call `ack(tup_id)` or `fail(tup_id, reason)` for each outcome.

        An error they raise escapes, and the next call continues with the following outcome; or it goes to
        `on_error(tup_id)`, within its `except`.
        """
        cdef PendingTuple pending_tuple
        cdef int64_t elapsed_ns, arrived_ns
        if not outcomes and self.delivered == len(self.arrived):
            return
        self.arrived.extend(outcomes)
        arrived_ns = self.now_ns()
        while self.delivered < len(self.arrived):
            if self.output.keep_alive_at:
                self.keep_alive()
            message_id, outcome, reason = self.arrived[self.delivered]
            self.delivered += 1
            pending_tuple = self.pending.pop(message_id, None)
            if pending_tuple is None:
                self.end_followed(message_id)
            elif outcome == OUTCOME_ACKED:
                elapsed_ns = arrived_ns - pending_tuple.emitted_ns
                self.latency.add(elapsed_ns)
                if self._fails or self.has_observers:
                    self._on_acked(pending_tuple, elapsed_ns)
                self.ack_one(pending_tuple.tup_id, ack, on_error)
            else:
                reason = self._why(pending_tuple, outcome, reason)
                try:
                    fail(pending_tuple.tup_id, reason)
                except BaseException:
                    if on_error is None:
                        raise
                    on_error(pending_tuple.tup_id)
        self.arrived.clear()
        self.delivered = 0

    cdef int end_followed(self, message_id) except -1:
        """Forget a tuple without an id whose tree has ended; any other outcome is late."""
        cdef PendingTuple ended = None if self.followed is None else self.followed.pop(message_id, None)
        if ended is None:
            self.late += 1
        elif self.has_observers:
            self._on_followed_end(ended)
        return 0

    def ack_untracked(self, ack, on_error=None):
        """Call `ack(tup_id)` for the tuples that were emitted with an id and no acker to track them."""
        while self.untracked_ids:
            self.ack_one(self.untracked_ids.popleft(), ack, on_error)

    cdef int ack_one(self, tup_id, ack, on_error) except -1:
        try:
            returned = ack(tup_id)
            if returned is not None:
                self._refuse_unrun("ack", returned)
        except BaseException:
            self.ack_errors += 1
            if on_error is None:
                raise
            on_error(tup_id)
        else:
            self.acked += 1
        return 0


def emit_of_bolt(self, tup, stream=None, anchors=None, direct_task=None, bint need_task_ids=False):
    """Emit a tuple.

    Parameters
    ----------
    tup : list or tuple
        The values, one for each field of the stream.
    stream : str, optional
        "default" when left out.
    anchors : iterable of Tuple, optional
        The inputs whose trees it joins. ``[]``: none. By default the tuple that is being processed, if the bolt has
        `auto_anchor`.
    direct_task : int, optional
        The task that receives it; for direct streams only.
    need_task_ids : bool

    Returns
    -------
    list of int, or None
        The ids of the tasks that receive the tuple, if asked for.

    Raises
    ------
    TupleStateError
        An anchor was acked or failed before; or another thread of yours emits and leaves `anchors` out, though the
        bolt has `auto_anchor`.
    RuntimeStateError
        Another thread of yours emits after the topology has stopped or restarted.
    """
    cdef PyObject* emitter = emitter_in_turn(self, False)
    if emitter is NULL:
        return self._collector.emit(tup, stream, anchors, direct_task, need_task_ids)
    return (<BoltEmitter>emitter).emit_tuple(tup, stream, anchors, direct_task, need_task_ids)


def emit_of_spout(self, tup, tup_id=None, stream=None, direct_task=None, bint need_task_ids=False):
    """Emit a tuple.

    Parameters
    ----------
    tup : list or tuple
        The values, one for each field of the stream.
    tup_id : hashable, optional
        Track the tree, and call `ack` or `fail` with this id. None: untracked.
    stream : str, optional
        "default" when left out.
    direct_task : int, optional
        The task that receives it; for direct streams only.
    need_task_ids : bool

    Returns
    -------
    list of int, or None
        The ids of the tasks that receive the tuple, if asked for.
    """
    cdef PyObject* emitter = emitter_in_turn(self, True)
    if emitter is NULL:
        return self._collector.emit(tup, tup_id, stream, direct_task, need_task_ids)
    return (<SpoutEmitter>emitter).emit_tuple(tup, tup_id, stream, direct_task, need_task_ids)


cdef class RecordingDict(dict):
    """A dict that records which of its keys may have changed: what a bolt does with its state for each tuple.

    `changed`: the keys; None: nothing is recorded. A value that could change in place counts as changed once it was
    read. The class in Python that inherits from this one does the same for the other methods of a dict.
    """

    cdef public set changed

    @cython.final
    cdef int add(self, key) except -1:
        # Held here, since __eq__ of a key may replace the attribute.
        cdef set changed = self.changed
        if changed is not None:
            changed.add(key)
        return 0

    @cython.final
    cdef int record(self, key, value) except -1:
        if self.changed is not None and not is_fixed(value, 0):
            self.add(key)
        return 0

    def __getitem__(self, key):
        value = value_of(self, key, MISSING)
        if value is MISSING:
            raise KeyError(key)
        self.record(key, value)
        return value

    def get(self, key, default=None, /):
        value = value_of(self, key, MISSING)
        if value is MISSING:
            return default
        self.record(key, value)
        return value

    def __setitem__(self, key, value):
        PyDict_SetItem(self, key, value)
        self.add(key)

    def __delitem__(self, key):
        PyDict_DelItem(self, key)
        self.add(key)

    def record_read(self):
        """Record a read of all values."""
        if self.changed is not None:
            for key, value in dict.items(self):
                self.record(key, value)


def pack_deliveries(list tuples not None):
    """Return the values and ids of tuples of one stream, column by column, for a way out of this process.

    `(columns, root_ids, tuple_ids, others)`: a list for each field; (n,) int64 of the tuples that belong to one tree,
    0 for others; and position -> ids (a dict, or None) of those others.
    """
    cdef Py_ssize_t count = len(tuples)
    cdef Py_ssize_t position, field
    cdef TupleBase tup
    roots, ids = np.zeros(count, np.int64), np.zeros(count, np.int64)
    cdef int64_t[::1] root_ids = roots
    cdef int64_t[::1] tuple_ids = ids
    cdef ValueSlots slots = <ValueSlots?>type(tuples[0])._slots if count else None
    cdef Py_ssize_t width = len(slots) if count else 0
    cdef list columns = [[] for _ in range(width)]
    cdef dict others = {}
    for position in range(count):
        tup = <TupleBase?>tuples[position]
        for field in range(width):
            (<list>columns[field]).append(slots.at(tup, field))
        if tup.tracked:
            root_ids[position] = tup.root_id
            tuple_ids[position] = tup.tuple_id
        else:
            others[position] = tup.more
    return columns, roots, ids, others


def unpack_deliveries(
    source,
    list columns not None,
    const int64_t[::1] root_ids not None,
    const int64_t[::1] tuple_ids not None,
    dict others not None,
    excluded,
):
    """Return the tuples that `pack_deliveries` has packed, without those that belong to a tree in `excluded`."""
    cdef Py_ssize_t count = root_ids.shape[0]
    cdef Py_ssize_t width = len(columns)
    cdef Py_ssize_t position, field
    cdef ValueSlots slots = <ValueSlots?>source.tuple_type._slots
    cdef TupleBase tup
    cdef list tuples = []
    if width != len(slots):
        raise ValueError(f"{width} columns, expected {len(slots)}")
    if tuple_ids.shape[0] != count or any(len(column) != count for column in columns):
        raise ValueError(f"expected columns of {count} values")
    for position in range(count):
        if excluded and root_ids[position] in excluded:
            continue
        tup = slots.new_tuple(source)
        for field in range(width):
            slots.put(tup, field, (<list?>columns[field])[position])
        if position in others:
            ids = others[position] or {}
            if excluded and not excluded.isdisjoint(ids):
                continue
            tup._set_ids(ids)
        else:
            tup.tracked = True
            tup.root_id = root_ids[position]
            tup.tuple_id = tuple_ids[position]
        tuples.append(slots.show_unless_fixed(tup))
    return tuples


include "row_blocks.pxi"
