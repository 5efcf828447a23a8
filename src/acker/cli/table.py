"""The figures of a topology as a table for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from acker.observe.summary import HEADINGS, Row, rows

if TYPE_CHECKING:
    from rich.table import Table

    from acker.observe.stats import RuntimeStats

# The colours of figures that should be 0.
_ALARMS: Final = {"failed": "red", "timed_out": "yellow"}
# Columns that a narrow terminal drops, in this order. The pending trees say most when a topology hangs.
_DROPPED: Final = ("tasks", "emitted", "executed", "timed_out", "pending")


def terminal_table(stats: RuntimeStats, title: str, caption: str | None = None, *, width: int = 120) -> Table:
    """Return the table for a terminal of this width; a narrow one drops columns."""
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    body = [row._asdict() for row in rows(stats)]
    names = _fitting(body, width)
    left: Any = {"title_justify": "left", "caption_justify": "left"}
    table = Table(
        title=escape(title), caption=caption, box=SIMPLE_HEAD, header_style="bold", padding=0, pad_edge=False, **left
    )
    for name in names:
        justify: Any = "left" if name == "component" else "right"
        table.add_column(_heading(name), justify=justify, vertical="bottom", no_wrap=True)
    for index, row in enumerate(body):
        cells = [
            f"[{_ALARMS[name]}]{row[name]}[/]" if name in _ALARMS and row[name] not in ("", "0") else escape(row[name])
            for name in names
        ]
        total, last = index == len(body) - 1, index == len(body) - 2
        style = "bold" if total else "dim" if row["component"].startswith("__") else ""
        table.add_row(*cells, style=style, end_section=last)
    return table


def _heading(name: str) -> str:
    """Return a heading, in two lines if it is wider than its column."""
    heading: str = getattr(HEADINGS, name)
    return heading.replace("timed ", "timed\n")


def _fitting(body: list[dict[str, str]], width: int) -> list[str]:
    """Return the names of the columns that fit."""
    needs = {name: max(map(len, [*_heading(name).split("\n"), *(row[name] for row in body)])) for name in Row._fields}
    for name in _DROPPED:
        if sum(needs.values()) + len(needs) + 1 <= width:
            break
        del needs[name]
    return list(needs)
