"""The command `python -m tests.torture.shipping`: submit a job in each way of docs/shipping.md."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.torture.output import say
from tests.torture.shipping.run import PACKAGES, Recipe, ShippingError, make_environment, pack, submit

_WHAT = "Submit a job in each way of docs/shipping.md."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code: 1 if a way does not work."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture.shipping", description=_WHAT)
    parser.add_argument("--messages", type=int, default=1_000_000, help="messages a job, at least (%(default)s)")
    parser.add_argument(
        "--linked",
        action="store_true",
        help="link this environment's packages; do not run pip",
    )
    parser.add_argument("recipes", nargs="*", type=Recipe, help=f"some of {', '.join(Recipe)} (default: all)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="acker-shipping-", ignore_cleanup_errors=True) as scratch:
        try:
            _run(Path(scratch), options.recipes or list(Recipe), options.messages, linked=options.linked)
        except ShippingError as error:
            say(str(error))
            return 1
    return 0


def _run(folder: Path, recipes: Sequence[Recipe], messages: int, *, linked: bool) -> None:
    begin = time.monotonic()
    say(f"environments: {'links to this one' if linked else 'pip installs ' + ', '.join(PACKAGES)}")
    lacking = make_environment(folder / "lacking", linked=linked)
    packed = None
    if Recipe.ARCHIVES in recipes:
        make_environment(folder / "environment", linked=linked, with_acker=True)
        packed = pack(folder / "environment", folder / "environment.tar.gz")
        say(f"packed environment: {packed.stat().st_size / 1e6:.0f} MB")
    for recipe in recipes:
        shipped = submit(recipe, folder / recipe, lacking, messages=messages, packed=packed)
        say(f"{recipe}: {shipped.messages:,} messages, trees {shipped.outcomes}")
        if shipped.fault is not None:
            say(f"    before: {shipped.fault}")
        for found in shipped.executors:
            about = f"acker {found['acker']}, {found['kernel']}, {found['at']}"
            say(f"    {found['folder']} settled {shipped.settled[found['folder']]:,} trees with {about}")
    say(f"{time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
