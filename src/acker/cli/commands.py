"""The commands of the command line: their options, their help and their exit codes."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from acker import __version__
from acker.cli.environment import SetupError
from acker.cli.load import UsageError
from acker.errors import TopologyError
from acker.ui.options import PORT

EXIT_CODES = """
\b
Exit codes of all commands; the help of a command lists its own:
    0  success
    2  wrong usage: an unknown option, or a value that is not allowed
    4  a package or a JDK is missing, or Spark did not start
  130  interrupted
"""

DOCTOR_EXIT_CODES = """
\b
Exit codes:
    0  everything works
    1  something does not work: a package or a JDK is missing, Spark did not
       start, or an executor has no acker that fits
    2  wrong usage: an unknown option
    4  click is not installed
  130  interrupted
"""

RUN_EXIT_CODES = """
\b
Exit codes:
    0  success: drained, --until reached, or stopped by one Ctrl-C; the last
       line counts trees that failed, timed out or were still open
    1  the topology ended with an error
    2  wrong usage: no such topology, a wrong definition, an unknown option, or
       a report that cannot be written
    3  a task hung in user code and was abandoned; its stack is shown
    4  a package or a JDK is missing, or Spark did not start
  130  interrupted: a second Ctrl-C stopped it without draining
"""

CONSUME_EXIT_CODES = """
\b
Exit codes:
    0  success: stopped by SIGTERM or one Ctrl-C, or empty
    1  the consumer ended with an error, such as a wrong password
    2  wrong usage: no such consumer or handler, or an unknown option
    4  click, or what the live page needs, is not installed
  130  interrupted: a second Ctrl-C stopped it at once
"""

LETTERS_EXIT_CODES = """
\b
Exit codes:
    0  success, also if there is no such letter
    1  the broker or the file could not be read, or a letter was not confirmed
       and stays where it is
    2  wrong usage: no such place, or an unknown option
    4  click is not installed
  130  interrupted; what was published and not yet dropped is there twice
"""

INSPECT_EXIT_CODES = """
\b
Exit codes:
    0  success
    1  the state of a shard is damaged, contradicts itself, or was written by
       another release
    2  wrong usage: no checkpoint, no acker in it, or an unknown option
    4  a package or a JDK is missing, or Spark did not start
  130  interrupted
"""

GRAPH_EXIT_CODES = """
\b
Exit codes:
    0  success
    2  wrong usage: no such topology, a wrong definition, or an output that
       cannot be written
"""

Command = TypeVar("Command", bound=Callable[..., Any])


def fail(text: str, code: int) -> NoReturn:
    """Print one sentence and exit."""
    click.echo(f"acker: {text}", err=True)
    sys.exit(code)


def exit_with_code(command: Command) -> Command:
    """Turn the exceptions of a command into one sentence and an exit code."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except SetupError as error:
            fail(str(error), 4)
        except (UsageError, TopologyError) as error:
            fail(str(error), 2)
        except KeyboardInterrupt:
            fail("interrupted", 130)

    return run  # type: ignore[return-value]


@click.group(epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, "-V", "--version", prog_name="acker")
def cli() -> None:
    """Run consumers, work on dead letters, run and draw topologies, check and inspect acker on Spark."""


def _until(_context: click.Context, _option: click.Parameter, value: str) -> str:
    from acker.errors import ArgumentValueError
    from acker.local.until import parse_until

    try:
        parse_until(value)
    except ArgumentValueError as error:
        raise click.BadParameter(str(error).removeprefix("until: ")) from error
    return value


_topology_argument = click.argument("topology", metavar="MODULE:TOPOLOGY")
_environment_option = click.option(
    "-e",
    "--environment",
    metavar="NAME",
    help='Use the task counts of this environment, such as "prod" in par={"prod": 5, "beta": 1}.',
)


_ui_option = click.option(
    "--ui",
    is_flag=False,
    flag_value=str(PORT),
    metavar="[HOST:PORT]",
    help="Show a live page on this address, by default 127.0.0.1:8790; port 0 takes a free one. Its URL is printed.",
)
_ui_values_option = click.option("--ui-values", is_flag=True, help="Let the live page show the values of dead letters.")


