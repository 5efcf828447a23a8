# cython: language_level=3, boundscheck=True, nonecheck=True, wraparound=False, cdivision=True
# cython: auto_pickle=False, freethreading_compatible=True
"""The native half of a consumer: what each message and each child costs between two calls of user code.

It counts the parts of a tree, draws their ids, and gathers the messages to the acker in an inbox that the I/O thread
takes as columns. Rare cases (failures, jobs, coroutines, spans, errors) are left to the Python classes that inherit
from these.

Any thread may call a handle. What several of them read and write is changed in one step, in which no Python code runs:
the GIL protects it, and on free-threaded builds a critical section, which costs nothing otherwise.
"""

import os
from concurrent import futures
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextvars import ContextVar
from queue import Empty, SimpleQueue
from types import AsyncGeneratorType, CoroutineType, GeneratorType

cimport cython
from cpython.contextvars cimport PyContextVar_Get, PyContextVar_Set
from cpython.ref cimport Py_DECREF, PyObject
from libc.stdint cimport int8_t, int64_t
from libcpp.vector cimport vector

import numpy as np

cdef extern from *:
    """
    static inline PyObject* acker_code_of(PyObject* frame) {
        return (PyObject*)PyFrame_GetCode((PyFrameObject*)frame);
    }
    static inline PyObject* acker_running_frame(void) { return (PyObject*)PyEval_GetFrame(); }
    static inline int acker_instruction_of(PyObject* frame) { return PyFrame_GetLasti((PyFrameObject*)frame); }
    /* Whether this is a function whose call runs it, and makes no coroutine and no generator. */
    static inline int acker_is_plain(PyObject* work) {
        return PyFunction_Check(work) && !(((PyCodeObject*)PyFunction_GET_CODE(work))->co_flags
            & (CO_COROUTINE | CO_GENERATOR | CO_ASYNC_GENERATOR));
    }
    /* What `time.monotonic_ns` returns, without a call of Python. */
    static inline long long acker_monotonic_ns(void) {
    #if PY_VERSION_HEX >= 0x030D0000
        PyTime_t now = 0;
        (void)PyTime_MonotonicRaw(&now);
        return now;
    #else
        return _PyTime_GetMonotonicClock();
    #endif
    }
    """
    object code_of "acker_code_of"(object frame)
    PyObject* running_frame "acker_running_frame"()
    int instruction_of "acker_instruction_of"(object frame)
    bint is_plain_function "acker_is_plain"(object work)
    int64_t monotonic_ns "acker_monotonic_ns"()
    unsigned long PyThread_get_thread_ident()

cdef extern from *:
    """
    /* Creates an instance of a class that inherits from a base, without calling its __init__. */
    static inline PyObject* acker_blank(PyObject* type, PyObject* base, PyObject* no_arguments) {
        if (!PyType_Check(type) || !PyType_IsSubtype((PyTypeObject*)type, (PyTypeObject*)base)) {
            return PyErr_Format(PyExc_TypeError, "expected a subclass of %R, got %R", base, type);
        }
        return ((PyTypeObject*)type)->tp_new((PyTypeObject*)type, no_arguments, NULL);
    }
    """
    object blank "acker_blank"(object type, object base, object no_arguments)

cdef extern from "codes.h" namespace "acker":
    int8_t TRACK
    int8_t OK
    int8_t FAIL
    int8_t RESET_TIMEOUT
    int8_t OUTCOME_ACKED

cdef struct Row:
    int64_t root_id
    int64_t value
    int64_t message_id
    int8_t kind

cdef tuple NO_ARGUMENTS = ()

# How many ids one call of the generator returns. NumPy lets other threads run meanwhile, and this one then waits for
# them.
cdef Py_ssize_t IDS_AT_ONCE = 8192

# What the end of a part has been.
cdef int WAS_OPEN = 1
cdef int IS_LAST = 2  # of the parts of a tree in which none failed
cdef int IS_FIRST_FAILURE = 4
cdef int HAS_LAST_WORK = 8

# The tree that the running code works for, as `acker.connectors.calls` tells.
message_variable = ContextVar("acker message", default=None)
cdef object VARIABLE = message_variable

# The handle that the running coroutine ends.
handle_variable = ContextVar("acker handle", default=None)
cdef object HANDLE_VARIABLE = handle_variable

# What each thread of a pool does now, by its number: the tree, the pool, and since when. A thread writes its own entry
# only.
working = {}
cdef dict WORKING = working

# What a call returns that has not begun its work.
cdef tuple UNRUN = (CoroutineType, GeneratorType, AsyncGeneratorType)


@cython.final
cdef class ThisProcess:
    """The id of this process, which takes no call of the system to look at."""

    cdef public int64_t id

    def look(self):
        """Ask the system again, in a forked process."""
        self.id = os.getpid()


