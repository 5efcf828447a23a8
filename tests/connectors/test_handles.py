"""Handles: each ends once, children keep a message open, and a lost one fails it."""

import asyncio
import contextlib
import gc
import itertools
import logging
import multiprocessing
import os
import pickle
import sys
import threading
import weakref
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

from acker import ArgumentTypeError, IdGenerator, ReferenceAcker, TupleStateError
from acker._engine.protocol import Outcome
from acker._handles import Inbox, WakeMark, finish, forget, settled
from acker.connectors import Delivery
from acker.connectors.attempts import Attempt
from acker.connectors.handles import Child, Message, MessageTree, Owner
from acker.connectors.options import FinalErrors
from acker.observe.calls import line_of_error

LOGGER = logging.getLogger("acker.connectors")
ATTEMPT = Attempt(7, Delivery("jobs#7", b"a", {}, 1, None, None), 1, 1, 0, state="open")


class ConsumerOfNothing(Owner):
    """A consumer without a source: what is in its inbox goes to the reference acker."""

    def __init__(self, *, trace=False, ids=None):
        self.mark = WakeMark()
        super().__init__(IdGenerator() if ids is None else ids, self.mark, trace)
        self.logger = LOGGER
        self.source_name = "jobs"
        self.final_errors = FinalErrors()
        self.spans = None
        self.steps = None
        self.lock = threading.Lock()
        self.stops = False
        self.acker = ReferenceAcker()

    @property
    def is_stopping(self):
        return self.stops

    def wake_unlocked(self):
        self.mark.is_urgent = True

    def break_off(self, fault):
        self.broken_by = fault

    def message(self, value=b"a b"):
        attempt = Attempt(7, Delivery("jobs#7", value, {"n": 1}, 2, "raw", None), 2, 1, 0, state="open")
        code = self.message.__func__.__code__
        message = self.begin_message(attempt, (code, 0), MessageTree, Message)
        message.value = value
        return message

    def outcomes(self):
        columns = self.inbox.take()
        done = self.acker.ingest(*columns) if columns else None
        return [] if done is None else [Outcome(outcome).name for outcome in done.outcome.tolist()]


@pytest.fixture
def owner():
    return ConsumerOfNothing()


def test_a_message_shows_its_delivery(owner):
    message = owner.message()
    assert (message.value, message.key, message.headers, message.attempt) == (b"a b", "jobs#7", {"n": 1}, 2)
    assert message.raw == "raw" and message.alive
    assert repr(message) == "<Message of jobs#7, attempt 2, open>"
    message.ack()
    assert "ended" in repr(message)


def test_a_message_without_children_is_acked_at_once(owner):
    with owner.message() as message:
        assert owner.outcomes() == []
    assert owner.outcomes() == ["ACKED"]
    assert message._tree.parts == 0


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_order_of_the_ends_does_not_matter(order):
    owner = ConsumerOfNothing()
    message = owner.message()
    child = message.child()
    handles = [message, child, child.child()]
    for place in order[:-1]:
        handles[place].ack()
        assert owner.outcomes() == []
    handles[order[-1]].ack()
    assert owner.outcomes() == ["ACKED"]


def test_only_an_end_that_may_end_the_tree_wakes_the_acker(owner):
    message = owner.message()
    children = [message.child() for _ in range(10)]
    message.ack()
    for child in children[:-1]:
        child.ack()
    assert not owner.mark.is_urgent
    children[-1].ack()
    assert owner.mark.is_urgent and owner.outcomes() == ["ACKED"]


def test_one_failure_fails_the_message_at_once_with_the_first_reason(owner):
    message = owner.message()
    first, second = message.child(), message.child()
    first.fail(LookupError("no lamp"))
    assert owner.outcomes() == ["FAILED"]
    second.fail("later")
    message.ack()
    assert message._tree.reason == "LookupError: no lamp"


def test_a_handle_ends_once(owner):
    message = owner.message()
    message.ack()
    for end in (message.ack, message.fail, message.child):
        with pytest.raises(TupleStateError, match=r"jobs#7.*ended"):
            end()
    assert owner.outcomes() == ["ACKED"]


def test_a_block_ends_a_handle_unless_it_has_ended(owner):
    with owner.message() as message:
        message.ack()
    assert owner.outcomes() == ["ACKED"]


