"""What the commands of the soaks print."""

import sys
from collections.abc import Mapping


def say(text: str) -> None:
    """Print a line at once, also into a pipe."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def say_totals(totals: Mapping[str, int], needed: str, otherwise: str) -> int:
    """Print the figures of a soak; return its exit code: 1 if the needed figure is 0, and then `otherwise` is said."""
    if not totals.get(needed):
        say(otherwise)
        return 1
    say(", ".join(f"{count:,} {name}" for name, count in totals.items()))
    return 0
