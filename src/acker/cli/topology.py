"""`acker run` and `acker graph`: the live table, the reports, the drawings and the exit code."""

from __future__ import annotations

import dataclasses
import errno
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from acker.cli.environment import require
from acker.cli.load import UsageError, blame_state, load
from acker.cli.table import terminal_table
from acker.errors import PageError
from acker.observe.summary import line, quantity
from acker.ui import LivePage

if TYPE_CHECKING:
    from rich.console import Console

    from acker.cli.on_spark import OnSpark
    from acker.local import LocalRuntime
    from acker.observe.run_report import RunReport
    from acker.observe.stats import RuntimeStats
    from acker.topology import Graph

# How often the table of a terminal is redrawn, and how often a line is printed elsewhere.
_DRAWN_A_SECOND: Final = 4
_LINE_SECONDS: Final = 5.0

# The number of traces of timed-out trees to show, the last ones.
_TRACES_SHOWN: Final = 3

_REPORTS: Final = (".html", ".json")
_SUFFIXES: Final = {".dot": "dot", ".gv": "dot", ".html": "html", ".mmd": "mermaid", ".mermaid": "mermaid"}


def main(
    name: str,
    *,
    conf: Mapping[str, Any],
    until: str,
    reports: tuple[Path, ...],
    trace: int | None,
    prometheus: int | None,
    ui: str | None = None,
    ui_values: bool = False,
    no_restart: bool,
    max_restarts: int | None,
    state: Path | None,
    environment: str | None,
    on: OnSpark | None = None,
) -> int:
    """Run a topology, in this process or on Spark, and return the exit code."""
    for report in reports:
        if report.suffix not in _REPORTS:
            raise UsageError(f"--report {report}: the name has to end in {' or '.join(_REPORTS)}")
    require("rich", extra="cli")
    if prometheus is not None:
        require("prometheus_client", extra="prometheus")
    page = page_of(ui, values=ui_values)
    if page is None and any(report.suffix == ".html" for report in reports):
        page = LivePage(serve=False)
    if on is not None:
        restarts = {"--no-restart": no_restart or None, "--max-restarts": max_restarts}
        on.refuse_local_options({"--trace": trace, **restarts})
    from rich.console import Console

    from acker.local.run import stop_on_signals

    topology = load(name)
    for report in reports:
        _make_folder(report)
    # In a file or a pipe, lines need not be folded at 80.
    console = Console(width=None if sys.stdout.isatty() else 120)
    _log_to(console)
    if trace is not None:
        conf = {**conf, "topology.trace.sample": trace}
    with ExitStack() as stack:
        runtime: LocalRuntime
        if on is None:
            options: dict[str, Any] = {
                "max_restarts": max_restarts,
                "environment": environment,
                "state": state,
                "ui": page,
            }
            runtime = _local_runtime(topology, conf, no_restart=no_restart or None, **options)
        else:
            runtime = stack.enter_context(on.runtime(topology, conf, environment, state, page))
        if prometheus is not None:
            stack.enter_context(_serve_metrics(runtime, prometheus, console))
        stack.enter_context(stop_on_signals(runtime))
        wait = runtime.run if on is None else on.run_until(runtime)
        _run(runtime, lambda: wait(until), console)
    result = runtime.report()
    if result.restarts and not result.restart_pending:
        _say(console, f"the last restart was after {result.last_crash}", "yellow")
    _show(result, console)
    is_written = _write_reports(reports, result, runtime, console)
    return exit_code(result) or (0 if is_written else 2)


def page_of(ui: str | None, *, values: bool) -> LivePage | None:
    """Return the options of the live page, if one is wanted."""
    from acker.errors import ArgumentValueError
    from acker.ui.options import live_page_of

    if ui is None:
        if values:
            raise UsageError("--ui-values shows values on the live page: add --ui")
        return None
    require("starlette", "uvicorn", "prometheus_client", extra="ui")
    try:
        page = live_page_of(ui)
    except ArgumentValueError as error:
        # A port that is too large is an address; what is none may be the topology.
        hint = "" if ui.rpartition(":")[2].isdecimal() else ": put the option behind the topology"
        raise UsageError(f"--{error}{hint}") from error
    return None if page is None else dataclasses.replace(page, values=values)