def test_an_exception_in_a_block_is_logged_and_goes_no_further(owner, caplog):
    with owner.message() as message:
        raise LookupError("no lamp")
    assert owner.outcomes() == ["FAILED"] and message._tree.reason == "LookupError: no lamp"
    assert "attempt 2 of jobs#7 failed" in caplog.text and "no lamp" in caplog.text


@pytest.mark.parametrize("fault", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_ends_a_program_ends_the_message_and_goes_on(owner, fault):
    with pytest.raises(fault), owner.message() as message:
        raise fault
    assert owner.outcomes() == ["FAILED"] and message._tree.goes_back


def test_a_cancellation_goes_on_where_an_event_loop_runs_and_fails_the_message_elsewhere(owner):
    async def block():
        with owner.message():
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(block())
    with owner.message() as message:
        raise asyncio.CancelledError
    assert owner.outcomes() == ["FAILED", "FAILED"] and not message._tree.goes_back


def test_of_a_failure_and_the_end_of_the_program_the_first_counts(owner):
    message = owner.message()
    message.child().fail("no lamp")
    with pytest.raises(SystemExit), message:
        raise SystemExit
    assert message._tree.reason == "no lamp" and not message._tree.goes_back


def test_of_two_threads_that_end_a_handle_one_does(owner):
    for _ in range(200):
        message = owner.message()
        barrier, refused = threading.Barrier(2), []

        def end(message=message, barrier=barrier, refused=refused):
            barrier.wait()
            try:
                message.ack()
            except TupleStateError:
                refused.append(1)

        threads = [threading.Thread(target=end) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert refused == [1] and owner.outcomes() == ["ACKED"]


def test_threads_make_children_of_one_handle(owner):
    message = owner.message()
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: [message.child() for _ in range(200)], range(8)))
    assert message._tree.parts == 1601
    message.ack()
    children = [child for some in made for child in some]
    for child in children[:-1]:
        child.ack()
    assert owner.outcomes() == []
    children[-1].ack()
    assert owner.outcomes() == ["ACKED"]


def test_nothing_is_sent_for_a_message_that_is_over(owner):
    message = owner.message()
    child = message.child()
    owner.inbox.take()
    message._tree.attempt.state = "ended"
    assert not message.alive and not child.alive
    assert "over" in repr(child)
    child.reset_timeout()
    child.ack()
    message.fail("late")
    assert owner.inbox.take() is None


# ---- lost handles ---------------------------------------------------------------------------------------------------


def test_a_lost_handle_fails_its_message_and_names_its_place(owner):
    with owner.message() as message:
        message.child()
        line = test_a_lost_handle_fails_its_message_and_names_its_place.__code__.co_firstlineno + 2
    gc.collect()
    assert owner.outcomes() == ["FAILED"]
    assert message._tree.lost == f"{__file__}:{line}"
    assert f"test_handles.py:{line}" in message._tree.reason


def test_a_handle_that_ended_is_not_lost(owner):
    with owner.message() as message:
        with message.child():
            pass
        child = message.child()
        child.fail("no")
        del child
    gc.collect()
    assert message._tree.lost is None


def test_a_tracing_owner_knows_the_stack_of_each_open_handle():
    owner = ConsumerOfNothing(trace=True)
    message = owner.message()

    def deep():
        return message.child()

    child = deep()
    (place,) = message._tree.handles.values()
    assert "in deep" in place and "test_a_tracing_owner" in place
    child.ack()
    assert message._tree.handles == {}
    message.ack()


# ---- executors ------------------------------------------------------------------------------------------------------


def test_a_call_is_a_child_within_a_block(owner):
    go = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        with owner.message() as message:
            future = message.submit(pool, go.wait, 60)
        assert owner.outcomes() == []
        go.set()
        assert future.result() is True
    assert owner.outcomes() == ["ACKED"]


def test_a_call_takes_a_message_that_is_outside_a_block(owner):
    go, has_child = threading.Event(), threading.Event()

    def work(message):
        message.submit(pool, go.wait, 60)  # a child
        has_child.set()

    message = owner.message()
    with ThreadPoolExecutor(2) as pool:
        message.submit(pool, work, message)
        for wrong in (message.ack, message.__enter__):
            with pytest.raises(TupleStateError, match="a call of submit or spawn has taken it"):
                wrong()
        assert has_child.wait(60)
        assert owner.outcomes() == []
        go.set()
    assert owner.outcomes() == ["ACKED"]


