"""What can be typed after `acker`, and what it answers to the shell."""

from __future__ import annotations

import copy
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

EXIT_CODES = """
\b
Exit codes of all commands; the help of each lists its own besides:
    0  fine
    2  usage: an option, a name or a folder that cannot be
    4  something is missing: a package, a JDK, Spark did not start
  130  interrupted
"""

DOCTOR_EXIT_CODES = """
\b
Exit codes:
    0  fine
    1  something is not fine: a package or a JDK is missing, Spark did not start, an executor has another acker
    2  usage: an unknown option
    4  click is missing, without which there is no command
  130  interrupted
"""

TOPOLOGY_EXIT_CODES = """
\b
Exit codes:
    0  fine: drained, reached what --until asks for, or stopped by one Ctrl-C; so too where trees failed, timed
       out, or were still open at the end and were failed with reason SHUTDOWN: the last line counts them
    1  the topology ended with an error
    2  usage: no such topology, it is defined wrongly, an unknown option
    3  a task did not come back from user code and was left behind; its stack is shown
    4  something is missing: a package
  130  interrupted: a second Ctrl-C stopped it without draining
"""

INSPECT_EXIT_CODES = """
\b
Exit codes:
    0  fine
    1  the state of a shard is damaged, contradicts itself, or was written by another release
    2  usage: no checkpoint, no acker in it, an unknown option
    4  something is missing: a package, a JDK, Spark did not start
  130  interrupted
"""

GRAPH_EXIT_CODES = """
\b
Exit codes:
    0  fine
    2  usage: no such topology, or it is defined wrongly
"""

# What stands for any topology in lists of commands.
_ANY_TOPOLOGY = "MODULE:TOPOLOGY"

Command = TypeVar("Command", bound=Callable[..., Any])


def fail(text: str, code: int) -> NoReturn:
    """Say one sentence and leave."""
    click.echo(f"acker: {text}", err=True)
    sys.exit(code)


