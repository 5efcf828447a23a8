"""Every example in the documents runs, and prints what stands below it."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# A block of Python and, if there is one, the block of text right behind it.
EXAMPLE = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n(?P<output>.*?)```)?", re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)(?P<target>[^)#]+)(?:#[^)]*)?\)")

pytestmark = pytest.mark.repository


def examples() -> list[tuple[str, str, str | None]]:
    found = []
    for page in PAGES:
        for number, match in enumerate(EXAMPLE.finditer(page.read_text(encoding="utf-8")), 1):
            spark = "spark" in match["code"]  # run by tests/spark/test_docs.py, where there is one
            session = match["code"].startswith(">>>")  # run by tests/test_examples.py
            if not spark and not session:
                found.append((f"{page.name}-{number}", match["code"], match["output"]))
    return found


@pytest.mark.parametrize(("name", "code", "output"), examples(), ids=[name for name, _, _ in examples()])
def test_example_runs_and_prints_what_the_page_says(name: str, code: str, output: str | None) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, name, "exec"), {"__name__": "__main__"})  # as a user runs it
    if output is not None:
        assert printed.getvalue() == output


def test_there_are_examples() -> None:
    assert len(examples()) >= 2


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name
)
def test_links_lead_somewhere(page: Path) -> None:
    for match in LINK.finditer(page.read_text(encoding="utf-8")):
        assert (page.parent / match["target"]).exists(), f"{page.name} links to {match['target']}, which is not there"