def test_a_second_call_outside_a_block_is_refused_and_fails_the_message(owner):
    """Else the message would be acked if the first call ends before the second one begins."""
    go = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        message = owner.message()
        message.submit(pool, go.wait, 60)
        with pytest.raises(TupleStateError, match="enter its block"):
            message.submit(pool, go.wait, 60)
        go.set()
    assert owner.outcomes() == ["FAILED"] and "more than once" in message._tree.reason


def test_a_call_that_raises_fails_the_message(owner, caplog):
    with ThreadPoolExecutor(1) as pool, owner.message() as message:
        future = message.submit(pool, int, "x")
        assert isinstance(future.exception(), ValueError)
    assert owner.outcomes() == ["FAILED"] and "ValueError" in message._tree.reason
    assert "invalid literal" in caplog.text


def test_a_call_that_is_cancelled_fails_the_message(owner):
    go = threading.Event()
    pool = ThreadPoolExecutor(1)
    pool.submit(go.wait, 60)
    with owner.message() as message:
        message.submit(pool, int)
        pool.shutdown(wait=False, cancel_futures=True)
    assert owner.outcomes() == ["FAILED"] and message._tree.reason == "CancelledError"
    go.set()
    pool.shutdown()


def test_a_pool_that_is_closed_fails_the_message(owner):
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    with owner.message() as message:
        message.submit(pool, int)
    assert owner.outcomes() == ["FAILED"] and "shutdown" in message._tree.reason


def test_a_pool_of_processes_does_the_work(owner):
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool, owner.message() as message:
        assert message.submit(pool, abs, -3).result() == 3
        failed = message.submit(pool, int, "x")
        assert isinstance(failed.exception(), ValueError)
    assert owner.outcomes() == ["FAILED"]


def test_a_call_without_its_pool_says_what_to_write(owner):
    for work in (print, len, lambda value: value):
        with owner.message() as message:
            message.submit(work, "x")
        assert "got str for the callable: write message.submit(pool, work, *args)" in message._tree.reason
    assert owner.outcomes() == ["FAILED"] * 3


def test_a_call_that_returns_a_coroutine_has_not_done_the_work(owner, caplog):
    async def work():
        raise AssertionError("nobody runs this")

    def begin():
        return work()

    with ThreadPoolExecutor(1) as pool, owner.message() as message:
        message.submit(pool, begin)
    assert owner.outcomes() == ["FAILED"] and "use message.spawn" in message._tree.reason
    assert "a coroutine: no pool runs it" in caplog.text


def test_a_call_that_returns_a_generator_has_not_done_the_work(owner, caplog):
    with ThreadPoolExecutor(1) as pool, owner.message() as message:
        message.submit(pool, lambda: generator(None))
    assert owner.outcomes() == ["FAILED"] and "the call returned generator, a generator" in message._tree.reason


def test_an_exception_after_the_ack_of_a_part_is_logged_as_an_error(owner, caplog):
    with owner.message() as message:
        part = message.child()
        with part:
            part.ack()
            raise ValueError("no sofa is left")
    (record,) = caplog.records
    assert owner.outcomes() == ["ACKED"] and record.levelno == logging.ERROR and record.exc_info is not None
    text = f"a part of {message.key} was acked before its handler raised ValueError: no sofa is left, in test_handles"
    assert record.getMessage().startswith(text)


def generator(_):
    yield


async def coroutine(_):
    pass


async def async_generator(_):
    yield


class Yielding:
    def __call__(self, _):
        yield


@pytest.mark.parametrize(
    ("work", "text"),
    [
        (generator, "generator is a generator function: its call runs none of its lines"),
        (partial(generator, 1), "generator is a generator function"),
        (Yielding(), "Yielding is a generator function"),
        (async_generator, "async_generator is an async generator function"),
        (coroutine, "coroutine is a coroutine function"),
    ],
)
def test_work_that_a_call_would_not_run_is_refused(owner, work, text):
    message = owner.message()
    with ThreadPoolExecutor(1) as pool, pytest.raises(ArgumentTypeError, match=f"submit: {text}"):
        message.submit(pool, work, message)
    with pytest.raises(ArgumentTypeError, match=f"on_done: {text}"):
        message.on_done(work, message)
    assert owner.outcomes() == []
    message.ack()


def test_a_handle_cannot_go_to_another_process(owner):
    with owner.message() as message, pytest.raises(ArgumentTypeError, match="a handle stays in its process"):
        pickle.dumps(message)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool, owner.message() as message:
        assert isinstance(message.submit(pool, repr, message.child()).exception(), ArgumentTypeError)
    assert "FAILED" in owner.outcomes()