cdef ThisProcess THIS_PROCESS = ThisProcess()
THIS_PROCESS.look()
this_process = THIS_PROCESS
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=THIS_PROCESS.look)


cdef class DeliveryBase:
    """The fields of a `Delivery`, which each message takes through several calls.

    A subclass may leave out key and headers, and make them when somebody asks: few messages need them.
    """

    cdef public object value
    cdef public int64_t attempt
    cdef public object raw
    cdef public object receipt
    cdef int64_t offset  # of a message of Kafka, in its partition
    cdef object found_key
    cdef object found_headers

    def __init__(self, key, value, headers, attempt, raw, receipt):
        self.found_key, self.value, self.found_headers = key, value, headers
        self.attempt, self.raw, self.receipt = attempt, raw, receipt

    @property
    def key(self):
        if self.found_key is None:
            self.found_key = self._make_key()
        return self.found_key

    @key.setter
    def key(self, key):
        self.found_key = key

    @property
    def headers(self):
        if self.found_headers is None:
            self.found_headers = self._make_headers()
        return self.found_headers

    @headers.setter
    def headers(self, headers):
        self.found_headers = headers

    def _make_key(self):
        return ""

    def _make_headers(self):
        return {}


@cython.final
@cython.freelist(256)
cdef class Attempt:
    """One attempt at one delivery. A retry of the same delivery is another attempt.

    Attributes
    ----------
    message_id : int
        The consumer's own number of this attempt, never used twice.
    delivery : Delivery
    number : int
        The attempt's number, from 1, as far as broker and consumer know.
    tries : int
        How many attempts count for `attempts_max`, this one included.
    since_ns : int
        When it was delivered, or was handed out, on the monotonic clock.
    state : str
        "ready": it waits to be handed out. "withheld": it is not handed out, while a rebalance may take it away, or
        since it goes back at the end. "queued": it waits behind another message of its key, or for the pace of
        `rate_max`. "suspect": it waits until nobody works on anything else. "open": somebody has it.
        "failed": the source is to be asked for a retry. "waiting": for a retry in this process. "given up": the source
        is to move it to the broker's own place for dead letters. "dead": its dead letter is not confirmed yet.
        "reporting": its report is not. "done": its ack is to be sent. "ended".
    reason : Reason or None
        Of its failure.
    retry_secs : float or None
        How long the next attempt waits, if whoever failed this one said so.
    went_back : bool
        Whether the attempt of this number was handed out before, and ended without a fault of the message.
    tree : MessageTree or None
        Set by a consumer, which gives it to user code.
    lane : Lane or None
        The messages of its key, where these are handed out in order.
    job : Job or None
        This execution of the job of a tree elsewhere that the message is, until its report is confirmed.
    """

    cdef readonly int64_t message_id
    cdef readonly DeliveryBase delivery
    cdef readonly int64_t number
    cdef readonly int64_t tries
    cdef public int64_t since_ns
    cdef public bint went_back
    cdef object _state
    cdef object _reason
    cdef object _tree
    cdef public object retry_secs
    cdef public object lane
    cdef public object job

    def __init__(
        self,
        int64_t message_id,
        DeliveryBase delivery not None,
        int64_t number,
        int64_t tries,
        int64_t since_ns,
        str state="ready",
        reason=None,
        retry_secs=None,
        bint went_back=False,
        tree=None,
        lane=None,
        job=None,
    ):
        self.message_id = message_id
        self.delivery = delivery
        self.number = number
        self.tries = tries
        self.since_ns = since_ns
        self._state = state
        self._reason = reason
        self.retry_secs = retry_secs
        self.went_back = went_back
        self._tree = tree
        self.lane = lane
        self.job = job

    # Read by other threads than the one that writes.

    @property
    def state(self):
        with cython.critical_section(self):
            return self._state

    @state.setter
    def state(self, str state not None):
        self.set_state(state)

    @property
    def reason(self):
        with cython.critical_section(self):
            return self._reason

    @reason.setter
    def reason(self, reason):
        with cython.critical_section(self):
            self._reason = reason

    @property
    def tree(self):
        with cython.critical_section(self):
            return self._tree

    @tree.setter
    def tree(self, tree):
        with cython.critical_section(self):
            self._tree = tree

    cdef bint leave_tree(self, list left) except -1:
        """Forget its tree, which `left` gets, if it is open; return whether it is.

        The tree refers to the attempt: without this, only the cyclic collector would free both.
        """
        with cython.critical_section(self):
            if self._state != "open":
                return False
            tree, self._tree = self._tree, None
        left.append(tree)
        return True

    cdef int set_state(self, str state) except -1:
        with cython.critical_section(self):
            self._state = state
        return 0

    cdef bint is_open(self) except -1:
        with cython.critical_section(self):
            return self._state == "open"

    cpdef bint hand_out(self, int64_t now_ns) except -1:
        """Open it if it waits for that; return whether it did."""
        with cython.critical_section(self):
            if self._state != "ready":
                return False
            self._state = "open"
            self.since_ns = now_ns
            return True

    def withhold(self):
        """Let nobody get it, if it is not handed out yet; return whether that was so."""
        with cython.critical_section(self):
            if self._state != "ready" and self._state != "queued":
                return False
            self._state = "withheld"
            return True

    def end(self):
        """End it; return whether it was open."""
        with cython.critical_section(self):
            was_open = self._state == "open"
            self._state = "ended"
            return was_open

    def __repr__(self):
        return f"<Attempt {self.number} at {self.delivery.key}, {self.state}>"