@cli.command(epilog=RUN_EXIT_CODES, short_help="Run a topology, in this process or on Spark.")
@_topology_argument
@click.option(
    "--conf",
    "pairs",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set an option of the topology, or one of Spark such as spark.executor.memory; VALUE is JSON or text. May be "
    "repeated.",
)
@click.option(
    "--until",
    callback=_until,
    default="drained",
    show_default=True,
    metavar="WHEN",
    help='Stop when all work is done ("drained"), after a time ("30s") or a number of acked trees ("1000"), or only by '
    'Ctrl-C ("stopped").',
)
@click.option(
    "--report",
    "reports",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    multiple=True,
    metavar="FILE",
    help="Write a report, .html or .json. May be repeated.",
)
@click.option("--trace", type=click.IntRange(1), metavar="N", help="Trace one tree in N.")
@click.option(
    "--prometheus",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Serve metrics on this port; 0 takes a free one.",
)
@_ui_option
@_ui_values_option
@click.option("--no-restart", is_flag=True, help="End the topology at the first exception.")
@click.option(
    "--max-restarts", type=click.IntRange(0), help="End the topology after this many restarts in a row.  [default: 5]"
)
@click.option(
    "--state",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Keep the states of bolts in this file: read it at the start if it exists, write it at the end.",
)
@_environment_option
@click.option(
    "--on",
    "place",
    type=click.Choice(["local", "spark"]),
    default="local",
    show_default=True,
    help="Run the bolts in this process, or on Spark.",
)
@click.option("--master", metavar="URL", help="Spark master.  [default: from Spark's own settings, or local[*]]")
@click.option(
    "--checkpoint",
    metavar="DIR",
    help="Run as a stream on Spark, and continue where the last run with this directory has stopped; all workers have "
    "to see it.  [default: a batch job]",
)
@click.option(
    "--trigger",
    metavar="TIME",
    help='How often the stream begins a micro-batch, such as "5 seconds".  [default: 1 second]',
)
@exit_with_code
def run(
    topology: str,
    pairs: tuple[str, ...],
    place: str,
    master: str | None,
    checkpoint: str | None,
    trigger: str | None,
    **options: Any,
) -> None:
    """Run a topology until it is stopped or --until holds: in this process, or with --on spark on Spark.

    MODULE is looked up in the current folder first; a file below it, such as jobs/orders.py, will do too. While the
    topology runs, a table shows for each component the tuples emitted, executed and acked, latencies, queues, and
    capacity: the busy share of its busiest task.

    Ctrl-C or SIGTERM drains the topology: spouts stop, and open trees may finish. A second one stops it at once.
    """
    from acker.cli.on_spark import OnSpark
    from acker.cli.topology import main, parse_conf

    spark = OnSpark(master, checkpoint, trigger)
    if place == "local":
        spark.refuse()
    sys.exit(main(topology, conf=parse_conf(pairs), on=spark if place == "spark" else None, **options))


@cli.command(epilog=CONSUME_EXIT_CODES, short_help="Run a consumer of a message broker.")
@click.argument("consumer", metavar="MODULE:CONSUMER")
@click.option(
    "--handler",
    default="handle",
    show_default=True,
    metavar="NAME",
    help="The function in MODULE that gets each message; it may be a coroutine function.",
)
@click.option("--threads", type=click.IntRange(1), metavar="N", help="Threads that call the handler.  [default: 8]")
@click.option("--tasks", type=click.IntRange(1), metavar="N", help="Coroutines at a time.  [default: 100]")
@click.option(
    "--until",
    type=click.Choice(["stopped", "empty"]),
    default="stopped",
    show_default=True,
    help="Stop only by a signal, or also when no message has come for a second and all are done.",
)
@_ui_option
@_ui_values_option
@exit_with_code
def consume(consumer: str, **options: Any) -> None:
    """Give each message of a consumer to a function, until it is stopped.

    MODULE is looked up in the current folder first; a file below it, such as jobs/orders.py, will do too. The consumer
    and the function stand at its top level.

    SIGTERM or Ctrl-C lets open messages end. A second Ctrl-C stops at once. Calls in pools that hang at the end do not
    keep the process: after two seconds it ends with its exit code.
    """
    from acker.cli.consume import main

    sys.exit(main(consumer, **options))


@cli.group(epilog=LETTERS_EXIT_CODES, short_help="List, show, retry and drop dead letters.")
def letters() -> None:
    """List, show, retry and drop dead letters.

    PLACE is a file of dead letters, or MODULE:NAME of a consumer, whose letters are meant, or of a publisher to where
    they lie. With IDs, only those letters are meant; with options, only those that all of them fit.
    """


def _letters_command(name: str, help_text: str) -> Callable[[Command], Command]:
    """Return what makes a command of `acker letters`, with the options that choose letters."""
    options = (
        letters.command(name, epilog=LETTERS_EXIT_CODES, short_help=help_text),
        click.argument("place"),
        click.argument("ids", nargs=-1),
        click.option("--reason", metavar="TEXT", help="Only those whose reason contains this text."),
        click.option("--key", metavar="TEXT", help="Only those whose key contains this text."),
        click.option(
            "--older", metavar="AGE", callback=_age, help='Only those older than this, such as "90s" or "2d".'
        ),
        click.option("--newer", metavar="AGE", callback=_age, help="Only those newer."),
        click.option(
            "--most",
            type=click.IntRange(1),
            default=10_000,
            show_default=True,
            metavar="N",
            help="Look at this many letters at most.",
        ),
        exit_with_code,
    )
    return lambda command: functools.reduce(lambda made, option: option(made), reversed(options), command)