def exit_with_code(command: Command) -> Command:
    """Turn what a command raises into one sentence and an exit code."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except SetupError as fault:
            fail(str(fault), 4)
        except (UsageError, TopologyError) as fault:
            fail(str(fault), 2)
        except KeyboardInterrupt:
            fail("interrupted", 130)

    return run  # type: ignore[return-value]


@click.group(epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, "-V", "--version", prog_name="acker")
def cli() -> None:
    """Know, for every message that enters a pipeline, when everything derived from it is finished."""


class Jobs(click.Group):
    """The named jobs; and any topology, by a name with a colon."""

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Return the command of a job or of a topology."""
        if ":" not in name:
            return super().get_command(ctx, name)
        command = copy.copy(topology)
        command.name = name
        command.callback = functools.partial(topology.callback or fail, name)
        return command

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return what help lists."""
        return [_ANY_TOPOLOGY, *super().list_commands(ctx)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Say how topologies are named where there is no such job."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as fault:
            text = f"{fault.message} A topology is named {_ANY_TOPOLOGY}, such as wordcount:WordCount."
            raise click.UsageError(text, ctx) from fault


@cli.group(cls=Jobs, epilog=EXIT_CODES)
def run() -> None:
    """Run a topology in this process, or a job on Spark."""


def _until(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    from acker.errors import ArgumentValueError
    from acker.local.until import parse_until

    try:
        parse_until(value)
    except ArgumentValueError as fault:
        raise click.BadParameter(str(fault).removeprefix("until: ")) from fault
    return value


_environment_option = click.option(
    "-e", "--environment", metavar="NAME", help='Which of the numbers of tasks in par={"prod": 5, "beta": 1} holds.'
)


@click.command(epilog=TOPOLOGY_EXIT_CODES)
@click.option(
    "--conf", "pairs", multiple=True, metavar="NAME=VALUE", help="An option of the topology; the value as JSON or text."
)
@click.option(
    "--until", callback=_until, metavar="WHEN", help="drained, a time such as 30s, or a number of acked trees."
)
@click.option(
    "--report",
    "reports",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="FILE",
    help="Write a report, .html or .json; may be given more than once.",
)
@click.option("--trace", type=click.IntRange(1), metavar="N", help="Keep the edges of one tree in N.")
@click.option("--prometheus", type=click.IntRange(0, 65535), metavar="PORT", help="Serve metrics; 0: on a free port.")
@click.option("--no-restart", is_flag=True, help="The first exception that escapes ends the topology.")
@click.option("--max-restarts", type=click.IntRange(0), help="Restarts in a row, then it ends.  [default: 5]")
@_environment_option
@exit_with_code
def topology(name: str, pairs: tuple[str, ...], **options: Any) -> None:
    """Run a topology in this process, until it is stopped or --until holds.

    MODULE is imported, the current folder being searched first. A table of the components is shown meanwhile: emitted,
    executed and acked tuples, latencies, the share of the time that the busiest task works (capacity), queues.

    Ctrl-C (or SIGTERM) stops it in order: spouts rest, and what is under way may end. A second one stops it at once.
    """
    from acker.cli.topology import main, parse_conf

    sys.exit(main(name, conf=parse_conf(pairs), **options))


@cli.command(epilog=GRAPH_EXIT_CODES)
@click.argument("topology", metavar=_ANY_TOPOLOGY)
@click.option(
    "--format", "how", type=click.Choice(["dot", "svg", "mermaid"]), help="[default: by the name of --output, or dot]"
)
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="[default: the standard output]")
@_environment_option
@exit_with_code
def graph(topology: str, how: str | None, output: Path | None, environment: str | None) -> None:
    """Draw a topology: for Graphviz, as SVG (which needs no Graphviz), or for Mermaid."""
    from acker.cli.topology import draw

    sys.exit(draw(topology, how=how, output=output, environment=environment))


@cli.group(epilog=EXIT_CODES)
def state() -> None:
    """Look at what a streaming acker on Spark keeps."""


@state.command(epilog=INSPECT_EXIT_CODES)
@click.argument("checkpoint")
@click.option("--operator", type=click.IntRange(0), metavar="N", help="Of this stateful operator only.  [default: all]")
@click.option("--json", "as_json", is_flag=True, help="Everything, as JSON.")
@click.option("--master", default="local[2]", show_default=True, help="Spark master that reads the state.")
@click.option("--driver-memory", default="2g", show_default=True, help="Memory of the Spark that is started here.")
@exit_with_code
def inspect(**options: Any) -> None:
    """Read the state in the CHECKPOINT of a query, which may run meanwhile: pending trees, their ages, bytes.

    CHECKPOINT is the query's checkpointLocation. Each shard's log is read and compared with what the shard says of it.
    """
    from acker.cli.state import inspect

    sys.exit(inspect(**options))


def _settings(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Read KEY=VALUE options."""
    pairs = [value.partition("=") for value in values]
    for key, equals, _value in pairs:
        if not key or not equals:
            raise click.BadParameter(f"expected KEY=VALUE, got {key}{equals}")
    return {key: value for key, _, value in pairs}


@cli.command(epilog=DOCTOR_EXIT_CODES)
@click.option("--master", default="local[*]", show_default=True, help="Spark master to look at.")
@click.option(
    "--conf", multiple=True, callback=_settings, metavar="KEY=VALUE", help="Setting of Spark, as often as needed."
)
@click.option("--archives", metavar="A,B#NAME", help="As of spark-submit: archives that executors unpack.")
@click.option("--py-files", metavar="A,B", help="As of spark-submit: what comes onto the path of Python workers.")
@click.option("--python", metavar="PROGRAM", help="Of the workers.  [default: PYSPARK_PYTHON, else this one]")
@click.option("--ship", is_flag=True, help="Send acker to the executors first, as acker.spark.ship does.")
@exit_with_code
def doctor(
    master: str, conf: dict[str, str], archives: str | None, py_files: str | None, python: str | None, ship: bool
) -> None:
    """Show versions, and look at acker on each executor: one task on each core.

    Where an executor has no acker, or one that does not fit, the answer names what mends it. The options are those with
    which the job will be started: what they bring to the executors is looked at too.
    """
    from acker.cli.doctor import main

    names = {"spark.archives": archives, "spark.pyspark.python": python}
    given = {key: value for key, value in names.items() if value is not None}
    sys.exit(main(master, {**conf, **given}, py_files=py_files.split(",") if py_files else (), ship=ship))
