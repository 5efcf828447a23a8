"""`acker run MODULE:TOPOLOGY` and `acker graph`, with topologies that are fine, that fail, and that never come back."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from contextlib import contextmanager
from dataclasses import replace

import pytest
from click.testing import CliRunner
from rich.console import Console

import acker.cli.topology
from acker.cli.commands import cli
from acker.cli.topology import exit_code
from acker.local import Abandoned, RunReport, read_state

MODULE = '''
import threading
from acker.topology import Bolt, ReliableSpout, Spout, StatefulBolt, Stream, Topology

class Numbers(Spout):
    """Gives ten numbers, then says that there are no more."""

    outputs = ["number"]
    last = 10

    def initialize(self, conf, context):
        self.next = 0

    def next_tuple(self):
        if self.next == self.last:
            self.finish()
        else:
            self.emit([self.next], tup_id=self.next)
            self.next += 1

class Endless(Numbers):
    last = -1

class Raises(Numbers):
    def next_tuple(self):
        raise ValueError("the source is gone")

class Works(Bolt):
    def process(self, tup):
        self.report_metric("seen", 1)

class Stuck(Bolt):
    def process(self, tup):
        self.log("stuck") or threading.Event().wait()

class Keeps(Bolt):
    auto_ack = False

    def process(self, tup):
        self.log(f"kept {tup.number}")

class NeverOpen(Numbers):
    def initialize(self, conf, context):
        self.log("never open")
        threading.Event().wait()

class Opens(Topology):
    numbers = NeverOpen.spec()

class RaisesOnce(Numbers):
    raised = False

    def next_tuple(self):
        if not RaisesOnce.raised:
            RaisesOnce.raised = True
            raise ValueError("the source is gone")
        super().next_tuple()

class Recovers(Topology):
    numbers = RaisesOnce.spec()

class Fine(Topology):
    numbers = Numbers.spec()
    works = Works.spec(inputs=[numbers], par=2)

class Counts(StatefulBolt):
    def process(self, tup):
        self.state["count"] = self.state.get("count", 0) + 1

class Stateful(Topology):
    numbers = Numbers.spec()
    counts = Counts.spec(inputs=[numbers])

class Wider(Stateful):
    counts = Counts.spec(inputs=[Stateful.numbers], par=2)

class Runs(Topology):
    numbers = Endless.spec()
    works = Works.spec(inputs=[numbers])

class Scaled(Topology):
    numbers = Endless.spec()
    works = Works.spec(inputs=[numbers], par={"prod": 5, "beta": 1})

class Fails(Topology):
    numbers = Raises.spec()
    works = Works.spec(inputs=[numbers])

class Hangs(Topology):
    numbers = Numbers.spec()
    stuck = Stuck.spec(inputs=[numbers])

class Holds(Topology):
    numbers = Numbers.spec()
    keeps = Keeps.spec(inputs=[numbers])
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with the topologies in it."""
    (tmp_path / "jobs.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    level = logging.getLogger("acker").level
    yield tmp_path
    sys.modules.pop("jobs", None)
    logging.getLogger("acker").setLevel(level)


@pytest.fixture
def invoke(folder):
    """Run a command line in this process."""
    return lambda *arguments: CliRunner().invoke(cli, [str(argument) for argument in arguments])


class Program:
    """`acker` in a process of its own; what it says on both outputs comes line by line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.said = ""

    def wait_for(self, text: str) -> str:
        """Read on until a line holds a text; return the line."""
        for line in self.process.stdout:
            self.said += line
            if text in line:
                return line
        raise AssertionError(f"{text!r} never came:\n{self.said}")

    def end(self) -> int:
        self.said += self.process.stdout.read()
        return self.process.wait()


# The command, which gives executors so many seconds to end their step, and not one.
PATIENT = "from acker.local import topology_run; topology_run.GRACE_SECS = {}; from acker.cli import main; main()"


@pytest.fixture
def start(folder):
    """Start a command line in a process of its own."""
    started = []

    def start(*arguments: str, grace_secs: int | None = None) -> Program:
        command = ["-m", "acker"] if grace_secs is None else ["-c", PATIENT.format(grace_secs)]
        process = subprocess.Popen(
            [sys.executable, *command, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        started.append(process)
        return Program(process)

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("until", [(), ("--until", "drained")], ids=len)
def test_runs_until_drained_and_shows_the_figures(invoke, until) -> None:
    answer = invoke("run", "jobs:Fine", *until)
    assert answer.exit_code == 0, answer.output
    lines = answer.output.splitlines()
    assert lines[0] == ("Fine runs: 2 components, 3 tasks; Ctrl-C drains it and stops, a second one stops it at once")
    assert re.search(r"^ numbers +1 +10 +10 +0 +0 +0 ", answer.output, re.MULTILINE)
    assert re.search(r"^ works +2 +0 +10 +10 +0 +0 ", answer.output, re.MULTILINE)
    assert lines[-1] == "Fine: Finished, with everything processed and nothing pending."


def test_runs_until_so_many_are_acked_or_the_time_is_up(invoke, folder) -> None:
    answer = invoke("run", "jobs:Runs", "--until", "25", "--report", "new/report.json")
    assert answer.exit_code == 0 and answer.output.endswith("report: new/report.json\n")
    report = json.loads((folder / "new/report.json").read_text())
    assert report["outcome"] == "reached" and report["stats"]["totals"]["acked"] >= 25
    assert report["stats"]["components"]["works"]["user"]["seen"] == report["stats"]["totals"]["acked"]
    both = ("--report", "report.html", "--report", "elapsed.json")
    answer = invoke("run", "jobs:Runs", "--until", "100ms", *both)
    assert (
        answer.exit_code == 0
        and "Runs: Finished, as the time was up.\nreport: report.html\nreport: elapsed.json\n" in answer.output
    )
    assert json.loads((folder / "elapsed.json").read_text())["outcome"] == "elapsed"
    page = (folder / "report.html").read_text()
    assert "Finished, as the time was up." in page and '"name":"numbers"' in page and page.endswith("</html>\n")
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert data["view"]["failures"]["rows"] == [] and data["view"]["dead_letters"]["total"] == 0


def test_exit_codes(stats) -> None:
    report = RunReport(topology="WordCount", outcome="drained", started_at="", seconds=2.0, stats=stats)
    abandoned = replace(report, abandoned=(Abandoned("split", 2, ""),))
    assert exit_code(report) == 0
    assert exit_code(replace(abandoned, outcome="failed", error="ValueError")) == 1
    assert exit_code(abandoned) == 3
    assert exit_code(replace(abandoned, outcome="aborted")) == 130


def test_options_reach_the_topology(invoke, folder) -> None:
    answer = invoke(
        *("run", "jobs:Holds", "--until", "drained", "--report", "report.json", "--trace", 1),
        *("--conf", "topology.message.timeout.secs=0.2", "--conf", "topology.acker.tasks=2"),
    )
    assert answer.exit_code == 0, answer.output
    report = json.loads((folder / "report.json").read_text())
    assert len(report["stats"]["tasks"]) == 4, "a spout, a bolt and two ackers"
    assert report["stats"]["totals"]["timed_out"] == 10 == len(report["timed_out_traces"])
    assert re.search(r"keeps\[2\] holds 1 tuple of numbers, for \d", report["timed_out_traces"][0])
    assert report["timed_out_traces"][-1] in answer.output
    assert report["timed_out_traces"][-4] not in answer.output
    assert "\N{HORIZONTAL ELLIPSIS} and 7 more, which --report writes\n" in answer.output
    assert answer.output.splitlines()[-2].endswith(" 10 timed out.")


def test_a_run_does_not_begin_if_its_report_may_not_be_written(invoke, folder, monkeypatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    answer = invoke("run", "jobs:Fine", "--report", "r.json")
    assert (answer.exit_code, answer.output) == (2, "acker: --report r.json cannot be written: Permission denied\n")


def test_a_report_that_cannot_be_written_keeps_no_other_from_it(invoke, folder, monkeypatch) -> None:
    write = acker.cli.topology.write_report

    def fill_up(result, graph, path, *more) -> None:
        if path.name == "full.json":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(result, graph, path, *more)

    monkeypatch.setattr(acker.cli.topology, "write_report", fill_up)
    both = ("--report", "full.json", "--report", "r.json")
    answer = invoke("run", "jobs:Fine", *both)
    assert answer.exit_code == 2
    assert answer.output.endswith("report: full.json was not written: No space left on device\nreport: r.json\n")
    assert json.loads((folder / "r.json").read_text())["outcome"] == "drained"
    assert invoke("run", "jobs:Fails", "--no-restart", *both).exit_code == 1


def test_states_are_kept_in_a_file(invoke, folder) -> None:
    for count in (10, 20):
        assert invoke("run", "jobs:Stateful", "--until", "drained", "--state", "counts").exit_code == 0
        assert read_state(folder / "counts") == {"counts": [{"count": count}]}
    answer = invoke("run", "jobs:Wider", "--state", "counts")
    assert answer.exit_code == 2 and "component 'counts' had par=1 and has par=2 now" in answer.output
    (folder / "counts").write_text("no states")
    answer = invoke("run", "jobs:Stateful", "--state", "counts")
    assert answer.exit_code == 2 and "expected to begin with" in answer.output
    answer = invoke("run", "jobs:Stateful", "--state", "missing/counts")
    assert answer.exit_code == 2 and "its folder is missing" in answer.output


def test_an_error_ends_with_1_and_is_shown(invoke) -> None:
    answer = invoke("run", "jobs:Fails", "--no-restart")
    assert answer.exit_code == 1
    assert "ValueError: the source is gone" in answer.output
    assert answer.output.splitlines()[-1].startswith("Fails: Stopped with an error")
    assert invoke("run", "jobs:Fails", "--max-restarts", 0).exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["run", "jobs:Fine", "--colour"], "No such option"),
        (["run", "jobs:Fine", "--until", "soon"], 'expected "drained", a time such as "30s"'),
        (["run", "jobs:Fine", "--trace", "0"], "0 is not in the range x>=1"),
        (["run", "jobs:Fine", "--report", "report.pdf"], "report.pdf: the name has to end in .html or .json"),
        (["run", "jobs:Fine", "--conf", "topology.debug"], "--conf topology.debug: write NAME=VALUE"),
        (["run", "jobs:Fine", "--conf", "topology.max.spout.pendings=1"], "topology.max.spout.pending"),
        (["run", "jobs:Fine", "--conf", "topology.max.spout.pending=many"], "got 'many'"),
        (["run", "jobs:Nothing"], "jobs has no Nothing: "),
        (["run", "nojobs:Fine"], "there is no module nojobs in "),
        (["run", "jobs"], "'jobs' names no topology: write MODULE:TOPOLOGY; those of jobs are jobs:Fa"),
        (["graph", "jobs.py"], "'jobs.py' names no topology: write MODULE:TOPOLOGY; those of jobs are jobs:Fails, "),
        (["run", "Fine"], "'Fine' names no topology: write MODULE:TOPOLOGY, such as wordcount:WordCount"),
        (["graph", "jobs:Works"], "jobs:Works is the class Works and no subclass of acker.topology.Topology: "),
        (["graph", "jobs:Fine", "--output", "fine.png"], "--output fine.png: name it *.dot, *.html or *.mmd, or say"),
        (["graph", "jobs:Fine", "--output", "jobs.py/fine.dot"], "fine.dot cannot be written: its folder is a file"),
        (["run", "jobs:Fine", "--report", "jobs.py/r.json"], "jobs.py/r.json cannot be written: its folder is a file"),
        (["run", "jobs:Fine", "--report", "jobs.py/a/r.json"], "jobs.py/a/r.json cannot be written: Not a directory"),
        (["run", "jobs:Fine", "--report", "."], "File '.' is a directory"),
    ],
)
def test_what_cannot_be_is_a_usage_error(invoke, folder, arguments, text) -> None:
    answer = invoke(*arguments)
    assert answer.exit_code == 2, answer.output
    assert text in " ".join(answer.output.split())
    assert sorted(path.name for path in folder.iterdir() if path.name != "__pycache__") == ["jobs.py"]


def test_an_environment_chooses_the_number_of_tasks(invoke, folder) -> None:
    answer = invoke("run", "jobs:Scaled", "-e", "prod", "--until", "10", "--report", "report.json")
    assert answer.exit_code == 0, answer.output
    report = json.loads((folder / "report.json").read_text())
    assert report["stats"]["components"]["works"]["tasks"] == 5
    answer = invoke("graph", "jobs:Scaled", "--environment", "beta")
    assert answer.exit_code == 0 and "bolt, 1 task" in answer.output
    for command in ("run", "graph"):
        answer = invoke(command, "jobs:Scaled")
        assert answer.exit_code == 2 and "choose one: run(..., environment='prod'), acker run" in answer.output


def test_a_port_that_is_taken_is_a_usage_error(invoke, runtime) -> None:
    from acker.local.prometheus import serve

    with serve(runtime, 0) as taken:
        answer = invoke("run", "jobs:Fine", "--prometheus", taken.port)
    assert answer.exit_code == 2
    assert answer.output.endswith("in use: take another port, or 0 for a free one\n")


def test_a_live_page_needs_an_address_that_is_free(invoke) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        answer = invoke("run", "jobs:Fine", "--ui", str(taken.getsockname()[1]))
    assert answer.exit_code == 2
    assert answer.output.endswith("in use: take another port, or 0 for a free one\n")
    answer = invoke("run", "--ui", "jobs:Fine", "jobs:Fine")
    assert answer.exit_code == 2 and "--ui: expected HOST:PORT, HOST or PORT, got 'jobs:Fine'" in answer.output
    for address in ("99999", "127.0.0.1:99999"):
        answer = invoke("run", "jobs:Fine", "--ui", address)
        assert (answer.exit_code, answer.output) == (2, "acker: --ui: expected port 0 to 65535, got 99999\n")
    answer = invoke("run", "jobs:Fine", "--ui-values")
    assert answer.exit_code == 2 and "add --ui" in answer.output


def test_a_live_page_is_shown_while_it_runs(start) -> None:
    program = start("run", "jobs:Runs", "--ui", "0", "--ui-values", grace_secs=60)
    url, _, token = program.wait_for("live page of Runs: ").split()[-1].partition("#token=")
    with urllib.request.urlopen(f"{url}api/view", timeout=120) as answer:
        view = json.loads(answer.read())
    assert (view["name"], view["dead_letters"]["values"]) == ("Runs", True)
    request = urllib.request.Request(f"{url}api/actions/pause", headers={"x-acker-token": token}, method="POST")
    with urllib.request.urlopen(request, timeout=120) as answer:
        assert json.loads(answer.read()) == {"did": "paused the spouts"}
    program.process.send_signal(signal.SIGINT)
    assert program.end() == 0, program.said


@pytest.mark.parametrize("signal_", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_drains_and_ends_with_0(start, signal_) -> None:
    program = start("run", "jobs:Runs", grace_secs=60)
    program.wait_for("Runs runs: ")
    program.process.send_signal(signal_)
    assert program.end() == 0, program.said
    assert program.said.splitlines()[-1] == "Runs: Stopped and drained."
    assert f"{signal_.name}: stopping" in program.said


def test_a_second_signal_ends_at_once_with_130(start) -> None:
    program = start("run", "jobs:Holds")
    program.wait_for("kept 9")
    program.process.send_signal(signal.SIGINT)
    program.wait_for("SIGINT: stopping")
    program.process.send_signal(signal.SIGINT)
    assert program.end() == 130, program.said
    assert program.said.splitlines()[-1].startswith("Holds: Stopped at once, without draining.")


def test_trees_that_are_open_when_it_stops_are_no_drained_ones(start, folder) -> None:
    short = ("--conf", "topology.drain.secs=0.05", "--report", "r.json", "--report", "r.html")
    program = start("run", "jobs:Holds", *short, grace_secs=60)
    program.wait_for("kept 9")
    program.process.send_signal(signal.SIGINT)
    assert program.end() == 0, program.said
    text = "Stopped. 10 trees were still open and were failed with reason SHUTDOWN."
    assert f"Holds: {text}\n" in program.said and "0 pending, 10 shut down" in program.said
    assert text in (folder / "r.html").read_text()
    assert json.loads((folder / "r.json").read_text())["stats"]["totals"]["shut_down"] == 10


def test_a_stop_while_a_restart_is_waited_for_names_the_exception(start) -> None:
    program = start("run", "jobs:Fails")
    program.wait_for("restart 1 of at most 5")
    program.process.send_signal(signal.SIGINT)
    assert program.end() == 0, program.said
    assert program.said.splitlines()[-1] == (
        "Fails: Stopped while it waited for a restart after ValueError: the source is gone."
    )


def test_what_caused_a_restart_is_told_at_the_end(invoke) -> None:
    answer = invoke("run", "jobs:Recovers", "--until", "drained")
    assert answer.exit_code == 0, answer.output
    assert "the last restart was after ValueError: the source is gone\n" in answer.output
    assert ", 1 restart\n" in re.sub(" +\n", "\n", answer.output)


def test_the_first_line_comes_before_the_start_is_over(start) -> None:
    program = start("run", "jobs:Opens")
    program.wait_for("Opens runs: 1 component, 1 task; Ctrl-C")
    assert program.wait_for("open").endswith("never open\n")
    for _ in range(2):
        program.process.send_signal(signal.SIGINT)
        program.wait_for("SIGINT")
    assert program.end() == 130, program.said


def test_a_task_that_never_comes_back_is_shown_and_ends_with_3(start, folder) -> None:
    program = start("run", "jobs:Hangs", "--conf", "topology.drain.secs=0.1", "--report", "r.json", grace_secs=3)
    program.wait_for("stuck")
    program.process.send_signal(signal.SIGINT)
    assert program.end() == 3, program.said
    assert "stuck[2] did not come back and was left behind, here:" in program.said
    assert "threading.Event().wait()" in program.said
    report = json.loads((folder / "r.json").read_text())
    assert [(task["component"], task["task"]) for task in report["abandoned"]] == [("stuck", 2)]


def test_figures_are_served_while_it_runs(start) -> None:
    program = start("run", "jobs:Runs", "--prometheus", "0")
    url = program.wait_for("metrics: ").split()[-1]
    served = ""
    while 'acker_messages_emitted_total{component="numbers"' not in served:  # The start may not be over.
        with urllib.request.urlopen(url, timeout=120) as answer:
            served = answer.read().decode()
    program.process.send_signal(signal.SIGINT)
    assert program.end() == 0, program.said


def test_a_terminal_shows_a_live_table(folder) -> None:
    import pty  # There is none on Windows.

    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "acker", "run", "jobs:Runs", "--ui", "0"]
    environ = {**os.environ, "COLUMNS": "140", "TERM": "xterm"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ) as process:
        os.close(theirs)
        said = b""
        while b"running: " not in said:  # The table comes before the start is over.
            said += os.read(ours, 1 << 16)
        process.send_signal(signal.SIGINT)
        try:
            while chunk := os.read(ours, 1 << 16):
                said += chunk
        except OSError:  # The other end of a pseudo-terminal is gone: on Linux that is an error.
            pass
        os.close(ours)
    assert process.returncode == 0
    text = said.decode()
    assert "Ctrl-C drains and stops, a second one stops at once" in text and "numbers" in text and "capacity" in text
    assert "\x1b[" in text and "SIGINT: stopping" in text and "Runs: Stopped and drained." in text
    assert "Traceback" not in text
    assert text.count("live page: http://127.0.0.1:") > 0, "below the table, since log lines move the first one away"


def test_elsewhere_a_line_comes_now_and_then(runtime, monkeypatch) -> None:
    monkeypatch.setattr(acker.cli.topology, "_LINE_SECONDS", 0.001)
    console, twice = Console(file=io.StringIO(), width=120), threading.Event()
    stats = runtime.stats

    def count():
        if runtime.asked == 2:
            twice.set()
        return stats()

    monkeypatch.setattr(runtime, "stats", count)
    with acker.cli.topology._lines(runtime, console):
        assert twice.wait(60)
    lines = console.file.getvalue().splitlines()
    assert lines[0] == "2.0 s, running: 6 acked (3 a second), 1 pending, 1 failed, 2 timed out, 1 restart"
    assert lines[1].startswith("2.0 s, running: 6 acked (0 a second)")


def test_a_topology_is_drawn(invoke, folder) -> None:
    assert invoke("graph", "jobs:Fine").output.startswith("digraph")
    assert invoke("graph", "jobs:Fine", "--format", "mermaid").output.startswith(("flowchart", "graph"))
    for name, start in (
        ("fine.html", "<!doctype html>"),
        ("deep/fine.mmd", ("flowchart", "graph")),
        ("fine.gv", "digraph"),
    ):
        answer = invoke("graph", "jobs:Fine", "--output", name)
        assert (answer.exit_code, answer.output) == (0, "")
        text = (folder / name).read_text()
        assert text.startswith(start) and "numbers" in text and text.endswith("\n")


@contextmanager
def handlers_of(root: logging.Logger):
    kept = root.handlers[:]
    root.handlers[:] = []
    try:
        yield
    finally:
        root.handlers[:] = kept


def test_logging_of_the_programs_own_is_left_alone() -> None:
    root, own = logging.getLogger(), logging.NullHandler()
    level = logging.getLogger("acker").level
    try:
        with handlers_of(root):
            root.addHandler(own)
            acker.cli.topology._log_to(Console(file=io.StringIO()))
            assert root.handlers == [own]
        for terminal, name in ((True, "RichHandler"), (False, "StreamHandler")):
            with handlers_of(root):
                acker.cli.topology._log_to(Console(file=io.StringIO(), force_terminal=terminal))
                assert [type(handler).__name__ for handler in root.handlers] == [name]
    finally:
        logging.getLogger("acker").setLevel(level)
