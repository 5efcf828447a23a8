"""A test that leaves something behind fails, and the failure names it."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading

import pytest

from tests import leftovers
from tests.leftovers import Before

pytestmark = pytest.mark.repository


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(leftovers, "PATIENCE_SECS", 0.0)


def test_nothing_is_left_of_what_has_ended():
    before = Before()
    thread = threading.Thread(target=int)
    thread.start()
    subprocess.run([sys.executable, "-c", ""], check=True)
    asyncio.run(asyncio.sleep(0))
    thread.join()
    assert before.left() == []


def test_what_ends_soon_is_waited_for():
    before = Before()
    go_on = threading.Event()
    threading.Thread(target=go_on.wait).start()
    threading.Thread(target=go_on.set).start()
    assert before.left() == []


def test_a_thread_is_named_with_the_line_that_it_stands_at(impatient):
    before = Before()
    go_on = threading.Event()
    thread = threading.Thread(target=go_on.wait, name="waits for ever")
    thread.start()
    (left,) = before.left()
    assert left.startswith("thread waits for ever at File ") and "threading.py" in left
    go_on.set()
    thread.join()


def test_a_process_is_named_by_its_command(impatient):
    before = Before()
    code = "print('runs', flush=True); input('left')"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()  # before it runs, it may still have the command line of this process
        left = before.left()
    assert [text for text in left if text.startswith(f"process {process.pid} ") and "input('left')" in text]


def test_a_descriptor_is_named_by_what_it_is_open_on(impatient, tmp_path):
    before = Before()
    with (tmp_path / "open").open("w") as file:
        left = before.left()
        number = file.fileno()
    assert left == [f"descriptor {number} on {tmp_path / 'open'}"]
    ends = os.pipe()
    assert len(before.left()) == 2
    assert Before(ignored={"pipe"}).left() == []
    for end in ends:
        os.close(end)


def test_a_loop_that_nobody_has_closed_is_left(impatient):
    before = Before()
    loop = asyncio.new_event_loop()
    assert "eventpoll" in "".join(before.left())
    loop.close()


@pytest.mark.leaves_behind("which is what it is about")
def test_an_exception_of_a_task_that_nobody_has_looked_at_is_left():
    async def fails():
        raise OSError("lost")

    async def main():
        asyncio.create_task(fails())  # noqa: RUF006
        await asyncio.sleep(0)

    gc.collect()
    before = Before()
    asyncio.run(main())
    (left,) = before.left()
    assert left.startswith("Task exception was never retrieved") and "OSError('lost')" in left
