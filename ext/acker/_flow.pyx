# cython: language_level=3, boundscheck=True, nonecheck=True, wraparound=False, cdivision=True
# cython: auto_pickle=False, freethreading_compatible=True
"""What the local runtime does for each tuple: ids, anchors, routes, deliveries, messages to ackers.

All of it runs with the GIL, between two calls of a user's Python; what is rare (errors, hooks, traces) is left to the
Python classes that inherit from these. Each object belongs to one executor; a tuple changes hands with its queue.

A component may also be called by threads of its user's: see `Emitter.is_own`. They share with the executor what is read
and written below in one go, which the GIL sees to, and without a GIL a critical section, which is nothing with one.

What is built by hand, or half, raises and does not crash: places in lists are checked, and None in the place of an
object. Counted by callgrind in a topology that was stepped from one thread, those are a seventh more instructions in
here, and one or two in a hundred of all that a tracked tuple takes; run times with and without could not be told apart.
"""

import threading

cimport cython
from cpython.ref cimport Py_INCREF, PyObject
from cpython.tuple cimport PyTuple_Size
from libc.stdint cimport int8_t, int32_t, int64_t
from libcpp.vector cimport vector

import numpy as np

cdef extern from *:
    """
    #ifdef Py_LIMITED_API  /* ACKER_ABI3=1: calls in the place of what is read directly otherwise */
    #define acker_new_of(type) ((newfunc)PyType_GetSlot(type, Py_tp_new))
    #define acker_tuple_get PyTuple_GetItem
    #define acker_tuple_set PyTuple_SetItem
    #else
    #define acker_new_of(type) ((type)->tp_new)
    #define acker_tuple_get PyTuple_GET_ITEM
    #define acker_tuple_set PyTuple_SET_ITEM
    #endif
    /* An instance of a class of Python's that inherits from one of here, without a call of its __init__. */
    static inline PyObject* acker_blank(PyObject* type, PyObject* no_arguments) {
        return acker_new_of((PyTypeObject*)type)((PyTypeObject*)type, no_arguments, NULL);
    }
    """
    PyObject* PyTuple_GET_ITEM "acker_tuple_get"(object values, Py_ssize_t position)
    void PyTuple_SET_ITEM "acker_tuple_set"(object values, Py_ssize_t position, object value)
    object blank "acker_blank"(object type, object no_arguments)
    object blank_tuple "PyType_GenericAlloc"(type kind, Py_ssize_t items)
    unsigned long PyThread_get_thread_ident()

cdef extern from "<atomic>":
    cdef cppclass ThreadId "std::atomic<unsigned long>":
        unsigned long load()
        void store(unsigned long)
        unsigned long exchange(unsigned long)

cdef tuple NO_ARGUMENTS = ()

# Owner of a tuple that was acked or failed.
cdef object SETTLED = object()

# Ids that are drawn at once: the call costs as much as a hundred of them.
cdef Py_ssize_t IDS_AT_ONCE = 2048

# How many keys a grouping by fields remembers the task of.
cdef Py_ssize_t KEYS_MAX = 16384


cdef class Delivery:
    """One delivery: values, where they come from, and its tuple id in each tree that it belongs to."""

    cdef public object values
    cdef readonly object _source
    cdef public object _owner
    cdef public int64_t _ack_val
    # Most tuples belong to one tree or to none. `more` holds all trees of one that belongs to several.
    cdef bint tracked
    cdef int64_t root_id
    cdef int64_t tuple_id
    cdef dict more

    def __init__(self, values, source, ids=None):
        self.values = values
        self._source = source
        self._set_ids(ids or {})

    cdef int _set_ids(self, dict ids) except -1:
        self.tracked = len(ids) == 1
        self.more = ids if len(ids) > 1 else None
        for self.root_id, self.tuple_id in ids.items():
            break
        return 0

    @cython.final
    @cython.critical_section
    cdef int answer_for(self, int64_t tuple_id) except -1:
        """Let the id of a tuple that is emitted under this one enter its ack val."""
        self._ack_val ^= tuple_id
        return 0

    @cython.final
    @cython.critical_section
    cdef bint change_hands(self, before, after) except -1:
        """Give it another owner; False: somebody else was the owner before."""
        if self._owner is not before:
            return False
        self._owner = after
        return True

    @property
    def _ids(self):
        if self.more is not None:
            return self.more
        return {self.root_id: self.tuple_id} if self.tracked else None

    @property
    def _is_settled(self):
        return self._owner is SETTLED