def _local_runtime(topology: Any, conf: Mapping[str, Any], **options: Any) -> LocalRuntime:
    from acker.local import LocalRuntime

    with blame_state():
        return LocalRuntime(topology, conf, **options)


def _run(runtime: LocalRuntime, run: Callable[[], object], console: Console) -> None:
    tasks = sum(len(node.tasks) for node in runtime.graph.nodes.values())
    with _show_figures(runtime, console):
        try:
            # Before the start, which lasts as long as the slowest `initialize` of a component.
            _say(
                console,
                f"{runtime.graph.name} runs: {quantity(len(runtime.graph.nodes), 'component')}, "
                f"{quantity(tasks, 'task')}; Ctrl-C drains it and stops, a second one stops it at once",
            )
            run()
        except PageError as error:
            raise UsageError(f"--{error}") from error
        except Exception:
            # The error of the topology is in the report; any other one is a bug of the runtime.
            if runtime.error is None:
                raise
        finally:
            runtime.stop()


def exit_code(report: RunReport) -> int:
    """Return the exit code; an interrupt by the user takes precedence over an error."""
    if report.outcome == "aborted":
        return 130
    if report.error is not None:
        return 1
    return 3 if report.abandoned else 0


def _make_folder(report: Path) -> None:
    """Make the folder of a report, so that the run does not begin if it cannot be written."""
    try:
        report.parent.mkdir(parents=True, exist_ok=True)
        may_write = os.access(report if report.exists() else report.parent, os.W_OK)
    except OSError as error:
        raise UsageError(f"--report {report} cannot be written: {_why(error)}") from error
    if not may_write:
        raise UsageError(f"--report {report} cannot be written: {os.strerror(errno.EACCES)}")


def _write_reports(reports: tuple[Path, ...], result: RunReport, runtime: LocalRuntime, console: Console) -> bool:
    """Write all reports that can be written; return whether these are all."""
    is_written = True
    for report in reports:
        try:
            write_report(result, runtime.graph, report, *runtime.live.recorded())
        except OSError as error:  # the disk is full, or the folder is gone
            is_written = False
            _say(console, f"report: {report} was not written: {_why(error)}", "red")
        else:
            _say(console, f"report: {report}")
    return is_written


def _why(error: OSError) -> str | None:
    """Return why a file cannot be written."""
    # `mkdir` says "File exists" where a part of the path is a file.
    return "its folder is a file" if isinstance(error, FileExistsError) else error.strerror


def write_report(
    report: RunReport,
    graph: Graph,
    path: Path,
    last: Mapping[str, Any] | None = None,
    history: Mapping[str, Any] | None = None,
) -> None:
    """Write a report in the format of the file's name, .html or .json; `last` and `history` are what a page showed."""
    if path.suffix == ".json":
        text = json.dumps(report.to_json(), indent=2) + "\n"
    else:
        from acker.local.page.report_view import report_view
        from acker.ui.frozen import freeze

        text = freeze(report_view(report, graph, last), history)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def draw(name: str, *, how: str | None, output: Path | None, environment: str | None) -> int:
    """Draw a topology to a file or the standard output, and return the exit code."""
    from acker.topology import drawing
    from acker.topology.graph import graph_of
    from acker.ui.graph_page import graph_html

    if how is None:
        how = "dot" if output is None else _SUFFIXES.get(output.suffix)
    if how is None:
        raise UsageError(f"--output {output}: name it *.dot, *.html or *.mmd, or say which --format it is")
    graph = graph_of(load(name), environment)
    drawings: dict[str, Callable[[Graph], str]] = {"dot": drawing.dot, "html": graph_html, "mermaid": drawing.mermaid}
    text = drawings[how](graph).rstrip("\n") + "\n"
    if output is None:
        sys.stdout.write(text)
    else:
        try:
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--output {output} cannot be written: {_why(error)}") from error
    return 0