@cython.final
cdef class ReadyAttempts:
    """The attempts that wait to be handed out, in the order in which they came, for any thread.

    Attributes
    ----------
    is_closed : bool
        Whether no more are handed out.
    put, get, qsize, empty : callable
        Those of a queue. None is in it at the end.
    """

    cdef public bint is_closed
    cdef readonly object put
    cdef readonly object get
    cdef readonly object qsize
    cdef readonly object empty

    def __init__(self):
        queue = SimpleQueue()
        self.put, self.get, self.qsize, self.empty = queue.put, queue.get, queue.qsize, queue.empty

    cdef Attempt take_now(self):
        """Hand out the next attempt; None if there is none now."""
        cdef Attempt attempt
        while not self.is_closed:
            try:
                found = self.get(False)
            except Empty:
                return None
            if found is None:
                self.put(None)  # for the next one who asks
                return None
            attempt = <Attempt?>found
            if attempt.hand_out(monotonic_ns()):
                return attempt
        return None


@cython.final
cdef class WakeMark:
    """Whether a thread sleeps, and whether something waits for it.

    Attributes
    ----------
    is_idle, is_urgent : bool
    wake : callable
        Ends the sleep; called if the thread is idle.
    """

    cdef public bint is_idle
    cdef public bint is_urgent
    cdef public object wake

    cdef int call(self) except -1:
        # Each is set before the other one is looked at, so nothing waits while the thread sleeps.
        self.is_urgent = True
        if self.is_idle:
            self.wake()
        return 0


@cython.final
cdef class Inbox:
    """Messages to the acker, which any thread adds and the I/O thread takes as columns.

    Parameters
    ----------
    mark : WakeMark
        Of the I/O thread.
    """

    cdef readonly WakeMark mark
    cdef vector[Row] rows

    def __init__(self, WakeMark mark not None):
        self.mark = mark

    @cython.critical_section
    cdef int add(self, int8_t kind, int64_t root_id, int64_t value, int64_t message_id) except -1:
        cdef Row row
        row.kind, row.root_id, row.value, row.message_id = kind, root_id, value, message_id
        self.rows.push_back(row)
        return 0

    def append(self, int8_t kind, int64_t root_id):
        """Add a message that may wait for the next turn."""
        self.add(kind, root_id, 0, 0)

    @cython.critical_section
    cdef int swap(self, vector[Row]* taken) except -1:
        taken.swap(self.rows)
        return 0

    def take(self):
        """Return all messages as the columns that `Acker.ingest` takes; None if there are none."""
        cdef vector[Row] taken
        self.swap(&taken)
        cdef Py_ssize_t place, count = taken.size()
        if not count:
            return None
        kinds, roots, values = np.empty(count, np.int8), np.empty(count, np.int64), np.empty(count, np.int64)
        messages = np.empty(count, np.int64)
        cdef int8_t[::1] kind = kinds
        cdef int64_t[::1] root_id = roots
        cdef int64_t[::1] value = values
        cdef int64_t[::1] message_id = messages
        for place in range(count):
            kind[place] = taken[place].kind
            root_id[place] = taken[place].root_id
            value[place] = taken[place].value
            message_id[place] = taken[place].message_id
        return kinds, roots, values, np.zeros(count, np.int32), messages