cdef class Field:
    """Reads one of the values of a tuple, as an attribute of its class."""

    cdef Py_ssize_t position

    def __init__(self, position):
        self.position = position

    def __get__(self, Delivery tup, owner):
        return self if tup is None else tup.values[self.position]

    def __set__(self, tup, value):
        raise AttributeError("the values of a tuple cannot be set: other bolts read them too")


cdef class Outlet:
    """The way from one task to another: tuples that were emitted and not yet put into the other's queue."""

    cdef public list buffer
    cdef public object queue
    cdef readonly int64_t place
    cdef readonly int64_t task
    cdef public int64_t sent

    def __init__(self, queue, place, task):
        self.buffer = []
        self.queue = queue
        self.place = place
        self.task = task

    @cython.final
    @cython.critical_section
    cdef int count(self, Py_ssize_t tuples) except -1:
        self.sent += tuples
        return 0

    @cython.final
    cdef int send(self, list tuples) except -1:
        """Put tuples into the other task's queue. Any thread may."""
        self.count(len(tuples))
        self.queue.put((self.place, tuples), len(tuples))
        return 0


cdef class Hand:
    """What an executor has in hand: outlets that hold something, in the order in which they first did.

    `pressed`: time to put it down and to look up, because a buffer has `full_at` tuples or somebody wants something.
    `lock`: held by threads that are not the executor's while they call its components. `closed`: they may not any more.
    `alive_at`: when `_keep_alive` is to be called, in ns of the runtime's clock; 0: never.
    """

    cdef readonly list dirty
    cdef public bint pressed
    cdef readonly Py_ssize_t full_at
    cdef public int64_t alive_at
    cdef readonly object lock
    cdef readonly bint closed
    # The thread that is in a step of the executor, or runs its coroutines while it rests; 0: none is.
    cdef ThreadId inside
    cdef ThreadId resting

    def __init__(self, full_at):
        self.dirty = []
        self.full_at = full_at
        # A finalizer may run while it is held, and may ack.
        self.lock = threading.RLock()

    def enter(self, bint rests=False):
        """Say that this thread is the executor's until `leave`; return what that is to be told."""
        cdef unsigned long me = PyThread_get_thread_ident()
        return self.inside.exchange(0 if rests else me), self.resting.exchange(me if rests else 0)

    def leave(self, before):
        """Go back to what was so before `enter`."""
        inside, resting = before
        self.inside.store(inside)
        self.resting.store(resting)

    def close(self):
        """Refuse calls of threads that are not the executor's; when this returns, none is under way."""
        with self.lock:
            self.closed = True

    @cython.final
    cdef bint is_own(self) except -1:
        """Say whether this thread is the executor's. One that rests is woken, to put down what comes now."""
        cdef unsigned long me = PyThread_get_thread_ident()
        if me == self.inside.load():
            return True
        if me != self.resting.load():
            return False
        self._wake()
        return True

    @cython.final
    cdef int put(self, Outlet outlet, Delivery tup) except -1:
        if not outlet.buffer:
            self.dirty.append(outlet)
        outlet.buffer.append(tup)
        if len(outlet.buffer) >= self.full_at:
            self.pressed = True
        return 0

    def put_down(self):
        """Put everything into the queues."""
        cdef Outlet outlet
        self.pressed = False
        for outlet in self.dirty:
            tuples = outlet.buffer
            outlet.buffer = []
            outlet.send(tuples)
        self.dirty.clear()

    def drop(self):
        """Forget it."""
        cdef Outlet outlet
        self.pressed = False
        for outlet in self.dirty:
            outlet.buffer = []
        self.dirty.clear()


cdef class Chooser:
    """Says to which outlets the tuple with some values goes."""

    cdef list choose(self, values):
        raise NotImplementedError


cdef class Every(Chooser):
    """All outlets, however many those are."""

    cdef list outlets

    def __init__(self, outlets):
        self.outlets = list(outlets)

    cdef list choose(self, values):
        return self.outlets


