"""Results of benchmarks as Markdown, from benchmarks/results/*.json, so that nobody types a number."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, Final

from benchmarks.suite import report

RESULTS: Final = Path(__file__).resolve().parents[2] / "benchmarks/results"


@cache
def read_results(name: str) -> dict[str, Any]:
    """Return a file of results.

    Raises
    ------
    LookupError
        No file has that name.
    """
    path = RESULTS / f"{name}.json"
    if not path.exists():
        raise LookupError(
            f"no results {name!r}; there are {', '.join(sorted(each.stem for each in RESULTS.glob('*.json')))}"
        )
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def select(name: str, cases: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the results of cases, named as for the suite's `--only`; all of the file where none is named.

    Raises
    ------
    LookupError
        A name selects nothing.
    """
    found = read_results(name)["results"]
    for case in cases:
        if not any(_is(case, result) for result in found):
            raise LookupError(f"{name}.json has no case {case!r}")
    return [result for result in found if not cases or any(_is(case, result) for case in cases)]


def _is(case: str, result: dict[str, Any]) -> bool:
    return bool(result["case"] == case or result["case"].startswith(case + "/"))


def table(name: str, *cases: str) -> str:
    """Return the table of some cases; without the column of goals where none has one."""
    rows = [_row(line) for result in select(name, cases) for line in report.lines(result)]
    width = 4 if any(row[-1] for row in rows) else 3
    head = ["case", "", "median (quartiles)", "goal"]
    rules = ["---", "---", "--:", "---"]
    return "\n".join("| " + " | ".join(row[:width]) + " |" for row in [head, rules, *rows])


def _row(line: report.Line) -> list[str]:
    quartiles = line.quartiles.replace(" to ", "\N{EN DASH}")
    median = f"{line.median} ({quartiles})" if quartiles else line.median
    published = f"{line.what} ({line.figures})" if line.figures.startswith("published") else line.what
    return [line.case, published, median, line.goal]


def machines(*names: str) -> str:
    """Return where and when files were measured: a line for each machine and commit, with links to the files."""
    files: dict[str, list[str]] = {}
    for name in names:
        found = read_results(name)
        processor = found["machine"]
        machine = f"{processor['processor']}, {processor['usable_cores']} cores, {found['versions']['python']}"
        link = f"[{name}](../benchmarks/results/{name}.json) ({processor['load_average'][0]:.1f})"
        files.setdefault(f"{machine}, {found['time'][:10]}, commit {found['commit'][:7]}", []).append(link)
    return "\n".join(f"- {machine}: {', '.join(links)}" for machine, links in files.items())


def value(name: str, case: str, side: str, decimals: str | None = None) -> str:
    """Return the median of a ratio, "of/to", or of a side of a case.

    Raises
    ------
    LookupError
        The case has no such ratio and no such side.
    """
    (result,) = [each for each in select(name, (case,)) if each["case"] == case]
    ratios = {f"{ratio['of']}/{ratio['to']}": ratio["median"] for ratio in result["ratios"]}
    sides = {each: spread["median"] for each, spread in result["figures"].items()}
    found = (ratios | sides).get(side)
    if found is None:
        raise LookupError(f"{case} has no {side!r}; there are {', '.join(ratios | sides)}")
    return report.digits(found) if decimals is None else f"{found:,.{int(decimals)}f}"
