"""Each benchmark at a tiny size: that it runs, checks its work and can be reported. Never how fast anything is."""

import importlib
import json
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from benchmarks.suite import CASES, calls, ingest, machine, main, report, suite, topology
from benchmarks.suite.measure import FULL, TINY, Alternation, Case, Goal, Ratio, Result, Spread, clock_ns, expect, per
from benchmarks.suite.run import run_all, run_apart, run_here, select
from benchmarks.suite.suite import write

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
ELSEWHERE = ("spark/", "connectors/", "remote/", "topology/storm/", "topology/free-threaded")
# `make quick` has no PySpark, which some of the others need.
IN_PROCESS = [case for case in CASES if not case.name.startswith(ELSEWHERE) and "pyspark" not in case.missing()]


@pytest.fixture(scope="module")
def measured():
    """The report of a tiny run of all cases that need neither Spark, Storm nor a server."""
    return run_all(IN_PROCESS, partial(run_here, scale=TINY), command="python -m benchmarks.suite", scale=TINY)


def result_of(measured, name):
    return next(result for result in measured["results"] if result["case"] == name)


def test_every_question_has_a_case():
    questions = {case.name.split("/")[0] for case in CASES}
    expected = {
        "ingest",
        "reference",
        "rotate",
        "snapshot",
        "calls",
        "memory",
        "sharded",
        "topology",
        "spark",
        "offsets",
    }
    assert expected <= questions
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.soak
def test_every_case_measures_and_checks(measured):
    assert len(measured["results"]) == len(IN_PROCESS)
    for result in measured["results"]:
        assert result["checksum"] and all(np.isfinite(list(result["checksum"].values())))
        counts = {len(samples) for samples in result["samples"].values()}
        assert len(counts) == 1 and counts.pop() >= 1
        for spread in [*result["figures"].values(), *result["ratios"]]:
            assert spread["least"] <= spread["low"] <= spread["median"] <= spread["high"] <= spread["most"]


@pytest.mark.soak
def test_the_streams_are_those_that_the_checksums_know(measured):
    plain, mixed = (result_of(measured, f"ingest/{name}/10k")["checksum"] for name in ("m1", "mixed"))
    assert (plain["completions"], plain["root_xor"]) == (12_000, -5_224_122_188_951_414_659)
    assert (mixed["completions"], mixed["root_xor"]) == (6139, -360_954_148_155_813_927)
    assert (mixed["failed"], mixed["resets"]) == (1475, 1507)


@pytest.mark.soak
def test_gups_is_given_the_bytes_of_the_table(measured):
    parameters = result_of(measured, "ingest/m1/10k")["parameters"]
    assert parameters["pending"] == 200
    assert parameters["table_bytes"] > 200 * 32


@pytest.mark.soak
def test_goals_are_about_the_full_size(measured):
    assert not any(ratio["goal"] for result in measured["results"] for ratio in result["ratios"])
    assert FULL.goal(Goal(at_least=20)) == Goal(at_least=20)


@pytest.mark.parametrize("name", ["ingest/p100/1k", "reference/p100", "calls/one-row", "calls/thousand-rows"])
def test_work_that_was_not_done_is_noticed(name, monkeypatch):
    for module in (ingest, calls):
        monkeypatch.setattr(module, "reduce", lambda add, returned, found: found)
    case = next(case for case in CASES if case.name == name)
    with pytest.raises(AssertionError, match="finished"):
        case.run(TINY)


def test_updates_that_were_not_made_are_noticed(monkeypatch):
    monkeypatch.setattr(ingest, "update", lambda gups, window: None)
    with pytest.raises(AssertionError, match="GUPS"):
        ingest.against_gups("p100", 1000, None, TINY)


def test_sides_take_turns():
    order = []
    sides = {side: partial(lambda side, load: order.append((side, load)), side) for side in "AB"}
    samples = Alternation(sides).run(range(4))
    assert order == [("A", 0), ("B", 0), ("B", 1), ("A", 1), ("A", 2), ("B", 2), ("B", 3), ("A", 3)]
    assert [len(samples[side]) for side in "AB"] == [3, 3]  # the first load warms up


def test_samples_are_what_the_clock_says():
    ticks = iter([5.0, 50.0, 7.0, 70.0])
    sides = {"A": lambda load: load, "B": lambda load: load}
    checked = []
    alternation = Alternation(sides, lambda *seen: checked.append(seen), lambda work: (work(), next(ticks))[1])
    assert alternation.run(["x", "y"], warm_up=0) == {"A": [5.0, 70.0], "B": [50.0, 7.0]}
    assert checked == [("A", "x", "x"), ("B", "x", "x"), ("B", "y", "y"), ("A", "y", "y")]