def _age(_context: click.Context, _option: click.Parameter, value: str | None) -> float | None:
    from acker.cli.letters import parse_age

    return None if value is None else parse_age(value)


@_letters_command("list", "List dead letters, one a line.")
@click.option("--json", "as_json", is_flag=True, help="Print each letter whole, as a line of JSON.")
def list_letters(**options: Any) -> None:
    """List dead letters: id, age, attempts, key, reason. They stay where they are."""
    from acker.cli.letters import print_list

    sys.exit(print_list(**options))


@_letters_command("show", "Show dead letters whole.")
def show_letters(**options: Any) -> None:
    """Show dead letters whole: reason, source, headers and body."""
    from acker.cli.letters import show

    sys.exit(show(**options))


_to_option = click.option(
    "--to",
    metavar="MODULE:NAME",
    help="A consumer or source: its letters go back to where it reads. Or a publisher: all go there.  [default: where "
    "the consumer PLACE reads]",
)


@_letters_command("retry", "Publish dead letters again.")
@_to_option
def retry_letters(**options: Any) -> None:
    """Publish dead letters again to where they came from; each is dropped when the broker has confirmed it.

    Headers that acker and brokers added are left out. If this ends in the middle, a message may come twice; none is
    lost.
    """
    from acker.cli.letters import retry

    sys.exit(retry(**options))


@_letters_command("drop", "Drop dead letters for good.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def drop_letters(**options: Any) -> None:
    """Drop dead letters for good. It says how many, and asks."""
    from acker.cli.letters import drop

    sys.exit(drop(**options))


@cli.command(epilog=GRAPH_EXIT_CODES, short_help="Draw a topology.")
@_topology_argument
@click.option(
    "--format",
    "how",
    type=click.Choice(["dot", "html", "mermaid"]),
    help="Format of the drawing.  [default: from the suffix of --output, or dot]",
)
@click.option(
    "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write to this file.  [default: standard output]"
)
@_environment_option
@exit_with_code
def graph(topology: str, how: str | None, output: Path | None, environment: str | None) -> None:
    """Draw a topology for Graphviz, for Mermaid, or as an HTML page, which needs no other program."""
    from acker.cli.topology import draw

    sys.exit(draw(topology, how=how, output=output, environment=environment))


@cli.group(epilog=EXIT_CODES, short_help="Inspect streaming ackers on Spark.")
def state() -> None:
    """Inspect the state of streaming ackers on Spark."""


@state.command(epilog=INSPECT_EXIT_CODES, short_help="Read the state in a checkpoint.")
@click.argument("checkpoint")
@click.option("--operator", type=click.IntRange(0), metavar="N", help="Read this stateful operator.  [default: all]")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option("--master", default="local[2]", show_default=True, help="Spark master that reads the state.")
@click.option("--driver-memory", default="2g", show_default=True, help="Memory of Spark's driver.")
@exit_with_code
def inspect(**options: Any) -> None:
    """Show the pending trees of a streaming query, their ages and their size.

    CHECKPOINT is the query's checkpointLocation; the query may be running. Each shard's log is read and compared with
    the counts that the shard keeps.
    """
    from acker.cli.state import inspect

    sys.exit(inspect(**options))


def _settings(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Parse KEY=VALUE options."""
    pairs = [value.partition("=") for value in values]
    for key, equals, _value in pairs:
        if not key or not equals:
            raise click.BadParameter(f"expected KEY=VALUE, got {key}{equals}")
    return {key: value for key, _, value in pairs}


@cli.command(epilog=DOCTOR_EXIT_CODES, short_help="Check the installation, Spark and its executors.")
@click.option("--master", default="local[*]", show_default=True, help="Spark master to check.")
@click.option(
    "--conf", multiple=True, callback=_settings, metavar="KEY=VALUE", help="Set a Spark option. May be repeated."
)
@click.option("--archives", metavar="A,B#NAME", help="Archives that executors unpack, as for spark-submit.")
@click.option("--python", metavar="PROGRAM", help="Python for the workers.  [default: PYSPARK_PYTHON, or this one]")
@click.option("--ship", is_flag=True, help="Send acker to the executors first, as acker.spark.ship does.")
@exit_with_code
def doctor(master: str, conf: dict[str, str], archives: str | None, python: str | None, ship: bool) -> None:
    """Show versions, start Spark, and check acker on each executor.

    One task runs on each core. Where an executor has no acker, or one that does not fit, the output says how to fix it.
    Pass the same options as for your job, so that what they send to the executors is checked too.
    """
    from acker.cli.doctor import main

    names = {"spark.archives": archives, "spark.pyspark.python": python}
    given = {key: value for key, value in names.items() if value is not None}
    sys.exit(main(master, {**conf, **given}, ship=ship))
