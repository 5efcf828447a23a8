"""The `acker` command. Importing it needs click only; what a command needs besides is imported when it runs."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line, and exit with its code (see `acker --help`)."""
    try:
        import click  # noqa: F401
    except ImportError:
        print("click is not installed: pip install 'acker[cli]'", file=sys.stderr)
        sys.exit(4)
    from acker.cli.commands import cli

    cli()
