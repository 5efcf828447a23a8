"""HTML for notebooks: tables of figures, without scripts or styles of their own, so that every viewer shows them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def html_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table under a caption; numbers have separators, None is empty, and all text is escaped.

    Examples
    --------
    >>> html_table("a < b", ["n"], [[1_000]]).partition("<thead>")[0]
    '<table><caption>a &lt; b</caption>'
    """
    from html import escape  # Not with this module, which every program imports: it has a table of 2,000 names.

    def cell(value: object) -> str:
        if value is None:
            return ""
        return f"{value:,}" if isinstance(value, int) else escape(str(value))

    heads = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{cell(value)}</td>" for value in row) + "</tr>" for row in rows)
    caption = f"<caption>{escape(caption)}</caption>"
    return f"<table>{caption}<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
