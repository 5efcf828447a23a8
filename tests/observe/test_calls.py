"""Where the calls of user code stand that run now."""

from __future__ import annotations

import asyncio
import threading

import pytest

from acker.observe.calls import (
    Busy,
    Line,
    UserCall,
    hangs,
    line_of_user,
    stack_below_acker,
    stack_of_coroutine,
    stack_of_thread,
)
from acker.observe.reasons import reason_text


def test_the_line_of_a_hung_thread_is_the_last_one_of_user_code() -> None:
    begun, ending = threading.Event(), threading.Event()

    def charge() -> None:
        begun.set()
        ending.wait()  # in the library's own code, which tells nobody what hangs

    thread = threading.Thread(target=charge)
    thread.start()
    begun.wait()
    line = line_of_user(stack_of_thread(thread.ident))
    ending.set()
    thread.join()
    assert line is not None and line.file == __file__ and line.function.endswith("charge")
    assert line.short == f"test_calls.py:{line.line} in {line.function}"
    assert stack_of_thread(thread.ident) == stack_of_thread(None) == ()


def test_the_stack_of_a_worker_begins_with_the_code_that_acker_calls() -> None:
    begun, ending = threading.Event(), threading.Event()

    class Waits:
        def __str__(self) -> str:
            begun.set()
            ending.wait()
            return "it waited"

    def work() -> None:  # stands for the program that has started acker
        reason_text(Waits())

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    assert thread.ident is not None
    outermost, *_ = stack_below_acker(thread.ident)
    assert outermost.function.endswith("Waits.__str__")
    assert stack_of_thread(thread.ident)[0].function.endswith("work")
    ending.set()
    thread.join()
    assert stack_below_acker(thread.ident) == ()


def test_the_stack_of_a_coroutine_goes_down_to_what_it_awaits() -> None:
    async def ask(answer: asyncio.Future[None]) -> None:
        await asyncio.wait_for(answer, None)

    async def charge(answer: asyncio.Future[None]) -> None:
        await ask(answer)

    async def main() -> tuple[Line, ...]:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(charge(answer))
        await asyncio.sleep(0)
        stack = stack_of_coroutine(task.get_coro())
        answer.set_result(None)
        await task
        assert stack_of_coroutine(task.get_coro()) == ()
        return stack

    stack = asyncio.run(main())
    assert [line.function.rpartition(".")[2] for line in stack] == ["charge", "ask", "wait_for"]
    line = line_of_user(stack)
    assert line is not None and line.function.endswith("ask")


def test_a_coroutine_that_blocks_its_loop_is_found_in_the_thread() -> None:
    begun, ending = threading.Event(), threading.Event()
    tasks: list[asyncio.Task[None]] = []

    def read() -> None:
        begun.set()
        ending.wait()

    async def charge() -> None:
        read()

    async def main() -> None:
        tasks.append(asyncio.create_task(charge()))
        await tasks[0]

    thread = threading.Thread(target=asyncio.run, args=[main()])
    thread.start()
    begun.wait()
    stack = stack_of_coroutine(tasks[0].get_coro())
    ending.set()
    thread.join()
    assert stack[0].function.endswith("charge")
    line = line_of_user(stack)
    assert line is not None and line.function.endswith("read")


def test_an_installed_package_is_named_only_where_no_line_of_the_program_is() -> None:
    library, package, own = (
        Line(threading.__file__, 3, "wait"),
        Line("/x/site-packages/p.py", 2, "get"),
        Line("a.py", 1, "f"),
    )
    assert line_of_user([own, package, library]) == own
    assert line_of_user([package, library]) == package
    assert line_of_user([library]) == library and line_of_user([]) is None


def test_a_call_as_text() -> None:
    call = UserCall("packer_0", "orders/3", 90_000, "timed out", (Line("/src/pay.py", 31, "charge"),))
    assert str(call) == "packer_0 with orders/3, which timed out, for 90.0 s, at /src/pay.py:31 in charge"


@pytest.mark.parametrize(
    ("busy", "text"),
    [
        (Busy(8, 6, 6, 8, 8), "8 of 8 threads are busy, 6 with messages that timed out"),
        (Busy(1, 1, 1, 1, 0), "1 thread is busy, 1 with a message that timed out"),
        (Busy(3, 2, 1, 1, 8), "3 calls run, 1 with a message that timed out"),
        (Busy(1), "1 call runs"),
    ],
)
def test_how_busy_it_is_as_text(busy: Busy, text: str) -> None:
    assert str(busy) == text


@pytest.mark.parametrize(
    ("for_ms", "median_ms", "timeout_ms", "expected"),
    [
        (5_001, 500, 30_000, True),
        (5_000, 1, 30_000, False),  # not long
        (6_000, 600, 30_000, False),  # its calls take long
        (6_000, None, 30_000, False),  # the first call: nothing to compare with
        (15_001, None, 30_000, True),
        (15_001, 7_000, 30_000, True),
        (20_000, 19_000, 30_000, False),  # the timeout is too short for its calls, which do not hang
        (501, 1, 1_000, True),
        (500, 1, 1_000, False),
    ],
)
def test_a_call_hangs_that_takes_much_longer_than_usual_or_most_of_the_timeout(
    for_ms, median_ms, timeout_ms, expected
) -> None:
    assert hangs(for_ms, median_ms, timeout_ms) is expected