@contextmanager
def _serve_metrics(runtime: LocalRuntime, port: int, console: Console) -> Iterator[None]:
    from acker.local.prometheus import serve

    try:
        server = serve(runtime, port)
    except OSError as error:
        raise UsageError(f"--prometheus {port}: {error.strerror}: take another port, or 0 for a free one") from error
    with server:
        _say(console, f"metrics: {server.url}")
        yield


def _show_figures(runtime: LocalRuntime, console: Console) -> AbstractContextManager[object]:
    """Show the figures while they change: a live table on a terminal, a line every few seconds elsewhere."""
    if not console.is_terminal:
        return _lines(runtime, console)
    from rich.live import Live

    title, before = runtime.graph.name, runtime.stats()

    def table() -> Any:
        nonlocal before
        stats = runtime.stats()
        hint = "Ctrl-C drains and stops, a second one stops at once"
        if runtime.page is not None:  # Log lines have moved the line of the start away.
            hint = f"live page: {runtime.page.url_with_token}\n{hint}"
        shown = terminal_table(stats, f"{title}: {line(stats, before)}", hint, width=console.width)
        if stats.uptime_secs - before.uptime_secs >= 1:
            before = stats
        return shown

    return Live(get_renderable=table, console=console, refresh_per_second=_DRAWN_A_SECOND, transient=True)


@contextmanager
def _lines(runtime: LocalRuntime, console: Console) -> Iterator[None]:
    over = threading.Event()

    def work() -> None:
        before: RuntimeStats | None = None
        while not over.wait(_LINE_SECONDS):
            stats = runtime.stats()
            _say(console, line(stats, before))
            before = stats

    watcher = threading.Thread(target=work, name="progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _show(report: RunReport, console: Console) -> None:
    """Print the table, the problems, and the headline as the last line."""
    headline = report.headline
    colour = {"good": "green", "fair": "yellow", "bad": "red"}[headline["tone"]]
    console.print(terminal_table(report.stats, f"{report.topology}: {line(report.stats)}", width=console.width))
    if report.error is not None:
        _say(console, report.error, "red")
    for task in report.abandoned:
        _say(console, f"{task.component}[{task.task}] did not come back and was left behind, here:", "red")
        _say(console, task.stack.rstrip())
    for trace in report.timed_out_traces[-_TRACES_SHOWN:]:
        _say(console, trace, "yellow")
    more = len(report.timed_out_traces) - _TRACES_SHOWN
    if more > 0:
        _say(console, f"\N{HORIZONTAL ELLIPSIS} and {more:,} more, which --report writes", "yellow")
    _say(console, f"{report.topology}: {headline['text']}", colour)


def _say(console: Console, text: str, style: str | None = None) -> None:
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
    console.file.flush()


def _log_to(console: Console) -> None:
    """Show the log of the runtime and the components, unless the program has configured logging itself.

    On a terminal through the console, which keeps the live table below the lines; elsewhere on the standard error.
    """
    handler: logging.Handler
    if console.is_terminal:
        from rich.logging import RichHandler

        handler = RichHandler(console=console, show_path=False, log_time_format="%H:%M:%S")
    else:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S"))
    logging.basicConfig(handlers=[handler])
    logging.getLogger("acker").setLevel(logging.INFO)


def parse_conf(pairs: tuple[str, ...]) -> dict[str, Any]:
    """Return NAME=VALUE pairs as options: the value as JSON if it parses, otherwise as text."""
    conf: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise UsageError(f"--conf {pair}: write NAME=VALUE, such as topology.message.timeout.secs=5")
        try:
            conf[name] = json.loads(text)
        except ValueError:
            conf[name] = text
    return conf