cdef class TreeOwner:
    """What the trees of a consumer share: its process, their ids, and their way to the acker.

    Parameters
    ----------
    ids : IdGenerator
    mark : WakeMark
        Of the thread that takes what `inbox` gets.
    trace : bool
        Whether trees know where their handles were made.

    Attributes
    ----------
    process : int
        The id of the process whose messages these are.
    inbox : Inbox
    trace : bool
    jobs : Jobs or None
        What knows jobs in other processes.
    steps : Steps or None
        What is told how long calls took.
    """

    cdef public int64_t process
    cdef readonly Inbox inbox
    cdef readonly bint trace
    cdef public object jobs
    cdef public object steps
    cdef object ids
    cdef vector[int64_t] drawn

    def __init__(self, ids, WakeMark mark, bint trace=False):
        self.process = os.getpid()
        self.inbox = Inbox(mark)
        self.trace = trace
        self.ids = ids

    def begin_message(self, Attempt attempt not None, made_in, tree_type, message_type):
        """Begin the tree of an attempt, of which the acker knows at its next turn; return its message, with its body.

        A KeyboardInterrupt can come at any time: `MessageTrees` looks for attempts without a tree, a tree times out,
        and a handle notices that it is lost.

        Parameters
        ----------
        attempt : Attempt
        made_in : (code, int) or str
            Where the message is handed out: an instruction, or a text.
        tree_type, message_type : type
            Subclasses of `TreeBase` and of `HandleBase`.
        """
        tree = <TreeBase?>blank(tree_type, TreeBase, NO_ARGUMENTS)
        message = <HandleBase?>blank(message_type, HandleBase, NO_ARGUMENTS)
        tree.owner = self
        tree.attempt = attempt
        tree.root_id = self.draw()
        tree.parts = 1
        message.tuple_id = self.draw()
        if type(made_in) is tuple:
            message.code = (<tuple>made_in)[0]
            message.instruction = (<tuple>made_in)[1]
        else:
            message.code = made_in
        # From here on, the message fails if nobody gets it.
        message._tree = tree
        self.inbox.add(TRACK, tree.root_id, message.tuple_id, attempt.message_id)
        attempt.tree = tree
        message.value = attempt.delivery.value
        return message

    cdef int64_t draw(self) except? 0:
        """Return a new id."""
        cdef int64_t drawn = 0
        while not self.take_drawn(&drawn):
            self.refill(self.ids.take(IDS_AT_ONCE))
        return drawn

    @cython.critical_section
    cdef bint take_drawn(self, int64_t* drawn) except -1:
        if self.drawn.empty():
            return False
        drawn[0] = self.drawn.back()
        self.drawn.pop_back()
        return True

    @cython.critical_section
    cdef int refill(self, const int64_t[::1] ids) except -1:
        # Another thread may have done it meanwhile: then the ids of one of them are dropped.
        self.drawn.assign(&ids[0], &ids[0] + ids.shape[0])
        return 0


cdef class TreeBase:
    """Everything that derives from one attempt at a message: how many parts it has, and what the acker is to know."""

    cdef readonly TreeOwner owner
    cdef readonly Attempt attempt
    cdef readonly int64_t root_id
    cdef readonly Py_ssize_t parts
    cdef readonly bint is_failed
    cdef int64_t ack_val
    cdef readonly object last_work
    cdef readonly dict handles
    cdef public object span
    cdef public object remote

    @property
    def alive(self):
        """Whether the outcome of this attempt still counts."""
        return self.attempt.is_open()

    @property
    def is_done(self):
        """Whether all its parts have ended, and none of them failed."""
        return self.parts == 0 and not self.is_failed

    @cython.critical_section
    def begin_failure(self):
        """Note that it fails; return whether nothing has failed it before, so that the caller tells why."""
        was_failed, self.is_failed = self.is_failed, True
        return not was_failed

    def post_failure(self):
        """Tell the acker at once that this fails."""
        self.owner.inbox.add(FAIL, self.root_id, 0, 0)
        self.owner.inbox.mark.call()

    def post_failure_quietly(self):
        """As `post_failure`, and call nothing: for destructors, which run anywhere."""
        self.owner.inbox.add(FAIL, self.root_id, 0, 0)
        self.owner.inbox.mark.is_urgent = True

    def reset_timeout(self):
        """Give it the whole time again, at the next turn."""
        self.owner.inbox.add(RESET_TIMEOUT, self.root_id, 0, 0)

    @cython.critical_section
    cdef bint add_part(self, HandleBase parent, int64_t tuple_id) except -1:
        """Count another part, whose tuple id its parent has emitted; False if that has ended."""
        if parent._is_ended:
            return False
        parent.emitted ^= tuple_id
        self.parts += 1
        return True

    @cython.critical_section
    cdef int end_part(self, HandleBase part, bint is_failure, int64_t last_id) except -1:
        """Count the end of a part; return what it has been.

        If it is the last one, and something is to be run then, that is a part with the id `last_id`.
        """
        cdef int found = WAS_OPEN
        if part._is_ended:
            return 0
        part._is_ended = True
        self.parts -= 1
        self.ack_val ^= part.tuple_id ^ part.emitted
        if is_failure and not self.is_failed:
            self.is_failed = True
            found |= IS_FIRST_FAILURE
        if self.parts == 0 and not self.is_failed:
            found |= IS_LAST
            if self.last_work is not None and last_id:
                found |= HAS_LAST_WORK
                self.parts = 1
                self.ack_val ^= last_id
        return found

    @cython.critical_section
    cdef bint add_work(self, HandleBase part, work) except -1:
        if part._is_ended:
            return False
        self.last_work = (work,) if self.last_work is None else (*self.last_work, work)
        return True

    @cython.critical_section
    def take_last_work(self):
        """Return what is to be run at the end, and forget it."""
        work, self.last_work = self.last_work or (), None
        return work

    cdef int trace(self, int64_t tuple_id, made_in) except -1:
        with cython.critical_section(self):
            if self.handles is None:
                self.handles = {}
        self.handles[tuple_id] = made_in
        return 0