cdef class InTurn(Chooser):
    """One outlet after the other."""

    cdef list alone
    cdef Py_ssize_t place

    def __init__(self, outlets, begin):
        self.alone = [[outlet] for outlet in outlets]
        self.place = begin

    @cython.critical_section
    cdef list choose(self, values):
        cdef list chosen = <list>self.alone[self.place]
        self.place += 1
        if self.place == len(self.alone):
            self.place = 0
        return chosen


cdef class ByField(Chooser):
    """The outlet that the value at a position hashes to."""

    cdef list alone
    cdef Py_ssize_t position
    cdef object hash_of
    # Most keys are text, and most of them come again. Only text is remembered: 1 and True are one key of a dict.
    cdef dict known

    def __init__(self, outlets, position, hash_of):
        self.alone = [[outlet] for outlet in outlets]
        self.position = position
        self.hash_of = hash_of
        self.known = {}

    cdef list choose(self, values):
        if not isinstance(values, tuple) or not 0 <= self.position < PyTuple_Size(values):
            raise IndexError(f"no field {self.position} of {values!r}")
        value = <object>PyTuple_GET_ITEM(values, self.position)
        if type(value) is not str:
            return <list>self.alone[self.hash_of(value) % len(self.alone)]
        found = self.known.get(value)
        if found is None:
            if len(self.known) >= KEYS_MAX:
                self.known.clear()
            found = self.known[value] = self.alone[self.hash_of(value) % len(self.alone)]
        return <list>found


cdef class ByFunction(Chooser):
    """What a function returns, as a list of outlets."""

    cdef object function

    def __init__(self, function):
        self.function = function

    cdef list choose(self, values):
        return self.function(values)


cdef class Several(Chooser):
    """What each of several choosers says."""

    cdef list choosers

    def __init__(self, choosers):
        self.choosers = list(choosers)

    cdef list choose(self, values):
        cdef list chosen = []
        cdef Chooser chooser
        for chooser in self.choosers:
            chosen.extend(chooser.choose(values))
        return chosen


cdef class Route:
    """One stream of one task: what its tuples look like and where they go."""

    cdef readonly object source
    cdef readonly Py_ssize_t width
    cdef readonly dict direct
    cdef readonly bint is_direct
    cdef public int64_t emitted
    cdef type values_type
    cdef type tuple_type
    cdef Chooser chooser

    def __init__(self, source, chooser, is_direct, direct):
        if not issubclass(source.values_type, tuple) or not issubclass(source.tuple_type, Delivery):
            raise TypeError("source: expected a stream whose values are tuples and whose tuples are Deliveries")
        self.source = source
        self.width = len(source.fields)
        self.values_type = source.values_type
        self.tuple_type = source.tuple_type
        self.chooser = chooser
        self.is_direct = is_direct
        self.direct = dict(direct)

    @cython.final
    @cython.critical_section
    cdef int count(self) except -1:
        self.emitted += 1
        return 0

    cdef object values_of(self, values):
        """Make the named tuple of emitted values; None if they are no row, or not as many as the stream has fields."""
        if type(values) is not list and type(values) is not tuple:
            values = self.source.row_of(values)
            if values is None:
                return None
        if len(values) != self.width:
            return None
        if self.values_type is None:
            raise TypeError("a route without a stream")
        named = blank_tuple(self.values_type, self.width)
        cdef Py_ssize_t position
        for position in range(self.width):
            value = values[position]
            Py_INCREF(value)
            PyTuple_SET_ITEM(named, position, value)
        return named

    cdef Delivery delivery_of(self, values):
        """Make a tuple that belongs to no tree yet."""
        if self.tuple_type is None:
            raise TypeError("a route without a stream")
        cdef Delivery tup = <Delivery>blank(self.tuple_type, NO_ARGUMENTS)
        tup.values = values
        tup._source = self.source
        return tup


cdef struct Track:
    int64_t root_id
    int64_t value
    int64_t task
    int64_t message_id


cdef struct Ok:
    int64_t root_id
    int64_t value


