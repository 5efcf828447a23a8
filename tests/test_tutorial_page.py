"""The programs of the tutorial, in processes of their own, with a real queue: what they print, and after a kill."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pika
import pytest

from blocks import ROOT, blocks_of
from tests.servers import PATIENCE_SECS

pytestmark = pytest.mark.repository

BLOCKS = [
    block for block in blocks_of(ROOT / "docs/tutorial.md") if block.note == "run by: tests/test_tutorial_page.py"
]
PROGRAMS = ("shop.py", "order.py")  # in the order of the page
QUEUE = "orders of the tutorial"


@pytest.fixture
def folder(rabbitmq, tmp_path):
    """The programs in a folder, as the page has them but for the address and the queue."""
    programs = [block.body for block in BLOCKS if block.language == "python"]
    for name, code in zip(PROGRAMS, programs, strict=True):
        assert code.count('"amqp://localhost"') == code.count('"orders"') == 1
        program = code.replace('"amqp://localhost"', repr(rabbitmq.url)).replace('"orders"', repr(QUEUE))
        (tmp_path / name).write_text(program, encoding="utf-8")
    yield tmp_path
    with pika.BlockingConnection(pika.URLParameters(rabbitmq.url)) as connection:
        connection.channel().queue_delete(QUEUE)


@contextmanager
def shop(folder) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "shop.py"]  # each line is one write, unlike with -u
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def told(block) -> list[tuple[str, list[str]]]:
    """Return each command of a console block and the lines below it."""
    _, *parts = f"\n{block.body}".split("\n$ ")
    return [(lines[0], lines[1:]) for lines in (part.strip().splitlines() for part in parts)]


def order(folder, command: str) -> None:
    program, *items = command.split()[1:]
    done = subprocess.run([sys.executable, program, *items], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout == "ordered\n"


def lines(process, expected: list[str]) -> None:
    """Read as many lines as the page has; threads print them in any order, and may come between a line and its end."""
    printed = left = "".join(process.stdout.readline().strip() for _ in expected)
    for line in sorted(expected, key=len, reverse=True):
        assert line in left, printed
        left = left.replace(line, "", 1)
    assert not left, printed


def test_the_shop_packs_fails_and_is_killed_as_the_page_says(folder) -> None:
    parts, failure, kill = (told(block) for block in BLOCKS if block.language == "console")
    with shop(folder) as process:
        for ((command, printed),) in (parts, failure):
            order(folder, command)
            lines(process, printed)
        letters = folder / "dead-letters.jsonl"
        end = time.monotonic() + PATIENCE_SECS
        while not (letters.exists() and letters.read_text(encoding="utf-8")):
            assert time.monotonic() < end and process.poll() is None
        letter = json.loads(letters.read_text(encoding="utf-8"))
        assert letter["value"] == '["sofa"]'
        assert "LookupError: no sofa is left" in letter["headers"]["acker-reason"]
        (command, printed), (again, printed_again) = kill
        order(folder, command)
        lines(process, printed)
        process.kill()
    assert again == "python shop.py"
    with shop(folder) as process:
        lines(process, printed_again)
