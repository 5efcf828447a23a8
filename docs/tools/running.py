"""Runs the programs on the pages, and looks up the names on them, for the tests."""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Iterable
from typing import Any

from blocks import Block


def is_example(block: Block) -> bool:
    """Return whether a block is a program that this module runs."""
    return block.language == "python" and not block.is_session and not block.note


def run_blocks(code: Iterable[Block], names: dict[str, Any]) -> int:
    """Run blocks with common names, compare what they print, and return how many there were.

    Raises
    ------
    AssertionError
        A block prints something else than the page says.
    """
    ran = 0
    for block in code:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            # Lines are numbered as on the page.
            exec(compile("\n" * block.line + block.body, str(block.page), "exec"), names)
        if block.prints is not None and printed.getvalue() != block.prints:
            raise AssertionError(f"{block.where} prints\n{printed.getvalue()}and not\n{block.prints}")
        ran += 1
    return ran


def is_name(dotted: str) -> bool:
    """Return whether a dotted name can be imported, as a module or as a name in one."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        try:
            thing: Any = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for part in parts[length:]:
            if not hasattr(thing, part):
                return False
            thing = getattr(thing, part)
        return True
    return False