# ---- coroutines -----------------------------------------------------------------------------------------------------


def test_coroutines_of_a_message_and_their_coroutines_keep_it_open(owner):
    async def main():
        gate = asyncio.Event()
        ended = []

        async def leaf():
            await gate.wait()
            ended.append("leaf")

        async def branch(message):
            message.spawn(leaf())
            ended.append("branch")

        message = owner.message()
        message.spawn(branch(message))
        while ended != ["branch"]:
            await asyncio.sleep(0)
        for _ in range(5):
            await asyncio.sleep(0)
        assert owner.outcomes() == []
        gate.set()
        while len(ended) < 2 or message._tree.tasks:
            await asyncio.sleep(0)
        assert owner.outcomes() == ["ACKED"]

    asyncio.run(main())


def test_a_coroutine_that_raises_fails_the_message(owner, caplog):
    async def main():
        async def work():
            raise LookupError("no lamp")

        task = owner.message().spawn(work())
        await asyncio.wait([task])
        await asyncio.sleep(0)

    asyncio.run(main())
    assert owner.outcomes() == ["FAILED"] and "no lamp" in caplog.text


def test_a_cancelled_coroutine_fails_the_message(owner):
    async def main():
        task = owner.message().spawn(asyncio.sleep(3600))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(0)

    asyncio.run(main())
    assert owner.outcomes() == ["FAILED"]


def test_the_coroutines_of_a_message_that_is_over_are_cancelled(owner):
    async def main():
        with owner.message() as message:
            tasks = [message.spawn(asyncio.sleep(3600)), message.spawn(asyncio.sleep(3600))]
        await asyncio.sleep(0)
        message._tree.attempt.state = "ended"
        await asyncio.to_thread(message._tree.cancel)
        await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks)

    asyncio.run(main())


def test_a_coroutine_of_a_message_that_is_over_already_is_cancelled(owner):
    async def main():
        message = owner.message()
        message._tree.attempt.state = "ended"
        message._tree.cancel()
        task = message.spawn(asyncio.sleep(3600))
        await asyncio.wait([task])
        assert task.cancelled() and task.cancelling() == 1

    asyncio.run(main())


def test_a_coroutine_that_no_handle_can_take_is_closed(owner):
    async def main():
        with owner.message() as message:
            pass
        work = asyncio.sleep(3600)
        with pytest.raises(TupleStateError, match="has ended"):
            message.spawn(work)
        assert work.cr_frame is None  # so Python does not warn that it was never awaited

    asyncio.run(main())


def test_a_spawn_without_a_loop_fails_the_message(owner):
    async def work():
        pass

    with owner.message() as message:
        message.spawn(work())
    assert owner.outcomes() == ["FAILED"]
    assert "no running event loop: make the handler an async def, for Consumer.run_async" in message._tree.reason
    assert "message.submit(pool, work, *args)" in message._tree.reason


# ---- forks ----------------------------------------------------------------------------------------------------------


