"""Every block on the pages runs and prints what stands below it, or says why not; and what pages name is there."""

from __future__ import annotations

import ast
import doctest
import re
import shlex
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import blocks
from blocks import ALONE, ON_SPARK, ROOT, WITH_MEMORY, blocks_of, mode_of, pages, spans_of
from running import is_example, run_blocks

pytestmark = pytest.mark.repository

EVERY = [block for page in pages() for block in blocks_of(page)]
# What tests/spark/test_docs.py runs, where there is a Spark, and tests/test_connector_pages.py.
ELSEWHERE = [page for page in pages() if mode_of(page) in (ON_SPARK, WITH_MEMORY)]
PAGES_HERE = [page for page in pages() if page not in ELSEWHERE]
# Directives of the API reference, which the build of the site runs.
DIRECTIVES = {"{eval-rst}"}
# Programs whose commands the tests below look at.
PROGRAMS = {"acker", "make", "pip", "python", "python3"}


def test_every_block_is_of_a_kind_that_is_looked_at() -> None:
    """None can be left out in silence: what is not run says why, or which test looks at it."""
    fences = sum(len(re.findall(r"^ *```", page.read_text(encoding="utf-8"), re.MULTILINE)) for page in pages())
    assert fences == 2 * len(EVERY), "a block that has no end, or is fenced in another way"
    told: Counter[str] = Counter()
    for number, block in enumerate(EVERY):
        kind, _, text = block.note.partition(": ")
        assert "+SKIP" not in block.body, f"{block.where}: doctest would leave this out in silence"
        if kind == "run by":
            assert (ROOT / text).is_file(), f"{block.where}: {text} is not there"
            assert block.page.name in (ROOT / text).read_text(encoding="utf-8"), (
                f"{block.where}: {text} knows nothing of it"
            )
        elif kind == "not run":
            assert len(text.split()) >= 3, f"{block.where}: a reason is a sentence"
        elif block.language == "text":
            above = EVERY[number - 1] if number else None
            assert above is not None and above.page == block.page and above.prints == block.body, (
                f"{block.where}: text that is the output of nothing; say above it: <!-- not run: ... -->"
            )
        else:
            assert block.language in {"python", "console", *DIRECTIVES}, f"{block.where}: who runs {block.language!r}?"
        told[kind or block.language] += 1
    for kind, count in sorted(told.items()):
        print(f"{count:4} {kind}")
    sessions = sum(block.is_session for block in EVERY)
    print(f"{sessions:4} of python are sessions, {len(list(filter(is_example, EVERY)))} are programs")
    assert told["python"] >= 50 and sessions >= 20 and told["console"] >= 5


