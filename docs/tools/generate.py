"""Updates the generated parts of the pages, and their drawings: `python docs/tools/generate.py`.

This program writes what is between `<!-- generated: WHAT -->` and `<!-- end -->`, within a line or as lines:

    table RESULTS CASE...           the table of some cases of benchmarks/results/RESULTS.json
    machines RESULTS...             where and when they were measured
    value RESULTS CASE OF/TO [N]    a median ratio, with N decimals; or of a side, in its unit: value RESULTS CASE SIDE
    growth load|parts|cluster|limits
                                    what parts of a stream cost as they grow, and a cluster of them
    steps, buckets                  a run of an acker, as pictures in docs/figures and as a table

People write everything else. A test checks that the files are as this program leaves them.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import figures
import growth_tables
import results

ROOT: Final = Path(__file__).resolve().parents[2]
DRAWINGS: Final = ROOT / "docs/figures"
PAGES: Final = ("README.md", "docs/*.md")

PART: Final = re.compile(
    r"(?P<begin><!-- generated: (?P<what>[^\n]+?) -->)(?P<text>.*?)(?P<end><!-- end -->)", re.DOTALL
)


def pages() -> list[Path]:
    """Return the pages that may hold generated parts."""
    return sorted(path for pattern in PAGES for path in ROOT.glob(pattern))


def part_for(what: str) -> str:
    """Return the Markdown of a part.

    Raises
    ------
    LookupError
        No such part, results, case or side.
    """
    name, *arguments = shlex.split(what)
    makers: dict[str, Callable[..., str]] = {
        "table": results.table,
        "machines": results.machines,
        "value": results.value,
        "growth": growth_tables.part,
        "steps": figures.steps_page,
        "buckets": figures.buckets_page,
    }
    if name not in makers:
        raise LookupError(f"no part {name!r}; there are {', '.join(makers)}")
    return makers[name](*arguments)


def renew(text: str) -> str:
    """Return a page with its generated parts made anew."""

    def make(part: re.Match[str]) -> str:
        between = "\n\n" if "\n" in part["text"] else ""
        return part["begin"] + between + part_for(part["what"]) + between + part["end"]

    return PART.sub(make, text)


def files() -> dict[Path, str]:
    """Return each page with a generated part, and each drawing, as it should be."""
    made = {page: renew(text) for page in pages() if PART.search(text := page.read_text(encoding="utf-8"))}
    return made | {DRAWINGS / name: drawing for name, drawing in figures.drawings().items()}


def main() -> None:
    """Write the files that are not as they should be, and say which."""
    for path, text in files().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"{path.relative_to(ROOT)} is new", file=sys.stderr)


if __name__ == "__main__":
    main()
