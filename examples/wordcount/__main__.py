"""The word count that ``make run`` runs: ``python -m examples.wordcount``, or ``... stream`` for the streaming one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from acker.cli.commands import exit_with_code

WORDCOUNT_EXIT_CODES = """
\b
Exit codes:
    0  fine: verified, and no line was dead-lettered
    1  the counts or the trees are wrong
    2  usage: an option or a folder that cannot be
    3  verified, with dead-lettered lines
    4  something is missing: a package, a JDK, Spark did not start
    5  the job failed inside Spark
  130  interrupted
"""

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
Command = TypeVar("Command", bound=Callable[..., Any])


def word_count_options(attempts_max: int, output: str) -> Callable[[Command], Command]:
    """Return what gives a command the options of every word count."""
    options = (
        click.option(
            "--input",
            "folder",
            type=click.Path(path_type=Path),
            help="Count the text files under this folder.  [default: the standard library of the running Python]",
        ),
        click.option(
            "--master", default="local[*,4]", show_default=True, help="Spark master; local ones are started here."
        ),
        click.option(
            "--fail-rate",
            type=click.FloatRange(0, 1),
            default=0.005,
            show_default=True,
            help="Lines that split raises for.",
        ),
        click.option(
            "--drop-rate",
            type=click.FloatRange(0, 1),
            default=0.001,
            show_default=True,
            help="Lines that lose a word on the way.",
        ),
        click.option(
            "--seed", type=click.IntRange(0, 2**63 - 1), help="Repeats the faults and ids of a run.  [default: random]"
        ),
        click.option(
            "--max-attempts",
            type=click.IntRange(1, attempts_max),
            default=8,
            show_default=True,
            help="Send a line this often, then dead-letter it.",
        ),
        click.option(
            "--output",
            type=click.Path(path_type=Path, file_okay=False),
            default=output,
            show_default=True,
            help="Folder for the report, the dead letters and Spark's log.",
        ),
        click.option(
            "--report", type=click.Path(path_type=Path), help="The HTML report.  [default: report.html in --output]"
        ),
        click.option(
            "--json",
            "json_file",
            type=click.Path(path_type=Path, allow_dash=True),
            help="The numbers as JSON; - for stdout.",
        ),
        click.option(
            "--driver-memory", default="2g", show_default=True, help="Memory of the Spark that is started here."
        ),
    )

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@click.command(epilog=WORDCOUNT_EXIT_CODES, context_settings=SETTINGS)
@word_count_options(1000, "acker-report")
@exit_with_code
def batch(**options: Any) -> None:
    """Count words, each line of text a tracked tree.

    Lines go from a spout through a bolt that splits them to a bolt that counts words. Some lines fail and some words
    get lost, on purpose; their trees do not end acked, and they are sent again until they do. Only words of acked trees
    count, so the result is exact: at the end it is compared with a plain count of the same files.
    """
    from examples.wordcount.cli import main

    sys.exit(main(**options))


@click.command(epilog=WORDCOUNT_EXIT_CODES, context_settings=SETTINGS)
@word_count_options(1000, "acker-stream-report")
@click.option(
    "--timeout",
    "timeout_seconds",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    default=5.0,
    show_default=True,
    help="Give a line's tree up after this time, and send the line again.",
)
@click.option(
    "--spread",
    "spread_seconds",
    type=click.FloatRange(0),
    metavar="SECONDS",
    default=20.0,
    show_default=True,
    help="Drop the files over this time.",
)
@click.option(
    "--kills",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Kill the driver, Python and JVM, this often (SIGKILL), at random times of a micro-batch, and start it again.",
)
@click.option(
    "--worker-kills",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Kill a Python worker this often, likewise.",
)
@click.option(
    "--work",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep the drop folder, the checkpoint and what the stream writes here.  [default: removed at the end]",
)
@exit_with_code
def stream(**options: Any) -> None:
    """Count words as a stream, each line of text a tracked tree, with kills and restarts on request.

    Text files are dropped into a folder while a Spark stream reads it. Lines go from a spout through a bolt that splits
    them to a bolt that counts words. Some lines fail and are sent again at once; some words get lost, and the lines are
    sent again when their trees time out. The stream may be killed at any time and goes on from its checkpoint. Only
    words of acked trees count: at the end each line was acked exactly once or dead-lettered, and the result is compared
    with a plain count of the same files.

    A run with the default options takes a minute or two on two idle cores. A kill of the driver adds a start of Spark.
    """
    from examples.wordcount.stream_cli import main

    sys.exit(main(**options))


def main(arguments: list[str]) -> None:
    """Run the word count that the first word names, and exit with its code."""
    if arguments[:1] == ["stream"]:
        stream.main(arguments[1:], prog_name="python -m examples.wordcount stream")
    else:
        batch.main(arguments, prog_name="python -m examples.wordcount")


if __name__ == "__main__":
    main(sys.argv[1:])