@pytest.mark.parametrize(
    "page", [page for page in PAGES_HERE if any(map(is_example, blocks_of(page)))], ids=lambda page: page.name
)
def test_examples_run_and_print_what_the_page_says(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    examples = list(filter(is_example, blocks_of(page)))
    if mode_of(page) == ALONE:
        ran = sum(run_blocks([block], {"__name__": "__main__"}) for block in examples)
    else:
        ran = run_blocks(examples, {"__name__": "__main__"})
    assert ran == len(examples) > 0


@pytest.mark.parametrize(
    "page", [page for page in pages() if any(block.is_session for block in blocks_of(page))], ids=lambda page: page.name
)
def test_sessions_run_and_show_what_the_page_says(page: Path) -> None:
    result = doctest.testfile(str(page), module_relative=False, encoding="utf-8")
    assert result.failed == 0
    assert result.attempted >= sum(block.is_session for block in blocks_of(page)) > 0


# ---- commands -------------------------------------------------------------------------------------------------------


def commands() -> list[tuple[str, list[str]]]:
    """Return where each command stands, and its words: of console blocks, and of the sentences of all pages."""
    found = []
    for block in EVERY:
        if block.language == "console" and not block.note:
            text = block.body.replace("\\\n", " ")
            lines = [line[2:] for line in text.splitlines() if line.startswith("$ ")]
            assert lines, f"{block.where}: no line begins with $"
            found += [(block.where, words_of(line)) for line in lines]
    for page in pages():
        for span in spans_of(page):
            if re.match(r"(acker|make|pip|python3?) [\w.'\"-]", span):
                found.append((f"{page.relative_to(ROOT)}: {span}", words_of(span)))
    return found


def words_of(line: str) -> list[str]:
    """Return the words of a command, without settings of the environment before it, and without an ellipsis."""
    words = shlex.split(line, comments=True)
    if words[:3] == ["acker", "run", "..."]:
        words[2] = "module:Topology"
    words = [word for word in words if word != "..."]
    while words and re.match(r"[A-Z_]+=", words[0]):
        words.pop(0)
    return words


COMMANDS = commands()


def of(*programs: str) -> Iterator[tuple[str, list[str]]]:
    return ((where, words) for where, words in COMMANDS if Path(words[0]).name in programs)


def test_every_command_is_of_a_program_that_is_looked_at() -> None:
    assert len(COMMANDS) > 40
    strange = {f"{where}: {words[0]}" for where, words in COMMANDS if Path(words[0]).name not in PROGRAMS | {"cd"}}
    assert not strange


def test_commands_of_acker_have_their_options() -> None:
    import click

    from acker.cli.commands import cli

    seen = 0
    for where, (_, *typed) in of("acker"):
        seen += 1
        words = typed
        command: click.Command = cli
        # With its settings: a command keeps what it was first asked for help by.
        context = click.Context(cli, info_name="acker", **cli.context_settings)
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            _, found, words = command.resolve_command(context, words)
            assert found is not None, where
            command, context = found, click.Context(found, parent=context, info_name=found.name)
        try:
            command.make_parser(context).parse_args(words)
        except click.UsageError as fault:
            raise AssertionError(f"{where}: {fault.format_message()}") from fault
    assert seen > 20


def test_commands_of_make_have_their_targets_and_settings() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    seen = 0
    for where, (_, *words) in of("make"):
        for word in words:
            name, equals, _ = word.partition("=")
            if equals:
                assert f"$({name})" in makefile, where
            else:
                assert word in targets, where
            seen += 1
    assert seen > 10


def test_commands_of_pip_name_extras_that_there_are() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = set(pyproject["project"]["optional-dependencies"])
    seen = 0
    for where, words in of("pip"):
        for listed in re.findall(r"\backer\[([\w,]+)\]", " ".join(words)):
            assert set(listed.split(",")) <= extras, where
            seen += 1
    assert seen > 3


@pytest.mark.slow
@pytest.mark.spark  # some of the programs import PySpark
def test_commands_of_python_name_what_is_there_and_its_options() -> None:
    helps: dict[str, str] = {}
    seen = 0
    for where, (_, *words) in of("python", "python3"):
        if words[:1] == ["-m"]:
            module, options = words[1], words[2:]
            if module.split(".")[0] not in {"acker", "benchmarks", "examples", "tests"}:
                continue
            program = ["-m", module]
        elif words and not words[0].startswith("-"):
            assert (ROOT / words[0]).exists(), where
            program, options = [str(ROOT / words[0])], words[1:]
        else:
            continue
        seen += 1
        for option in (word.partition("=")[0] for word in options if word.startswith("--")):
            key = " ".join(program)
            if key not in helps:
                done = subprocess.run([sys.executable, *program, "--help"], capture_output=True, text=True, check=True)
                helps[key] = done.stdout
            assert re.search(rf"{option}\b", helps[key]), where
    assert seen > 3


# ---- what pages name ------------------------------------------------------------------------------------------------


def test_tests_that_pages_name_are_there() -> None:
    seen = 0
    for page in pages():
        for span in spans_of(page):
            found = re.fullmatch(r"(tests/[\w/]+\.py)(?:::(\w+))?", span)
            if found:
                seen += 1
                path = ROOT / found[1]
                assert path.is_file(), f"{page.name}: {span}"
                if found[2]:
                    text = path.read_text(encoding="utf-8")
                    assert re.search(rf"^\s*(?:def|class) {found[2]}\b", text, re.MULTILINE), f"{page.name}: {span}"
    assert seen > 3


def is_marked(names: str, tree: ast.Module, name: str | None) -> bool:
    """Return whether a test, or each of a file of tests, has a mark of these names."""

    def marks(nodes: Iterable[ast.expr]) -> bool:
        return any(re.search(rf"pytest\.mark\.({names})\b", ast.unparse(node)) for node in nodes)

    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark" and marks([node.value]):
            return True
    tests = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    # A decorator that marks some of its parameters leaves the others to `make test`.
    marked = [
        marks(each for each in node.decorator_list if "parametrize" not in ast.unparse(each))
        for node in tests
        if name in (None, node.name)
    ]
    return bool(marked) and all(marked)  # a file may have machines of hypothesis alone


def test_the_page_of_promises_says_which_tests_are_slow() -> None:
    text = (ROOT / "docs/promises.md").read_text(encoding="utf-8")
    seen: Counter[str] = Counter()
    trees: dict[str, ast.Module] = {}
    for path, name, told in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`(?: \((slow)\))?", text):
        if path not in trees:
            trees[path] = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        assert not is_marked("soak", trees[path], name or None), f"{path}::{name}: a promise that `make test-all` skips"
        mark = "slow" if is_marked("slow", trees[path], name or None) else ""
        seen[mark] += 1
        assert mark == told, f"{path}::{name} is {mark or 'not slow'}"
    assert seen[""] > 5 and seen["slow"] > 5


def test_generated_parts_are_as_their_generator_leaves_them() -> None:
    import generate

    made = generate.files()
    assert {path.name for path in made} >= {"README.md", "benchmarks.md", "how-it-works.md", "xor-1.svg", "buckets.svg"}
    for path, text in made.items():
        assert path.read_text(encoding="utf-8") == text, f"{path.relative_to(ROOT)} is out of date: make docs"
    drawn = {path.name for path in (ROOT / "docs/figures").iterdir()}
    assert drawn == {path.name for path in made if path.suffix == ".svg"}, "a drawing that nobody makes any more"


def test_a_value_stands_within_its_sentence() -> None:
    """A line that begins with a comment ends the paragraph above it."""
    seen = 0
    for page in pages():
        text = page.read_text(encoding="utf-8")
        seen += text.count("<!-- generated: value")
        assert not re.search(r"^ *<!-- generated: value", text, re.MULTILINE), page.name
    assert seen > 5


def test_a_number_that_is_typed_is_noticed() -> None:
    import generate

    page = ROOT / "docs/benchmarks.md"
    text = page.read_text(encoding="utf-8")
    typed = text.replace("| ingest/m1/10k | native / GUPS | ", "| ingest/m1/10k | native / GUPS | 9", 1)
    assert typed != text
    assert generate.renew(typed) == text
    with pytest.raises(LookupError, match="no part"):
        generate.part_for("tables engine")
    with pytest.raises(LookupError, match="no case"):
        generate.part_for("table engine ingest/m9")
    with pytest.raises(LookupError, match="has no"):
        generate.part_for("value engine ingest/m1/10k nativ")


def test_names_that_stand_for_theirs_are_there() -> None:
    """The right columns of the maps of names, on the pages for those who come from elsewhere."""
    import acker
    import acker.local
    import acker.testing
    import acker.topology
    from acker.topology.conf import ALIASES, OPTIONS

    names = {**vars(acker.topology), **vars(acker.local), **vars(acker), "acker": acker}
    seen = 0
    for page in sorted((ROOT / "docs").glob("from-*.md")):
        rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", page.read_text(encoding="utf-8"), re.MULTILINE)
        maps = [ours for theirs, ours in rows if not theirs.startswith("---")]
        assert len(maps) > 10, page.name
        for span in re.findall(r"`([^`]+)`", " ".join(maps)):
            seen += 1
            if span.startswith("acker run "):
                continue  # a command, looked at above
            if span.startswith("topology."):
                assert span in OPTIONS or span in ALIASES, f"{page.name}: {span}"
                continue
            thing: object = names
            for part in span.split("."):
                assert part in names if thing is names else hasattr(thing, part), f"{page.name}: {span}"
                thing = names[part] if thing is names else getattr(thing, part)
    assert seen > 100


def test_what_a_page_says_wrongly_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n\n"
        "<!-- not run: it would take a week -->\n```python\nraise SystemExit\n```\n\n"
        "- in a list\n\n  ```python\n  >>> 1\n  1\n\n  ```\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(blocks, "ROOT", tmp_path)
    first, output, left_out, session = blocks_of(page)
    assert (first.prints, output.language, left_out.note) == ("3\n", "text", "not run: it would take a week")
    assert [is_example(block) for block in (first, output, left_out, session)] == [True, False, False, False]
    assert session.is_session and session.body.startswith(">>> 1\n")
    with pytest.raises(AssertionError, match=r"page\.md:1 prints\n2\nand not\n3"):
        run_blocks([first], {})
    assert mode_of(page) == ALONE
    page.write_text("<!-- examples: as you like -->\n", encoding="utf-8")
    with pytest.raises(ValueError, match="as you like"):
        mode_of(page)