cdef class HandleBase:
    """A part of the work for a message, which ends once: what `Handle` does for each of them."""

    cdef readonly TreeBase _tree
    cdef readonly bint _is_ended
    cdef readonly bint _is_entered
    cdef unsigned long handed_over_by
    cdef int instruction
    cdef int64_t tuple_id
    cdef int64_t emitted
    cdef object code  # where it was made: a code object, or a text
    cdef object outside  # what the code of its block worked for outside of it
    cdef object _before  # the same for jobs

    # The class of children.
    _child_type = None

    @property
    def _made_in(self):
        return self.code if isinstance(self.code, str) else (self.code, self.instruction)

    @_made_in.setter
    def _made_in(self, made_in):
        if isinstance(made_in, str):
            self.code = made_in
        else:
            self.code, self.instruction = made_in

    @property
    def _is_handed_over(self):
        return self.handed_over_by != 0

    cdef int check_process(self) except -1:
        if self._tree.owner.process != THIS_PROCESS.id:
            self._refuse_fork()
        return 0

    def child(self):
        """Return a new part of the work, which has to end before the message is acked.

        Make it before this handle ends.

        Raises
        ------
        TupleStateError
            This handle has ended: the message may be acked already.
        """
        cdef PyObject* frame = running_frame()
        if frame is NULL:
            raise RuntimeError("no Python code calls this")
        return self.child_in(<object>frame)

    def _child(self, frame):
        """Return a new child, made in a frame."""
        return self.child_in(frame)

    cdef HandleBase child_in(self, frame):
        cdef TreeBase tree = self._tree
        self.check_process()
        cdef int64_t tuple_id = tree.owner.draw()
        if not tree.add_part(self, tuple_id):
            self._refuse_ended()
        if tree.owner.trace:
            code = self._stack_of(frame)
            tree.trace(tuple_id, code)
            return self.new_child(tuple_id, code, 0)
        return self.new_child(tuple_id, code_of(frame), instruction_of(frame))

    def submit(self, executor, work, /, *args, **kwargs):
        """Let an executor do a part of the work: a child that ends with the call.

        The child is acked when the call returns, and fails the message when it raises or is cancelled. A pool of
        threads skips the call if the message is over by then. On a message outside a ``with`` block, the call is the
        message's own part, and not a child; so there may be one such call.

        Parameters
        ----------
        executor : concurrent.futures.Executor
            A pool of processes is possible too: handles stay in this process. When the pool breaks, since one of its
            processes was killed, no message fails: open ones go back to the broker, and the loop over messages raises
            `concurrent.futures.BrokenExecutor`.
        work : callable
        *args, **kwargs
            Its arguments.

        Returns
        -------
        Future

        Raises
        ------
        ArgumentTypeError
            A call of `work` would not run it: it is a coroutine function or has a ``yield``.
        TupleStateError
            This handle has ended; or it is the second call outside a block, and the message fails.
        """
        cdef HandleBase part
        cdef PartCall call
        if not is_plain_function(work):
            self._refuse_unrun(work)
        part = self.part_of_caller()
        try:
            if type(executor) is ThreadPoolExecutor:
                call = new_call(part, executor, work, args, kwargs)
                future = executor.submit(call)
                end = call.end
            elif has_threads_of_this_interpreter(executor):
                future = executor.submit(new_call(part, executor, work, args, kwargs))
                end = part._end_of(work)  # such a pool may call again, or raise although the call has returned
            else:
                future = executor.submit(work, *args, **kwargs)
                end = part._end_of(work)
        except BaseException as error:
            part._end_by(error, is_logged=False)  # whoever called this gets it
            raise
        future.add_done_callback(end)
        return future

    cdef HandleBase part_of_caller(self):
        """Return the handle that a call has to end."""
        cdef PyObject* frame = running_frame()
        if frame is NULL:
            raise RuntimeError("no Python code calls this")
        if self._is_entered and value_of(HANDLE_VARIABLE) is None:
            return self.child_in(<object>frame)
        return self._part(<object>frame)

    cdef HandleBase new_child(self, int64_t tuple_id, code, int instruction):
        made = <HandleBase?>blank(self._child_type, HandleBase, NO_ARGUMENTS)
        made._tree = self._tree
        made.tuple_id = tuple_id
        made.code = code
        made.instruction = instruction
        return made

    def _hand_over(self):
        """Let a call or a coroutine end this; return whether it may, and whether this thread said so before."""
        cdef unsigned long me = PyThread_get_thread_ident()
        with cython.critical_section(self._tree):
            is_first = not self._is_ended and not self.handed_over_by
            is_sibling = self.handed_over_by == me
            self.handed_over_by = self.handed_over_by or me
        return is_first, is_sibling

    def _add_last_work(self, work):
        """Let the tree run something at its end; return whether this has not ended."""
        return self._tree.add_work(self, work)

    def _end_done(self):
        """End: this part is done. Return whether it had not ended."""
        return self.end_done()

    cdef bint end_done(self) except -1:
        cdef TreeBase tree = self._tree
        cdef int found
        self.check_process()
        cdef int64_t last_id = 0 if tree.last_work is None else tree.owner.draw()
        found = tree.end_part(self, False, last_id)
        if tree.handles is not None:
            tree.handles.pop(self.tuple_id, None)
        if found & IS_LAST and tree.attempt.is_open():
            if found & HAS_LAST_WORK:
                self.new_child(last_id, self.code, self.instruction)._run_last()
            else:
                # One message for all parts: their xor is the same, in whatever order and however combined they are
                # sent.
                tree.owner.inbox.add(OK, tree.root_id, tree.ack_val, 0)
                tree.owner.inbox.mark.call()
        return (found & WAS_OPEN) != 0

    def _end_failed(self):
        """End: this part failed. Return whether it had not ended, and whether nothing has failed the tree before."""
        cdef TreeBase tree = self._tree
        self.check_process()
        cdef int found = tree.end_part(self, True, 0)
        if tree.handles is not None:
            tree.handles.pop(self.tuple_id, None)
        return (found & WAS_OPEN) != 0, (found & IS_FIRST_FAILURE) != 0

    def __enter__(self):
        cdef TreeBase tree = self._tree
        self.check_process()
        if self.handed_over_by:
            self._refuse_if_handed_over()
        self._is_entered = True
        self.outside = value_of(VARIABLE)
        if self.outside is not tree:  # which it is for a child within the block of its message
            PyContextVar_Set(VARIABLE, tree)
        if tree.owner.jobs is not None:
            self._before = tree.owner.jobs.enter(self, tree)
        return self

    def __exit__(self, kind, error, trace):
        self.leave()
        if error is not None:
            return self._exit_by(error)
        if not self._is_ended:
            self.end_done()
        return False

    def _leave(self):
        """Let the code that follows work for what it worked for before the block."""
        self.leave()

    cdef int leave(self) except -1:
        outside, self.outside = self.outside, None
        if outside is not self._tree:
            PyContextVar_Set(VARIABLE, outside)
        if self._tree.owner.jobs is not None:
            before, self._before = self._before, None
            self._tree.owner.jobs.leave(before)
        return 0

    def __del__(self):
        if self._is_ended or self._tree is None:
            return
        # A destructor runs anywhere, also in a thread that holds a lock: so nothing here takes one. No other thread has
        # this handle any more; that two handles of a tree are lost at a time only decides which of them is reported.
        self._is_ended = True
        if self._tree.attempt.is_open():
            self._lose()


