"""The code on the pages: every fenced block, its kind, and the test that runs it.

Comments that no reader sees say how to run them:

    <!-- examples: one after the other -->              blocks of this page share their names
    <!-- examples: one after the other, on Spark -->    the same, with a session as `spark` and a folder as `folder`
    <!-- examples: one after the other, with a broker in memory -->    the same, with new orders for each, as `source`
    <!-- not run: REASON -->                            above a block that is not run
    <!-- run by: tests/FILE.py -->                      above a block that this test runs or compares

Blocks of other pages run one by one. A block of `text` below a block of Python is its output.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
# The pages that are read for examples. ARCHITECTURE.md and the like are pages of the site too.
PATTERNS: Final = ("*.md", "docs/*.md", "docs/api/*.md", "benchmarks/*.md", "ext/*.md", ".github/*.md")

ALONE: Final = "one by one"
TOGETHER: Final = "one after the other"
ON_SPARK: Final = "one after the other, on Spark"
WITH_MEMORY: Final = "one after the other, with a broker in memory"

_FENCE: Final = re.compile(
    r"^(?P<dent> *)(?P<fence>```+)(?P<info>[^`\n]*)\n(?P<body>.*?)^(?P=dent)(?P=fence) *$", re.DOTALL | re.MULTILINE
)
_NOTE: Final = re.compile(r"<!-- (?P<what>not run|run by): (?P<text>[^\n]+?) -->\n\n?\Z")
_EXAMPLES: Final = re.compile(r"<!-- examples: (?P<mode>[^\n]+?) -->")
_SPAN: Final = re.compile(r"(?<!`)`(?P<text>[^`\n]+)`(?!`)")


class Block(NamedTuple):
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    body: str
    note: str  # "", or what a comment above says: "not run: ..."
    prints: str | None  # the block of text below a block of Python

    @property
    def where(self) -> str:
        """Return file and line, as a test names them."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def is_session(self) -> bool:
        """Return whether it is a doctest session."""
        return self.language == "python" and self.body.lstrip().startswith(">>>")


def pages() -> list[Path]:
    """Return all pages with examples."""
    return sorted({path for pattern in PATTERNS for path in ROOT.glob(pattern)})


def mode_of(page: Path) -> str:
    """Return how the blocks of a page are run: ALONE, TOGETHER, ON_SPARK or WITH_MEMORY.

    Raises
    ------
    ValueError
        The page asks for something else.
    """
    found = _EXAMPLES.findall(page.read_text(encoding="utf-8"))
    mode = found[0] if found else ALONE
    if len(found) > 1 or mode not in (ALONE, TOGETHER, ON_SPARK, WITH_MEMORY):
        raise ValueError(f"{page.name}: examples: {', '.join(found)}")
    return str(mode)


def blocks_of(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in their order."""
    text = page.read_text(encoding="utf-8")
    matches = list(_FENCE.finditer(text))
    found = []
    for number, match in enumerate(matches):
        language = match["info"].strip()
        prints = None
        if language == "python" and number + 1 < len(matches):
            below = matches[number + 1]
            if below["info"].strip() == "text" and not text[match.end() : below.start()].strip():
                prints = below["body"]
        note = _NOTE.search(text[: match.start()])
        line = text.count("\n", 0, match.start()) + 1
        body = re.sub(rf"^{match['dent']}", "", match["body"], flags=re.MULTILINE)
        found.append(Block(page, line, language, body, f"{note['what']}: {note['text']}" if note else "", prints))
    return found


def spans_of(page: Path) -> Iterator[str]:
    """Yield the code within the sentences of a page."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    yield from (span["text"] for span in _SPAN.finditer(text))
