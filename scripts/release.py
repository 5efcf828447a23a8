"""The checks before a release (`release.py check`) and its notes (`release.py notes`).

Standard library only. The check ends with a table, and with exit code 0 only if everything passed. Each step is a make
target; its output goes to build/release/<target>.log, and the last line of it is shown every half minute.
"""

import argparse
import functools
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from follow import SHOW_EVERY_S, follow, last_lines

ROOT = Path(__file__).resolve().parent.parent
# Targets of make, what fails soonest first. `test-all` holds the linters, `sanitize` builds the native module anew.
TARGETS = ("wheel", "docs", "test-all", "run", "sanitize")

_VERSION = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)
_SECTION = re.compile(
    r"^## \[(?P<version>[^\]]+)\](?: - (?P<date>\S+))?\n(?P<text>.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL
)


class Result(NamedTuple):
    """How a step went; the remark is one line."""

    name: str
    passed: bool
    seconds: float
    remark: str


def version(root: Path) -> str:
    """Return the version that the package says it has."""
    match = _VERSION.search((root / "src/acker/__init__.py").read_text(encoding="utf-8"))
    if match is None:
        raise SystemExit("src/acker/__init__.py: no __version__")
    return match[1]


def sections(root: Path) -> dict[str, tuple[str | None, str]]:
    """Return the changelog as {version: (date, text)}, in its order."""
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    return {match["version"]: (match["date"], match["text"].strip()) for match in _SECTION.finditer(text)}


def notes(root: Path) -> str:
    """Return what the changelog says of this version."""
    found = sections(root).get(version(root))
    if found is None:
        raise SystemExit(f"CHANGELOG.md: no section [{version(root)}]")
    return found[1]


def contradictions(root: Path, tag: str | None = None) -> Iterator[str]:
    """Yield a sentence for each place that says something else of the release than the others."""
    released = version(root)
    logged = sections(root)
    date, text = logged.get(released, (None, ""))
    if released not in logged:
        yield f"CHANGELOG.md: no section [{released}]"
    elif not re.fullmatch(r"\d{4}-\d{2}-\d{2}", date or ""):
        yield f"CHANGELOG.md: [{released}] has no date"
    elif not text:
        yield f"CHANGELOG.md: [{released}] is empty"
    if logged.get("Unreleased", (None, ""))[1]:
        yield "CHANGELOG.md: [Unreleased] is not empty: move it to the release"
    citation = (root / "CITATION.cff").read_text(encoding="utf-8")
    for field, wanted in (("version", released), ("date-released", date)):
        found = re.search(rf'^{field}: "?([^"\n]+)"?$', citation, re.MULTILINE)
        if found is None or found[1] != wanted:
            yield f"CITATION.cff: {field} is {found and found[1]}, expected {wanted}"
    if tag is not None and tag != f"v{released}":
        yield f"the tag is {tag}, expected v{released}"


def changed_files(root: Path) -> str:
    """Return what git says of files that are not committed."""
    return subprocess.run(
        ["git", "-C", str(root), "status", "--porcelain"], capture_output=True, check=True, text=True
    ).stdout


def facts(tag: str | None) -> Result:
    """Compare what the files say of the release, and look for changes that no commit holds."""
    wrong = list(contradictions(ROOT, tag))
    if changed_files(ROOT):
        wrong.append("git status: there are changes that no commit holds")
    for sentence in wrong:
        print(f"    {sentence}")
    return Result("facts", not wrong, 0.0, f"{len(wrong)} contradictions" if wrong else f"acker {version(ROOT)}")


def step(name: str, command: list[str], log: Path, show_every_s: float = SHOW_EVERY_S) -> Result:
    """Run a command, say now and then how far it is, and return how it ended."""
    begin = time.monotonic()
    environ = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}  # it holds ARGS
    code = follow(command, log, cwd=ROOT, environ=environ, show_every_s=show_every_s)
    return Result(
        name, code == 0, time.monotonic() - begin, last_lines(log) if code == 0 else f"exit code {code}: {log}"
    )


def check(targets: list[str], tag: str | None) -> list[Result]:
    """Run the facts and the targets, all of them even when one fails."""
    steps: list[tuple[str, Callable[[], Result]]] = [("facts", functools.partial(facts, tag))]
    for target in targets:
        log = ROOT / f"build/release/{target}.log"
        # The ARGS of the release check are not those of its targets.
        command = ["make", target, "ARGS="]
        steps.append((target, functools.partial(step, target, command, log)))
    results = []
    for number, (name, run) in enumerate(steps, 1):
        print(f"==> {number} of {len(steps)}: {name}", flush=True)
        results.append(run())
        print(f"    {'passed' if results[-1].passed else 'FAILED'}", flush=True)
    return results


def table(results: list[Result]) -> str:
    """Return the results, one a line."""
    width = max(len(result.name) for result in results)
    return "\n".join(
        f"{'ok' if result.passed else 'NO'}  {result.name:<{width}}  {result.seconds:6.0f} s  {result.remark}"
        for result in results
    )


def main(arguments: list[str] | None = None) -> int:
    """Check a release, or print its notes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    checking = commands.add_parser("check", help="run all checks of a release")
    checking.add_argument("--tag", help="the tag of the release, which has to be v<version>")
    checking.add_argument(
        "--only",
        nargs="*",
        choices=TARGETS,
        default=list(TARGETS),
        metavar="TARGET",
        help=f"of {', '.join(TARGETS)}; none: the facts alone",
    )
    commands.add_parser("notes", help="print the changelog of this version")
    options = parser.parse_args(arguments)
    if options.command == "notes":
        print(notes(ROOT))
        return 0
    results = check(options.only, options.tag)
    print("\n" + table(results))
    return 0 if all(result.passed for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