@cython.final
@cython.freelist(256)
cdef class PartCall:
    """A call in a pool of threads that ends a part: the pool calls this, and then its future calls `end`."""

    cdef HandleBase part
    cdef object pool
    cdef object given  # by the user
    cdef object work
    cdef tuple args
    cdef dict kwargs
    cdef bint is_done

    def __call__(self):
        """Do the work, unless nobody waits for it any more."""
        result = unless_over(self.part._tree, self.pool, self.work, self.args, self.kwargs)
        self.is_done = result is None or not isinstance(result, UNRUN)
        return result

    def end(self, future):
        """End the part as the call has ended, or as it was cancelled."""
        # Its arguments may be large, and the future, which refers to this, may be kept.
        given, self.given = self.given, None
        self.pool = self.work = self.args = self.kwargs = None
        if self.is_done:
            self.part.end_done()
        else:
            self.part._end_of(given)(future)


cdef bint has_threads_of_this_interpreter(executor) except -1:
    """Return whether an executor calls what it gets as it is: a pool of interpreters, of Python 3.14, pickles it."""
    if not isinstance(executor, ThreadPoolExecutor):
        return False
    return not isinstance(executor, getattr(futures, "InterpreterPoolExecutor", ()))


cdef PartCall new_call(HandleBase part, pool, work, tuple args, dict kwargs):
    cdef PartCall call = PartCall.__new__(PartCall)
    jobs = part._tree.owner.jobs
    call.part, call.pool, call.given, call.args, call.kwargs = part, pool, work, args, kwargs
    call.work = work if jobs is None else jobs.bound(part, part._tree, work)
    return call


