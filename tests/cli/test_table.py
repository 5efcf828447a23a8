"""The figures of a topology as a table for a terminal."""

from __future__ import annotations

import io
import re

from rich.console import Console

from acker.cli.table import terminal_table
from acker.observe.summary import HEADINGS


def test_the_table_is_drawn(stats) -> None:
    console = Console(file=io.StringIO(), width=130)
    console.print(terminal_table(stats, "Word[count]", "stop with Ctrl-C"))
    text = console.file.getvalue()
    assert "Word[count]" in text and "stop with Ctrl-C" in text
    for heading in " ".join(HEADINGS).split():
        assert heading in text
    assert re.search(r"lines +1 +11 +6 +1 +2 +1 +5\.1 ms / 7\.1 ms +0\.25", text)
    coloured = Console(file=io.StringIO(), width=130, force_terminal=True, color_system="standard")
    coloured.print(terminal_table(stats, "WordCount"))
    assert "\x1b[31m1\x1b[0m" in coloured.file.getvalue(), "what failed is red"


def test_a_narrow_terminal_does_without_some_columns(stats) -> None:
    told = {}
    for width in range(56, 110):
        console = Console(file=io.StringIO(), width=width)
        console.print(terminal_table(stats, "", width=width))
        text = console.file.getvalue()
        assert "\N{HORIZONTAL ELLIPSIS}" not in text, f"cut at {width}"
        told[width] = [heading for heading in HEADINGS if heading.split()[-1] in text]
    assert told[109] == [*HEADINGS]
    assert "pending" in told[80] and set(HEADINGS) - set(told[80]) == {"tasks", "emitted"}
    assert told[56] == ["component", "acked", "failed", "p50 / p99", "capacity", "queue"]
