"""Runs the example of a page about a broker: a consumer without an end."""

from __future__ import annotations

import contextlib
import io
import threading
import time
from collections.abc import Callable

from blocks import ROOT, Block, blocks_of

LONG = 60.0


def programs_of(page: str, test: str) -> list[Block]:
    """Return the blocks of a page that this test runs."""
    found = [block for block in blocks_of(ROOT / "docs" / page) if block.note == f"run by: {test}"]
    assert found, f"{page} has no block that {test} runs"
    return found


def run(block: Block, replacements: dict[str, str]) -> dict[str, object]:
    """Run a block of a page, with other addresses; return its names."""
    names = {"__name__": "docs"}
    exec(_compiled(block, replacements), names)
    return names


def run_consumer(block: Block, replacements: dict[str, str], is_done: Callable[[], bool]) -> list[str]:
    """Run a block whose `consumer` never ends, until the condition holds; return the lines that it prints."""
    names: dict[str, object] = {"__name__": "docs"}
    printed, faults = io.StringIO(), []

    def work() -> None:
        try:
            exec(_compiled(block, replacements), names)
        except Exception as fault:  # noqa: BLE001 - raised below
            faults.append(fault)

    with contextlib.redirect_stdout(printed):
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        end = time.monotonic() + LONG
        while not (faults or ("consumer" in names and is_done())) and time.monotonic() < end:
            time.sleep(0.02)
        if "consumer" in names:
            names["consumer"].stop()
        thread.join(LONG)
    if faults:
        raise faults[0]
    assert not thread.is_alive()
    return printed.getvalue().splitlines()


def _compiled(block: Block, replacements: dict[str, str]):
    body = block.body
    for old, new in replacements.items():
        assert old in body, f"{block.where} does not say {old!r}"
        body = body.replace(old, new)
    return compile("\n" * block.line + body, str(block.page), "exec")