cpdef object unless_over(TreeBase tree, pool, work, tuple args, dict kwargs):
    """Do the work unless nobody waits for it any more, as after a stop, when a pool still has a queue.

    Parameters
    ----------
    tree : TreeBase
        For which the code works meanwhile.
    pool : object
        Of this thread.
    work : callable
    args : tuple
    kwargs : dict
    """
    if not tree.attempt.is_open():
        raise CancelledError(f"{tree.attempt.delivery.key}: the message is over")
    cdef object me = PyThread_get_thread_ident()
    since_ns = monotonic_ns()
    before, outside = WORKING.get(me), value_of(VARIABLE)
    WORKING[me] = (tree, pool, since_ns)
    PyContextVar_Set(VARIABLE, tree)
    try:
        if tree.span is not None:
            return tree.owner.spans.call(tree.span, work, args, kwargs)
        return work(*args, **kwargs)
    finally:
        PyContextVar_Set(VARIABLE, outside)
        if before is None:
            del WORKING[me]
        else:
            WORKING[me] = before
        if tree.owner.steps is not None:
            tree.owner.steps.note(work, monotonic_ns() - since_ns)


cdef class TakerBase:
    """What a thread or a coroutine has taken, which each message changes.

    Attributes
    ----------
    thread : int
        Where it took its last message.
    tree : TreeBase or None
        That of this message. It refers to no handle, so handles can still be lost.
    """

    cdef public unsigned long thread
    cdef object _tree

    # Other threads look at it.

    @property
    def tree(self):
        with cython.critical_section(self):
            return self._tree

    @tree.setter
    def tree(self, tree):
        with cython.critical_section(self):
            self._tree = tree

    cdef int take(self, Attempt attempt) except -1:
        """Note the message of an attempt."""
        self.thread = PyThread_get_thread_ident()
        tree = attempt.tree
        with cython.critical_section(self):
            self._tree = tree
        return 0


@cython.final
cdef class MessageLoop:
    """Iterates over the messages of a consumer, on one thread.

    Parameters
    ----------
    owner : TreeOwner
    ready : ReadyAttempts
    take : callable
        Waits for the next attempt, and hands it out; None at the end.
    made_in : (code, int) or str
        Where messages are taken.
    types : tuple of two types
        Of trees and of messages.
    complete : callable
        Gets a message and its attempt, and returns the message, or None if user code does not get it.
    is_plain : bool
        Whether `complete` has nothing to do, unless the attempt is a job or has ended.
    taker_of : callable
        Returns what is told of each message that the calling thread takes.
    """

    cdef TreeOwner owner
    cdef ReadyAttempts ready
    cdef object take
    cdef object made_in
    cdef object tree_type
    cdef object message_type
    cdef object complete
    cdef object taker_of
    cdef TakerBase taker
    cdef bint is_plain
    cdef bint is_over

    def __init__(
        self,
        TreeOwner owner not None,
        ReadyAttempts ready not None,
        take,
        made_in,
        tuple types not None,
        complete,
        bint is_plain,
        taker_of,
    ):
        self.owner, self.ready, self.take, self.made_in = owner, ready, take, made_in
        self.tree_type, self.message_type = types
        self.complete, self.is_plain, self.taker_of = complete, is_plain, taker_of

    def __iter__(self):
        return self

    def __next__(self):
        if self.is_over:
            raise StopIteration
        if self.taker is None:
            self.taker = self.taker_of()
            self.taker.loops += 1
        try:
            message = self.next_message()
        except BaseException:
            self.close()
            raise
        if message is None:
            self.close()
            raise StopIteration
        return message

    cdef object next_message(self):
        """Return the next message; None at the end."""
        cdef Attempt attempt
        while True:
            attempt = self.ready.take_now()
            if attempt is None:
                found = self.take()
                if found is None:
                    return None
                attempt = <Attempt?>found
            if self.owner.process != THIS_PROCESS.id:
                self.owner._refuse_fork()
            message = self.owner.begin_message(attempt, self.made_in, self.tree_type, self.message_type)
            if not self.is_plain or attempt.job is not None or not attempt.is_open():
                message = self.complete(message, attempt)
                if message is None:
                    continue
            self.taker.take(attempt)
            return message

    def close(self):
        """End the iteration."""
        if not self.is_over:
            self.is_over = True
            if self.taker is not None:
                self.taker.leave()

    def __del__(self):
        self.close()


cdef object value_of(variable):
    """Return the value of a context variable, which has a default."""
    cdef PyObject* found = NULL
    PyContextVar_Get(variable, NULL, &found)
    if found is NULL:
        return None
    value = <object>found
    Py_DECREF(value)
    return value


def settled(dict attempts not None, const int64_t[::1] message_ids not None, const int8_t[::1] outcomes not None):
    """Return the open attempts whose trees were acked; and of those that need more, each with its tree and outcome.

    Parameters
    ----------
    attempts : dict
        By message id; completions of others are of attempts that have ended before.
    message_ids, outcomes : arrays
        Columns of completions.
    """
    cdef list acked = [], others = [], trees = []
    cdef Attempt attempt
    cdef TreeBase tree
    cdef Py_ssize_t place
    for place in range(message_ids.shape[0]):
        found = attempts.get(message_ids[place])
        if found is None:
            continue
        attempt = <Attempt?>found
        if not attempt.leave_tree(trees):
            continue
        tree = trees.pop()
        if outcomes[place] == OUTCOME_ACKED and (tree is None or (tree.span is None and tree.remote is None)):
            acked.append(attempt)
        else:
            others.append((attempt, tree, outcomes[place]))
    return acked, others


