"""The parts of the word count: faults, replays, bolts, exit codes and the report. No Spark runs here."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace as Line

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.plots import COLOURS
from examples.wordcount import components as module
from examples.wordcount.corpus import find
from examples.wordcount.job import DeadLetter, Result, Round, write_dead_letters
from examples.wordcount.report import to_html


def write(folder: Path, **files: bytes) -> Path:
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def lines_of(corpus, faults, attempt=0, replays=None):
    chunks = corpus.chunks(2)
    numbers = pa.RecordBatch.from_pydict({"id": list(range(len(chunks)))})
    batches = module.read(corpus, chunks, faults, attempt, replays, iter([numbers]))
    return pa.Table.from_batches(batches).sort_by([("file", "ascending"), ("line", "ascending")])


def test_faults_are_drawn_from_seed_line_and_attempt(tmp_path) -> None:
    corpus = find(write(tmp_path, a=b"one two three four\n" * 3000, b=b"five\n" * 3000))
    table = lines_of(corpus, module.Faults(1, 0.1, 0.02))
    assert table.num_rows == 6000
    fault, lose = table.column("fault").to_numpy(), table.column("lose")
    assert 500 < fault.sum() < 700 and 80 < 6000 - lose.null_count < 160
    assert table.equals(lines_of(corpus, module.Faults(1, 0.1, 0.02)))
    for other in (
        lines_of(corpus, module.Faults(2, 0.1, 0.02)),
        lines_of(corpus, module.Faults(1, 0.1, 0.02), attempt=1),
    ):
        both = (fault & other.column("fault").to_numpy()).sum()
        assert 20 < both < 110  # Independent: 60 expected.
    none = lines_of(corpus, module.Faults(1, 0, 0))
    assert not none.column("fault").to_numpy().any() and none.column("lose").null_count == 6000
    everything = lines_of(corpus, module.Faults(1, 1, 1))
    assert everything.column("fault").to_numpy().all() and everything.column("lose").null_count == 0


def test_replays_are_the_lines_asked_for_with_the_draws_of_their_attempt(tmp_path) -> None:
    corpus = find(write(tmp_path, a=b"0\n1\n2\n3\n", b=b"4\n5\n"))
    faults = module.Faults(1, 0.5, 0.5)
    whole = lines_of(corpus, faults, attempt=3).to_pylist()
    replays = {0: np.array([2, 4]), 1: np.array([1, 9])}  # Line 9 went away with the end of its file.
    some = lines_of(corpus, faults, attempt=3, replays=replays).to_pylist()
    assert [(row["file"], row["line"], row["text"], row["attempt"]) for row in some] == [
        (0, 2, "1", 3),
        (0, 4, "3", 3),
        (1, 1, "4", 3),
    ]
    assert all(row in whole for row in some)


def test_split_raises_or_loses_one_word() -> None:
    assert module.split(Line(fault=False, lose=None, text=" a b\ta ")) == [("a", True), ("b", True), ("a", True)]
    for lose, lost in ((0.0, 0), (0.34, 1), (0.9999, 2)):
        kept = [kept for _, kept in module.split(Line(fault=False, lose=lose, text="a b c"))]
        assert kept.index(False) == lost and kept.count(False) == 1
    assert module.split(Line(fault=False, lose=0.5, text=" ")) == []
    with pytest.raises(module.InjectedFault, match="injected by --fail-rate"):
        module.split(Line(fault=True, lose=None, text="a"))


def test_tally_adds_up_batches() -> None:
    batches = [pa.RecordBatch.from_pydict({"word": words}) for words in (["a", "b", "a"], ["b", "☃"])]
    (total,) = module.tally(iter(batches))
    assert dict(zip(*total.to_pydict().values(), strict=True)) == {"a": 2, "b": 2, "☃": 1}
    assert list(module.tally(iter([]))) == []


def result_of(**changes):
    first = Round(0, 10, 30, 7, 2, 1, {"split: InjectedFault: <b>": 2}, 20, 0.001, 1.5)
    second = Round(1, 3, 9, 3, 0, 0, {}, 5, 0.0005, 0.5)
    values = {
        "input": "/some/<folder>",
        "files": 2,
        "binary_files": 1,
        "bytes": 1000,
        "seed": 7,
        "fail_rate": 0.1,
        "drop_rate": 0.1,
        "max_attempts": 8,
        "lines": 10,
        "trees": 13,
        "messages": 39,
        "acked": 10,
        "failed": 2,
        "failed_by_reason": {"split: InjectedFault: <b>": 2},
        "timed_out": 1,
        "replayed": 3,
        "words": 25,
        "distinct_words": 9,
        "acker_seconds": 0.0015,
        "acker_messages_per_second": 26000.0,
        "wall_seconds": 2.5,
        "verified": True,
        "rounds": [first, second],
        "tree_sizes": {1: 2, 3: 5, 40: 3, 1025: 1},
        "stages": {"start Spark": 1.0, "evaluate": 0.7},
        "components": {"split": {"executed": 13, "emitted": 25, "failed": 2, "messages": 13, "function_seconds": 0.2}},
    }
    return Result(**(values | changes))


def test_exit_codes_and_json_of_a_result() -> None:
    assert result_of().exit_code == 0
    assert result_of(dead_lettered=1).exit_code == 3
    assert result_of(verified=False, dead_lettered=1).exit_code == 1
    values = json.loads(json.dumps(result_of().to_json()))
    assert values["exit_code"] == 0 and values["rounds"][0]["timed_out"] == 1 and "dead_letters" not in values


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "verified: equal to a plain count of the same files"),
        ({"dead_lettered": 2}, "verified, with 2 lines dead-lettered"),
        (
            {"verified": False, "mismatches": ["'<x>': counted 1, expected 2"]},
            "NOT verified: &#x27;&lt;x&gt;&#x27;: counted",
        ),
        ({"rounds": result_of().rounds[:1], "tree_sizes": {}, "failed_by_reason": {}}, "verified: equal"),
    ],
    ids=["good", "dead letters", "wrong", "nothing failed"],
)
def test_the_report_stands_alone_and_follows_light_and_dark(changes, verdict) -> None:
    page = to_html(result_of(**changes))
    assert (
        verdict in page and "/some/&lt;folder&gt;" in page and "<b>" not in re.sub(r'<div class="tile"><b>', "", page)
    )
    assert "<script" not in page and not re.search(r'(src|href)="(?!#)(?!http://www\.w3\.org)', page)
    plots = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(plots) == 3
    for plot in plots:
        assert ET.fromstring(plot).tag == "{http://www.w3.org/2000/svg}svg"
        assert "var(--ink)" in plot and not any(colour in plot for colour in COLOURS.values())
    assert "var(--acked)" in plots[0] and "var(--failed)" in plots[0] and "var(--late)" in plots[0]
    assert "start Spark" in plots[2] and "1.00 s" in plots[2]
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids)) > 10
    variables = set(re.findall(r"var\(--(\w+)\)", page))
    light, dark = page.split("prefers-color-scheme: dark")
    assert variables and all(f"--{name}:" in light and f"--{name}:" in dark for name in variables)


@pytest.mark.parametrize("largest", [3, 16, 31, 32, 150, 1025])
def test_every_bar_of_the_sizes_of_trees_is_named(largest) -> None:
    page = to_html(result_of(tree_sizes=dict.fromkeys(range(1, largest + 1), 2)))
    section = page[page.index("Tuples in a tree") :].split("</section>")[0]
    axis = re.findall(r'<g id="sizes-xtick_\d+">.*?<text[^>]*>([^<]+)</text>', section, re.DOTALL)
    assert axis[:3] == ["1", "2", "3"]
    covered = [int(number) for name in axis for number in (name.split(" to ") * 2)[:2]]
    firsts, lasts = covered[::2], covered[1::2]
    assert firsts[1:] == [last + 1 for last in lasts[:-1]], "a size is left out"
    assert firsts[-1] <= largest <= lasts[-1]


def test_dead_letters_are_written_as_json_lines(tmp_path) -> None:
    path = tmp_path / "new" / "dead.jsonl"
    letters = [DeadLetter("a.txt", 3, "x \u2028 \ufffd", 8, "timed out"), DeadLetter("\udcff.txt", 1, "", 8, "b: c")]
    write_dead_letters(letters, path)
    first, second, rest = path.read_bytes().decode().split("\n")
    rows = [json.loads(first), json.loads(second)]
    assert rest == "" and rows[1]["line"] == 1
    assert rows[0] == {"file": "a.txt", "line": 3, "text": "x \u2028 \ufffd", "attempts": 8, "reason": "timed out"}
    write_dead_letters([], path)
    assert not path.exists()