def test_the_clock_counts_and_lets_errors_through():
    assert clock_ns(lambda: sum(range(10_000))) > 0
    with pytest.raises(ZeroDivisionError):
        clock_ns(lambda: 1 // 0)


def test_ratios_are_those_of_the_pairs():
    result = Result("ns", {"a": [2.0, 9.0, 8.0], "b": [1.0, 3.0, 2.0]}, [Ratio("a", "b", Goal(at_most=2.5))])
    assert result.ratio(result.ratios[0]) == Spread(3.0, 2.5, 3.5, 2.0, 4.0)
    shown = result.as_json()["ratios"][0]
    assert (shown["median"], shown["met"]) == (3.0, False)
    assert per({"a": [2.0]}, 4) == {"a": [0.5]}
    assert Goal(at_least=3).is_met(3.0) and not Goal(at_least=3).is_met(2.9)


def test_cases_are_chosen_by_question_or_name():
    assert [case.name for case in select(CASES, ["rotate", "ingest/m1/1k"])] == [
        "ingest/m1/1k",
        "rotate/expired",
        "rotate/idle",
    ]
    assert select(CASES, []) == CASES
    with pytest.raises(LookupError, match="no benchmark 'ingest/m'; there are ingest/m1/1k, "):
        select(CASES, ["rotate", "ingest/m"])


def test_a_case_runs_in_a_process_of_its_own():
    case = next(case for case in CASES if case.name == "rotate/idle")
    outcome = run_apart(case, TINY)
    assert outcome.error is None
    assert outcome.result.checksum["completions"] == 250
    assert outcome.as_json()["unit"] == "µs/call"


def test_a_case_that_fails_is_reported():
    outcome = run_apart(Case("broken/case", "?", partial(expect, "the work", 1)), TINY)
    assert outcome.result is None
    line = next(report.lines(outcome.as_json()))
    assert (line.case, line.what) == ("broken/case", "failed")
    assert line.figures.startswith("AssertionError: the work: expected ")


def test_a_case_whose_process_dies_is_reported():
    outcome = run_apart(Case("dying/case", "?", signal.raise_signal), signal.SIGTERM)
    assert outcome.error.startswith("the process ended")


@pytest.mark.soak
def test_the_topology_tracks_every_line(measured):
    result = result_of(measured, "topology/wordcount")
    assert set(result["figures"]) == {"tracked", "untracked", "threads"}
    assert result["checksum"]["tuples"] == result["parameters"]["lines"] + result["parameters"]["words"]
    assert len(result["parameters"]["complete_latency_ms"]) == TINY.pairs
    latency = result_of(measured, "topology/latency")["figures"]
    assert 0 < latency["p50"]["median"] <= latency["p99"]["median"]


@pytest.mark.parametrize("name", ["through_runtime", "through_threads"])
def test_words_that_were_not_counted_are_noticed(name, monkeypatch):
    count = getattr(topology, name)

    def forgetful(*args, **kwargs):
        counted = count(*args, **kwargs)
        next(counter for counter in counted.counters if counter).popitem()
        return counted

    monkeypatch.setattr(topology, name, forgetful)
    with pytest.raises(AssertionError, match="counted wrong"):
        topology.throughput(TINY)


@pytest.mark.soak
def test_figures_of_others_are_shown_and_not_compared(measured):
    result = result_of(measured, "topology/wordcount")
    shown = [line for line in report.lines(result) if "not measured here" in line.figures]
    assert [line.median for line in shown] == ["5,350 acked tuples/s"]
    assert {(ratio["of"], ratio["to"]) for ratio in result["ratios"]} == {
        ("tracked", "untracked"),
        ("tracked", "threads"),
    }


@pytest.mark.repository
def test_the_files_of_pytest_benchmark_run():
    environ = {**os.environ, "ACKER_BENCH_SCALE": "tiny"}
    command = [sys.executable, "-m", "pytest", "--quiet", "-p", "no:cacheprovider", str(BENCHMARKS)]
    done = subprocess.run(command, env=environ, cwd=BENCHMARKS.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert int(re.search(r"(\d+) passed", done.stdout).group(1)) >= 20


@pytest.mark.repository
@pytest.mark.soak
@pytest.mark.leaves_behind("polars has an event loop of its own as long as the process lives")
def test_the_rivals_run_and_are_checked(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS / "rivals")
    monkeypatch.setenv("POLARS_MAX_THREADS", "1")
    groupby, hash_maps, plain_table = map(importlib.import_module, ("groupby", "hash_maps", "plain_table"))
    cases = [*groupby.CASES, *plain_table.CASES, *hash_maps.CASES]
    outcomes = [run_here(case, TINY) for case in cases if not case.why_not()]
    # Rust and Boost are not everywhere.
    assert {outcome.case.name for outcome in outcomes} >= {case.name for case in cases[:10]} | {"std/m1"}
    assert all(outcome.result.checksum["completions"] > 0 for outcome in outcomes)
    monkeypatch.setitem(groupby.RIVALS, "NumPy", lambda columns: lambda _: columns.root_id[:1])
    with pytest.raises(AssertionError, match="trees that NumPy finished"):
        groupby.against("NumPy", TINY)


def test_cases_without_what_they_need_are_left_out_unless_asked_for(capsys, monkeypatch):
    done = []
    monkeypatch.setattr(suite, "_run", lambda cases, *_: done.extend(case.name for case in cases) or 0)
    cases = [
        Case("fine", "?", len, obstacle=lambda: None),
        Case("lame", "?", len, ("no_such_module",)),
        Case("late", "?", len, obstacle=lambda: "there is no JDK"),
    ]
    assert suite.main([], cases=cases) == 0
    assert done == ["fine"]
    told = "lame is left out: no_such_module is not installed\nlate is left out: there is no JDK\n"
    assert capsys.readouterr().err == told
    assert suite.main(["--only", "lame"], cases=cases) == 0
    assert suite.main(["lame"], cases=cases) == 0
    assert done == ["fine", "lame", "lame"]


def test_machine_and_versions_are_told():
    told = machine.describe()
    assert told["versions"]["numpy"] == np.__version__
    assert told["versions"]["python"].startswith("CPython 3.")
    assert told["machine"]["usable_cores"] >= 1
    json.dumps(told)


@pytest.mark.soak
def test_reports_are_written(measured, tmp_path):
    write(measured, tmp_path / "new" / "run.json")
    read = json.loads((tmp_path / "new/run.json").read_text(encoding="utf-8"))
    assert [result["case"] for result in read["results"]] == [case.name for case in IN_PROCESS]
    assert {"machine", "versions", "commit", "time", "command", "seconds"} <= set(read)
    page = (tmp_path / "new/run.md").read_text(encoding="utf-8")
    assert all(f"| {case.name} |" in page for case in IN_PROCESS)
    assert (tmp_path / "new/run.svg").read_text(encoding="utf-8").startswith("<svg")


@pytest.mark.soak
def test_the_picture_shows_each_workload(measured, tmp_path):
    assert report.picture(measured, tmp_path / "all.svg")
    bars = report._bars(measured)
    assert [label.split("\n")[0] for label in bars] == ["m1", "m2", "k20", "s20k", "p100"]
    assert all(set(figures) == {"native", "GUPS", "reference"} for figures in bars.values())
    drawn = (tmp_path / "all.svg").read_text(encoding="utf-8")
    assert all(f">{text}<" in drawn for text in ("m1", "p100", "GUPS", "native", "reference", "200 pending"))
    report.picture(measured, tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_text(encoding="utf-8") == drawn
    assert not report.picture({**measured, "results": []}, tmp_path / "none.svg")
    assert not (tmp_path / "none.svg").exists()


@pytest.mark.parametrize(
    ("value", "text"),
    [(3028.4, "3,028"), (30.26, "30.3"), (0.0547, "0.0547"), (0, "0"), (-0.25, "-0.250"), (2e-6, "2e-06")],
)
def test_figures_have_three_digits(value, text):
    assert report.digits(value) == text


def test_the_command_lists_runs_and_refuses(capsys, tmp_path):
    assert main(["--list"]) == 0
    assert "rotate/idle" in capsys.readouterr().out
    assert main(["--only", "nothing"]) == 2
    assert "no benchmark 'nothing'" in capsys.readouterr().err
    assert main(["--quick", "--only", "rotate/idle", "--json", str(tmp_path / "run.json")]) == 0
    assert (
        json.loads((tmp_path / "run.json").read_text())["command"]
        == "python -m benchmarks.suite --only rotate/idle --quick"
    )
    assert "rotate/idle" in capsys.readouterr().out