def offer_first(deliveries not None, Py_ssize_t start, dict attempts not None, ids, int64_t now_ns, offer):
    """Let attempts at first deliveries be handed out; return the place of the first that is no such one, or the end.

    Parameters
    ----------
    deliveries : sequence of Delivery
    start : int
        From there on.
    attempts : dict
        Gets them, by message id.
    ids : iterator of int
    now_ns : int
    offer : callable
    """
    cdef Attempt attempt
    cdef DeliveryBase delivery
    cdef Py_ssize_t place
    for place in range(start, len(deliveries)):
        given = deliveries[place]
        if not isinstance(given, DeliveryBase) or (<DeliveryBase>given).attempt > 1:
            return place
        delivery = <DeliveryBase>given
        attempt = Attempt.__new__(Attempt)
        found = next(ids)
        attempt.message_id, attempt.delivery = found, delivery
        attempt.number = attempt.tries = 1
        attempt.since_ns, attempt._state = now_ns, "ready"
        attempts[found] = attempt
        offer(attempt)
    return len(deliveries)


def finish(list attempts not None, int64_t now_ns, record_all):
    """Let attempts be done, and record how long each took."""
    cdef Attempt attempt
    cdef Py_ssize_t place = 0
    spent_ns = np.empty(len(attempts), np.int64)
    cdef int64_t[::1] spent = spent_ns
    for each in attempts:
        attempt = <Attempt?>each
        spent[place] = now_ns - attempt.since_ns
        place += 1
        attempt.set_state("done")
    record_all(spent_ns)


def forget(dict attempts not None, list ended not None):
    """End attempts that nobody works on, and remove them from those of the process."""
    cdef Attempt attempt
    for each in ended:
        attempt = <Attempt?>each
        attempt.set_state("ended")
        attempts.pop(attempt.message_id, None)


def deliveries_to_ack(list attempts not None):
    """Return the deliveries of attempts."""
    cdef Attempt attempt
    cdef list deliveries = []
    for each in attempts:
        attempt = <Attempt?>each
        deliveries.append(attempt.delivery)
    return deliveries


def receipts_of(deliveries not None):
    """Return the receipt of each run of deliveries with the same receipt."""
    cdef list receipts = []
    cdef DeliveryBase delivery
    receipt = None
    for each in deliveries:
        delivery = <DeliveryBase?>each
        if not receipts or delivery.receipt is not receipt:
            receipt = delivery.receipt
            receipts.append(receipt)
    return receipts


def offsets_by_receipt(deliveries not None):
    """Return the offsets of deliveries of Kafka: a receipt and a list of them, for each run with the same receipt."""
    cdef list runs = [], offsets = None
    cdef DeliveryBase delivery
    receipt = None
    for each in deliveries:
        delivery = <DeliveryBase?>each
        if offsets is None or delivery.receipt is not receipt:
            receipt, offsets = delivery.receipt, []
            runs.append((receipt, offsets))
        offsets.append(delivery.offset)
    return runs


def deliveries_of(list messages not None, int64_t first, receipt, kind):
    """Return the first deliveries of messages of Kafka, which make their keys and headers themselves.

    Parameters
    ----------
    messages : list of Message
        Their offsets follow each other.
    first : int
        The offset of the first message.
    receipt : object
    kind : type
        A subclass of `DeliveryBase`.
    """
    cdef list made = []
    cdef DeliveryBase delivery
    for message in messages:
        delivery = <DeliveryBase?>blank(kind, DeliveryBase, NO_ARGUMENTS)
        delivery.value = message.value() or b""
        delivery.attempt, delivery.raw, delivery.receipt = 1, message, receipt
        delivery.offset = first + len(made)
        made.append(delivery)
    return made


def run_of(list messages not None, Py_ssize_t start, bint is_one_topic):
    """Return where the run ends that begins at a message of Kafka, its first offset, and its latest timestamp in ms.

    A run has messages of one partition whose offsets follow each other, and no errors: at one, it ends where it begins.
    If all messages are of one topic, none is asked for its own.
    """
    cdef Py_ssize_t end = start
    cdef int64_t offset = -1, latest_ms = -1, partition = -1
    topic = None
    for end in range(start, len(messages)):
        message = messages[end]
        if message.error() is not None:
            break
        if end == start:
            topic, partition, offset = message.topic(), message.partition(), message.offset()
        elif (
            <int64_t>message.offset() != offset + (end - start)
            or <int64_t>message.partition() != partition
            or (not is_one_topic and message.topic() != topic)
        ):
            break
        latest_ms = max(latest_ms, <int64_t>message.timestamp()[1])
    else:
        end = len(messages)
    return end, offset, latest_ms