cdef class Letter:
    """What one executor has to say to one acker. All of it may be applied in any order (protocol "storm").

    A message is whole, in one place: one for which there is no memory leaves the letter as it was.
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


cdef class Post:
    """An executor's letters, one for each acker. Without an acker nothing is tracked and nothing is sent."""

    cdef list queues
    cdef list letters
    cdef Letter only  # where there is one acker

    def __init__(self, queues):
        self.queues = list(queues)
        self.letters = [Letter() for _ in self.queues]
        self.only = self.letters[0] if len(self.letters) == 1 else None

    def __len__(self):
        return len(self.queues)

    cdef Post another(self):
        """Make one for a call of another thread, which is sent at once."""
        return Post(self.queues)

    cdef Letter to(self, int64_t root_id):
        if self.only is not None:
            return self.only
        if not self.letters:
            raise ValueError("there is no acker to write to")
        # protocol.md, *Which acker*: the remainder has the sign of the root id, as in C.
        return <Letter>self.letters[abs(root_id % <int64_t>len(self.letters))]

    cdef int put_track(self, int64_t root_id, int64_t value, int64_t task, int64_t message_id) except -1:
        self.to(root_id).tracks.push_back(Track(root_id, value, task, message_id))
        return 0

    cdef int put_ok(self, int64_t root_id, int64_t value) except -1:
        self.to(root_id).oks.push_back(Ok(root_id, value))
        return 0

    cdef int put_oks(self, Delivery tup) except -1:
        """Write one OK a tree: the tuple's own id there xor what was emitted under it."""
        if tup.tracked:
            return self.put_ok(tup.root_id, tup.tuple_id ^ tup._ack_val)
        if tup.more is not None:
            for root_id, tuple_id in tup.more.items():
                self.put_ok(root_id, <int64_t>tuple_id ^ tup._ack_val)
        return 0

    def track(self, root_id, value, task, message_id):
        """Write a TRACK."""
        self.put_track(root_id, value, task, message_id)

    def fail(self, root_ids, reason):
        """Write a FAIL for each tree."""
        cdef int64_t root_id
        for root_id in root_ids:
            self.to(root_id).failures.append((root_id, reason))

    def reset_timeout(self, root_ids):
        """Write a RESET_TIMEOUT for each tree."""
        for root_id in root_ids:
            self.to(root_id).resets.push_back(root_id)

    def has_room(self, signal):
        """Say whether the ackers keep up; if not, the signal is set once they do."""
        return all([queue.has_room(signal) for queue in self.queues])

    def send(self):
        """Send all letters that say something."""
        cdef Py_ssize_t place
        for place in range(len(self.queues)):
            letter = self.letters[place]
            items = len(letter)
            if items:
                self.letters[place] = Letter()
                self.queues[place].put(letter, items)
        self.only = self.letters[0] if len(self.letters) == 1 else None


def columns_of(list letters not None):
    """Put letters into the columns of `Acker.ingest`, letter by letter: TRACKs, OKs, FAILs, RESET_TIMEOUTs."""
    cdef Letter letter
    cdef Py_ssize_t rows = 0
    for letter in letters:
        rows += len(letter)
    kind_array, root_array, value_array = np.zeros(rows, np.int8), np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    task_array, message_array = np.zeros(rows, np.int32), np.zeros(rows, np.int64)
    cdef int8_t[::1] kind = kind_array
    cdef int64_t[::1] root = root_array
    cdef int64_t[::1] value = value_array
    cdef int32_t[::1] task = task_array
    cdef int64_t[::1] message = message_array
    cdef Py_ssize_t row = 0
    cdef size_t place
    cdef Track track
    for letter in letters:
        for place in range(letter.tracks.size()):
            track = letter.tracks[place]
            kind[row] = 0
            root[row] = track.root_id
            value[row] = track.value
            task[row] = <int32_t>track.task
            message[row] = track.message_id
            row += 1
        for place in range(letter.oks.size()):
            kind[row] = 2
            root[row] = letter.oks[place].root_id
            value[row] = letter.oks[place].value
            row += 1
        for root_id, _ in letter.failures:
            kind[row] = 3
            root[row] = root_id
            row += 1
        for place in range(letter.resets.size()):
            kind[row] = 4
            root[row] = letter.resets[place]
            row += 1
    return kind_array, root_array, value_array, task_array, message_array