def test_a_forked_process_cannot_end_a_message(owner):
    message = owner.message()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            message.ack()
        except BaseException as fault:  # noqa: BLE001
            os.write(write, f"{type(fault).__name__}: {fault}".encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as told:
        assert told.read().startswith("ForkedError: this message was held")
    os.waitpid(child, 0)
    message.ack()
    assert owner.outcomes() == ["ACKED"]


@pytest.mark.parametrize("reason", [(), (None,), ("",), (" \n",)])
def test_a_failure_without_a_reason_names_the_line_of_the_call(owner, reason):
    message = owner.message()
    child = message.child()
    assert isinstance(child, Child)
    line = sys._getframe().f_lineno + 1
    child.fail(*reason)
    assert child._tree.reason == f"no reason was given to fail(), in {__file__}:{line}"


def test_a_pool_skips_calls_for_a_message_that_is_over(owner):
    go, done = threading.Event(), []
    with ThreadPoolExecutor(1) as pool:
        pool.submit(go.wait, 60)
        with owner.message() as message:
            future = message.submit(pool, done.append, 1)
        message._tree.attempt.state = "ended"
        go.set()
    assert done == [] and "jobs#7: the message is over" in str(future.exception())


@pytest.mark.parametrize(("checked", "outcome"), [(False, "ACKED"), (True, "FAILED")])
def test_a_pool_of_ones_own_decides_how_often_a_call_runs_and_how_it_ends(owner, checked, outcome):
    class Pool(ThreadPoolExecutor):
        def submit(self, fn, /, *args, **kwargs):
            return super().submit(self.repeat, fn, *args, **kwargs)

        def repeat(self, fn, *args, **kwargs):
            with contextlib.suppress(ValueError):
                fn(*args, **kwargs)
            fn(*args, **kwargs)
            if checked:
                raise LookupError("it came too late")

    def work(item):
        done.append(item)
        if len(done) == 1:
            raise ValueError("not yet")

    done = []
    with Pool(1) as pool, owner.message() as message:
        message.submit(pool, work, "a")
    assert owner.outcomes() == [outcome] and done == ["a", "a"]


def test_a_future_that_is_kept_keeps_neither_the_call_nor_its_arguments(owner):
    class Large:
        pass

    go = threading.Event()
    pool = ThreadPoolExecutor(1)
    pool.submit(go.wait, 60)
    large = Large()
    kept = weakref.ref(large)
    with owner.message() as message:
        futures = [message.submit(pool, id, large), message.submit(pool, id, large)]
        assert futures[1].cancel()
        del large
        go.set()
        pool.shutdown()
    assert kept() is None and futures[0].done()


# ---- the native half ------------------------------------------------------------------------------------------------


def test_an_error_is_told_at_the_line_of_the_program_and_not_of_the_native_half(owner):
    message = owner.message()
    message.ack()
    with pytest.raises(TupleStateError) as raised:
        message.child()
    assert line_of_error(raised.value) == (__file__, sys._getframe().f_lineno - 1, sys._getframe().f_code.co_qualname)


def test_a_failure_that_the_acker_does_not_know_of_yet_keeps_the_last_part_from_acking(owner):
    """Another thread may end the last part between the failure of one and its message to the acker."""
    message = owner.message()
    child = message.child()
    assert child._end_failed() == (True, True)
    message.ack()
    assert owner.outcomes() == []
    message._tree.post_failure()
    assert owner.outcomes() == ["FAILED"]


def test_the_inbox_keeps_what_comes_while_its_columns_are_taken(owner):
    messages = [owner.message() for _ in range(1000)]
    with ThreadPoolExecutor(4) as pool:
        ends = [pool.submit(message.ack) for message in messages]
        outcomes = []
        while len(outcomes) < len(messages):
            outcomes += owner.outcomes()
        for end in ends:
            end.result()
    assert outcomes == ["ACKED"] * len(messages) and owner.inbox.take() is None


@pytest.mark.parametrize("kind", [Message, Child])
def test_a_handle_that_no_tree_has_made_raises_and_does_not_crash(kind):
    handle = kind()
    for use in (handle.child, handle.ack, handle.__enter__, handle._leave, handle._end_failed):
        with pytest.raises(AttributeError, match="NoneType"):
            use()


def test_a_tree_that_no_owner_has_made_raises_and_does_not_crash():
    tree = MessageTree()
    for use in (lambda: tree.alive, tree.post_failure, tree.post_failure_quietly, tree.reset_timeout):
        with pytest.raises(AttributeError, match="NoneType"):
            use()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((7, ("x", 0), MessageTree, Message), "Attempt"),
        ((None, ("x", 0), MessageTree, Message), "None"),
        ((ATTEMPT, ("x", 0), int, Message), "expected a subclass of .*TreeBase"),
        ((ATTEMPT, ("x", 0), MessageTree, None), "expected a subclass of .*HandleBase"),
        ((ATTEMPT, ("x", "y"), MessageTree, Message), "int"),
    ],
)
def test_an_owner_makes_messages_of_attempts_only(owner, arguments, why):
    with pytest.raises(TypeError, match=why):
        owner.begin_message(*arguments)
    assert owner.inbox.take() is None


def test_an_inbox_needs_the_mark_of_its_thread():
    with pytest.raises(TypeError, match="None"):
        Inbox(None)
    with pytest.raises(AttributeError, match="NoneType"):
        Owner.__new__(Owner).begin_message(ATTEMPT, ("x", 0), MessageTree, Message)


def test_only_attempts_are_settled():
    one = np.ones(1, np.int64), np.ones(1, np.int8)
    for call in (lambda: settled({1: "x"}, *one), lambda: finish(["x"], 0, print), lambda: forget({}, ["x"])):
        with pytest.raises(TypeError, match="Attempt"):
            call()
    assert settled({}, *one) == ([], [])
