"""The `acker` command. It imports click alone; each command imports what else it needs when it runs."""

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