cdef class Latencies:
    """Counts latencies in buckets: `bounds_ns` are their inclusive upper ends, ascending, and behind them is one more.

    One thread records, any may read.
    """

    cdef vector[int64_t] bounds_ns
    cdef vector[int64_t] counts
    cdef int64_t sum_ns

    def __init__(self, bounds_ns):
        self.bounds_ns = bounds_ns
        self.counts.assign(self.bounds_ns.size() + 1, 0)

    cdef int add(self, int64_t ns) except -1:
        cdef size_t low = 0, high = self.bounds_ns.size(), middle
        if self.counts.size() <= high:
            raise ValueError("these latencies have no bounds: __init__ was not called")
        while low < high:
            middle = (low + high) // 2
            if self.bounds_ns[middle] < ns:
                low = middle + 1
            else:
                high = middle
        self.counts[low] += 1
        self.sum_ns += ns
        return 0

    def record(self, ns):
        """Count one latency in nanoseconds. Negative ones, of a clock that was set back, count as the shortest."""
        self.add(ns)

    def taken(self):
        """Return the counts and the sum."""
        return tuple(self.counts), self.sum_ns


cdef class Emitter:
    """What emits: routes, ids, and what the executor has in hand.

    `watched`: somebody wants to see each emit, delivery, ack and fail, so `_on_...` are called.
    """

    cdef readonly dict routes
    cdef readonly object task
    cdef public bint watched
    cdef public int64_t acked
    cdef public dict user
    cdef readonly Post post
    cdef readonly Hand hand
    cdef public Latencies latency
    cdef object generator
    cdef const int64_t[::1] ids
    cdef Py_ssize_t next_place
    cdef Py_ssize_t ids_held

    def __init__(
        self, task, dict routes not None, Hand hand not None, Post post not None, generator, Latencies latency not None
    ):
        self.task = task
        self.user = {}
        self.routes = routes
        self.hand = hand
        self.post = post
        self.generator = generator
        self.latency = latency

    @cython.critical_section
    def count(self, name, n=1):
        """Add to a counter of the component's own."""
        self.user[name] = self.user.get(name, 0) + n

    @property
    def is_own(self):
        """Whether this thread is the executor's, and in a step or a coroutine of it."""
        return self.hand.is_own()

    cdef int check_open(self, what) except -1:
        if self.hand.closed:
            self._refuse_ended(f"cannot {what}")
        return 0

    @cython.final
    @cython.critical_section
    cdef int64_t next_id(self) except? 0:
        if self.next_place >= self.ids_held:
            self.draw_ids()
        cdef int64_t found = self.ids[self.next_place]
        self.next_place += 1
        return found

    cdef int draw_ids(self) except -1:
        self.ids = self.generator.take(IDS_AT_ONCE)
        self.ids_held = self.ids.shape[0]
        self.next_place = 0
        if not self.ids_held:
            raise ValueError("the generator gave no ids")
        return 0

    @cython.final
    cdef int put(self, Outlet outlet, Delivery tup, bint own) except -1:
        """Hand over a tuple: with others, by the executor, or at once by a thread that is not its own."""
        if own:
            self.hand.put(outlet, tup)
        if self.watched:
            self._on_delivery(outlet.task, tup._ids)
        if not own:
            outlet.send([tup])
        return 0

    cdef Route route_of(self, stream):
        if stream is not None and not isinstance(stream, str):
            return None
        route = self.routes.get(stream)
        return None if route is None else <Route?>route

    cdef list outlets_of(self, Route route, values, direct_task):
        if direct_task is None and not route.is_direct:
            return route.chooser.choose(values)
        return self._direct(route, direct_task)


