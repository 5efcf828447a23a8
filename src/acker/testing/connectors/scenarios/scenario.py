"""The type of a scenario, and bodies of messages for scenarios."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from acker.testing.connectors.harness import SourceHarness

# A scenario is named after the promise that it tests. It raises AssertionError if the source breaks the promise, and
# NotApplicable if the broker or its harness lacks something that the scenario needs.
Scenario: TypeAlias = Callable[[SourceHarness], None]


def numbered(count: int, first: int = 0) -> list[bytes]:
    """Return the bodies of so many messages."""
    return [b"message %d" % number for number in range(first, first + count)]