cdef class BoltEmitter(Emitter):
    """What a task of a bolt calls, and how its executor calls it.

    `inputs` is what is processed now, and what emitted tuples are anchored to, if `auto_anchor`, unless `emit` is told.
    """

    cdef public tuple inputs
    cdef public bint auto_anchor
    cdef public int64_t executed
    cdef public int64_t failed
    cdef readonly int64_t sample_every
    cdef object now_ns

    def __init__(self, *arguments, auto_anchor, sample_every, now_ns):
        super().__init__(*arguments)
        if sample_every < 1:
            raise ValueError(f"sample_every: expected 1 or more, got {sample_every}")
        self.inputs = ()
        self.auto_anchor = auto_anchor
        self.sample_every = sample_every
        self.now_ns = now_ns

    def emit(self, tup, stream=None, anchors=None, direct_task=None, bint need_task_ids=False):
        """Send a tuple to whoever reads the stream."""
        cdef Route route = self.route_of(stream)
        values = None if route is None else route.values_of(tup)
        if values is None:
            self._unroutable(tup, stream)
        cdef list outlets = self.outlets_of(route, values, direct_task)
        cdef bint own = self.hand.is_own()
        cdef tuple tied
        if anchors is not None:
            tied = tuple(anchors) if type(anchors) is list else self._anchors_of(anchors)
        elif not self.auto_anchor:
            tied = ()
        else:
            tied = self.inputs if own else self._refuse_unanchored()
        if own:
            self.deliver(route, values, outlets, tied, own)
        else:
            self.hand._wait_for_room()
            with self.hand.lock:
                self.check_open("emit")
                self.deliver(route, values, outlets, tied, own)
        if self.watched:
            self._on_emit(route, values, outlets)
        return [(<Outlet>outlet).task for outlet in outlets] if need_task_ids else None

    @cython.final
    cdef int deliver(self, Route route, values, list outlets, tuple tied, bint own) except -1:
        cdef Outlet outlet
        cdef Delivery delivery
        for anchor in tied:
            self.mine(anchor, "anchored to")
        for outlet in outlets:
            delivery = route.delivery_of(values)
            if len(tied) == 1:
                self.anchor(delivery, <Delivery>tied[0])
            elif tied:
                self.join(delivery, tied)
            self.put(outlet, delivery, own)
        route.count()
        return 0

    @cython.final
    cdef int anchor(self, Delivery tup, Delivery anchor) except -1:
        """Let a tuple join the trees of its one anchor."""
        if anchor.tracked:
            tup.tuple_id = self.next_id()
            tup.root_id = anchor.root_id
            tup.tracked = True
            anchor.answer_for(tup.tuple_id)
            return 0
        return 0 if anchor.more is None else self.join(tup, (anchor,))

    cdef int join(self, Delivery tup, tuple anchors) except -1:
        """Let a tuple join the trees of all its anchors.

        Each anchor answers for an id of its own, in all its trees; a tree of two anchors sees the xor of both.
        """
        cdef dict ids = {}
        cdef int64_t tuple_id
        cdef Delivery anchor
        for anchor in anchors:
            roots = anchor._ids
            if roots:
                tuple_id = self.next_id()
                anchor.answer_for(tuple_id)
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

    cdef Delivery mine(self, tup, what):
        """Return a tuple of this task that is not settled; refuse anything else."""
        if not isinstance(tup, Delivery) or (<Delivery>tup)._owner is not self:
            self._refuse(tup, what)
        return <Delivery?>tup

    def ack(self, tup):
        """Say that a tuple and everything that this task had to do for it is done."""
        cdef Post post
        if self.hand.is_own():
            self.ack_to(tup, self.post)
        else:
            post = self.post.another()
            with self.hand.lock:
                self.check_held(tup, "acked")
                self.ack_to(tup, post)
                post.send()
        if self.watched:
            self._on_ack(tup)

    @cython.final
    cdef int ack_to(self, tup, Post post) except -1:
        self.take(tup, "acked")
        post.put_oks(<Delivery>tup)
        return self.count_settled(False)

    def fail(self, tup, reason=None):
        """Say that a tuple cannot be processed; its trees fail."""
        cdef Post post
        reason = self._reason_of(reason)
        if self.hand.is_own():
            self.fail_to(tup, reason, self.post)
        else:
            post = self.post.another()
            with self.hand.lock:
                self.check_held(tup, "failed")
                self.fail_to(tup, reason, post)
                post.send()
        if self.watched:
            self._on_fail(tup, reason)

    cdef int fail_to(self, tup, reason, Post post) except -1:
        self.take(tup, "failed")
        post.fail((<Delivery>tup)._ids or (), reason)
        return self.count_settled(True)

    @cython.final
    cdef int take(self, tup, what) except -1:
        """Take a tuple of this task to settle it, as nobody else will be able to."""
        if not self.mine(tup, what).change_hands(self, SETTLED):
            self._refuse(tup, what)
        return 0

    cdef int check_held(self, tup, what) except -1:
        """Refuse a call of another thread about a tuple that is not this task's, or whose trees have failed."""
        self.mine(tup, what)
        if self.hand.closed:
            self._refuse_ended(f"{tup!r} cannot be {what}")
        return 0

    def reset_timeout(self, tup):
        """Ask for the whole timeout again, for the trees of a tuple that takes long."""
        cdef Post post
        if self.hand.is_own():
            self.post.reset_timeout(self.mine(tup, "given more time")._ids or ())
            return
        post = self.post.another()
        with self.hand.lock:
            self.check_held(tup, "given more time")
            post.reset_timeout((<Delivery>tup)._ids or ())
            post.send()

    def ack_unless_settled(self, Delivery tup not None):
        """Ack a tuple that nobody has acked or failed. For the executor."""
        self.settle(tup)

    @cython.final
    cdef int settle(self, Delivery tup) except -1:
        if not tup.change_hands(self, SETTLED):
            return 0
        self.post.put_oks(tup)
        self.count_settled(False)
        if self.watched:
            self._on_ack(tup)
        return 0

    def fail_unless_settled(self, Delivery tup not None, reason):
        """Fail a tuple that nobody has acked or failed; say whether nobody had. For the executor."""
        if not tup.change_hands(self, SETTLED):
            return False
        reason = self._reason_of(reason)
        self.post.fail(tup._ids or (), reason)
        self.count_settled(True)
        if self.watched:
            self._on_fail(tup, reason)
        return True

    def run(self, list tuples not None, Py_ssize_t begin, Py_ssize_t end, process, bint auto_ack, on_error):
        """Process tuples[begin:end], each acked when `process` returns; `on_error(tup, error)` is told what it raised.

        Returns the place of the first one that was not processed: before `end` if the executor is pressed. One in
        `sample_every` is measured.
        """
        cdef Delivery tup
        cdef Py_ssize_t place
        cdef int64_t since = 0
        cdef bint measured
        if begin < 0 or end > len(tuples):
            raise IndexError(f"{begin}:{end} of {len(tuples)}")
        if self.sample_every < 1:
            raise ValueError("this emitter samples nothing: __init__ was not called")
        try:
            for place in range(begin, end):
                tup = <Delivery?>tuples[place]
                tup._owner = self
                self.inputs = (tup,)
                self.executed += 1
                measured = self.executed % self.sample_every == 1 or self.sample_every == 1
                if measured:
                    since = self.now_ns()
                try:
                    returned = process(tup)
                    if returned is not None:
                        self._refuse_unrun("process", returned)
                except BaseException as error:
                    on_error(tup, error)
                else:
                    if auto_ack:
                        self.settle(tup)
                if measured:
                    self.latency.add(<int64_t>self.now_ns() - since)
                if self.watched:
                    self._on_execute(tup)
                if self.hand.pressed:
                    return place + 1
            return end
        finally:
            self.inputs = ()


cdef class Open:
    """A tracked tuple of a spout whose tree is not finished."""

    cdef readonly object tup_id
    cdef readonly int64_t root_id
    cdef readonly int64_t value
    cdef readonly int64_t emitted_ns


cdef class SpoutEmitter(Emitter):
    """What a task of a spout calls, and its record of what is open.

    `pending`: message id -> Open, of tracked tuples whose outcome was not heard. `at_once`: tuple ids to ack when
    `next_tuple` returns, where there is no acker. `emits`: how often anything was emitted.
    """

    cdef readonly dict pending
    cdef readonly list at_once
    cdef readonly int64_t emits
    cdef public int64_t message_id
    cdef public int64_t executed
    cdef public int64_t late
    cdef object now_ns
    cdef bint tracks
    # Outcomes that were heard, and how many of them the spout was told.
    cdef list heard
    cdef Py_ssize_t told

    def __init__(self, *arguments, now_ns):
        super().__init__(*arguments)
        self.pending = {}
        self.at_once = []
        self.heard = []
        self.now_ns = now_ns
        self.tracks = len(self.post) > 0

    def emit(self, tup, tup_id=None, stream=None, direct_task=None, bint need_task_ids=False):
        """Send a tuple to whoever reads the stream; with a tuple id it is tracked."""
        cdef Route route = self.route_of(stream)
        values = None if route is None else route.values_of(tup)
        if values is None:
            self._unroutable(tup, stream)
        if tup_id is not None:
            self._check_id(tup_id)
        cdef list outlets = self.outlets_of(route, values, direct_task)
        cdef Post post
        if self.hand.is_own():
            self.deliver(route, values, outlets, tup_id, self.post, True)
            self.emits += 1
        else:
            self.hand._wait_for_room()
            post = self.post.another()
            with self.hand.lock:
                self.check_open("emit")
                self.deliver(route, values, outlets, tup_id, post, False)
                post.send()
            if tup_id is not None and not self.tracks:
                self.hand._wake()
        if self.watched:
            self._on_emit(route, values, outlets)
        return [(<Outlet>outlet).task for outlet in outlets] if need_task_ids else None

    @cython.final
    cdef int deliver(self, Route route, values, list outlets, tup_id, Post post, bint own) except -1:
        cdef Outlet outlet
        if tup_id is not None and self.tracks:
            self.track(route, values, outlets, tup_id, post, own)
        else:
            for outlet in outlets:
                self.put(outlet, route.delivery_of(values), own)
            if tup_id is not None:
                self.at_once.append(tup_id)
        route.count()
        return 0

    @cython.final
    @cython.critical_section
    cdef int64_t open_tree(self, Open open_) except -1:
        """Enter a tree into what is pending; return its message id."""
        cdef int64_t message_id = self.message_id
        self.pending[message_id] = open_
        self.message_id += 1
        return message_id

    cdef int track(self, Route route, values, list outlets, tup_id, Post post, bint own) except -1:
        cdef Open open_ = Open.__new__(Open)
        cdef Outlet outlet
        cdef Delivery tup
        open_.tup_id = tup_id
        open_.root_id = self.next_id()
        for outlet in outlets:
            tup = route.delivery_of(values)
            tup.tracked = True
            tup.root_id = open_.root_id
            tup.tuple_id = self.next_id()
            open_.value ^= tup.tuple_id
            self.put(outlet, tup, own)
        open_.emitted_ns = self.now_ns()
        # It is pending before its TRACK is sent, and no outcome comes before that.
        return post.put_track(open_.root_id, open_.value, self.task, self.open_tree(open_))

    cdef int _check_id(self, tup_id) except -1:
        try:
            hash(tup_id)
        except TypeError:
            self._unhashable(tup_id)
        return 0

    def ask(self, spout, ack, Py_ssize_t limit, Py_ssize_t pending_max):
        """Call `spout.next_tuple` until it emits nothing, or enough is open or in hand; return how often it emitted."""
        cdef Py_ssize_t got
        cdef int64_t before
        next_tuple = spout.next_tuple
        for got in range(limit):
            if self.hand.alive_at:
                self.keep_alive()
            if spout._finished or len(self.pending) >= pending_max or self.hand.pressed:
                return got
            before = self.emits
            returned = next_tuple()
            if returned is not None:
                self._refuse_unrun("next_tuple", returned)
            self.executed += 1
            while self.at_once:
                ack(self.at_once.pop(0))
                self.acked += 1
            if self.emits == before:
                return got
        return limit

    @cython.final
    cdef int keep_alive(self) except -1:
        """Call what is due however many tuples and outcomes there are."""
        if <int64_t>self.now_ns() >= self.hand.alive_at:
            self.hand._keep_alive()
        return 0

    @property
    def untold(self):
        """How many outcomes were heard that the spout was not told."""
        return len(self.heard) - self.told

    def hear(self, list verdicts not None, ack, fail):
        """Tell the spout how trees ended, by `ack(tup_id)` and `fail(tup_id, reason)`.

        What those raise escapes, and the next call goes on behind it. An ack that raised, or that returns True because
        what it raised was logged, does not count as acked.
        """
        cdef Open open_
        cdef int64_t elapsed_ns
        self.heard.extend(verdicts)
        while self.told < len(self.heard):
            if self.hand.alive_at:
                self.keep_alive()
            message_id, outcome, reason = self.heard[self.told]
            self.told += 1
            open_ = self.pending.pop(message_id, None)
            if open_ is None:
                self.late += 1
            elif outcome == 0:
                elapsed_ns = <int64_t>self.now_ns() - open_.emitted_ns
                self.latency.add(elapsed_ns)
                self._on_acked(open_, elapsed_ns)
                if not ack(open_.tup_id):
                    self.acked += 1
            else:
                fail(open_.tup_id, self._why(open_, outcome, reason))
        self.heard.clear()
        self.told = 0
