"""The account of a run: every line acked or a dead letter, and the state a plain count of the acked ones."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyarrow.fs import FileSelector

from acker._files.paths import Place
from acker.errors import AckerError, CheckpointError
from acker.spark.hadoop import place_of
from acker.spark.topologies.journal import Journal
from acker.spark.topologies.state_reader import read_state_at
from tests.torture.topology_kills.words import ACKED, BAD, DEAD, LINES, SOUR, read_log

CHECKPOINT: Final = "checkpoint"


class AccountError(AckerError):
    """A line was lost, or counted twice."""


class Account(NamedTuple):
    """The figures of a run.

    Attributes
    ----------
    acked, dead : int
        How many lines ended in which way.
    told_again : int
        How many outcomes the spout was told once more, after a kill.
    micro_batches : int
        The number of the last one, and one.
    words : int
        How many the state has counted.
    """

    acked: int
    dead: int
    told_again: int
    micro_batches: int
    words: int


def counts_in(checkpoint: str | Path | Place) -> Counter[Any]:
    """Return how often each word was counted, as far as it is committed; nothing before the first commit."""
    counts: Counter[Any] = Counter()
    try:
        states = read_state_at(place_of(checkpoint))
    except CheckpointError:
        return counts
    for state in (state for tasks in states.values() for state in tasks):
        assert not counts.keys() & state.keys(), "two tasks have counted the same word"
        counts.update(state)
    return counts


def check(folder: Path, checkpoint: Place | None = None) -> Account:
    """Check a run that has ended, with its checkpoint in a directory of the folder or elsewhere.

    Raises
    ------
    AccountError
    """
    lines = dict(enumerate((folder / LINES).read_text().splitlines()))
    acked, dead = read_log(folder / ACKED), read_log(folder / DEAD)
    wrong = {number for number, line in lines.items() if {BAD, SOUR} & set(line.split())}
    faults = []
    if set(dead) != wrong:
        faults.append(f"dead letters {sorted(set(dead))[:9]}, expected {sorted(wrong)[:9]}")
    if set(acked) != lines.keys() - wrong:
        faults.append(f"lost {sorted(lines.keys() - wrong - set(acked))[:9]}, {len(set(acked))} acked")
    expected = Counter(word for number in lines.keys() - wrong for word in lines[number].split())
    place = place_of(folder / CHECKPOINT) if checkpoint is None else checkpoint
    state = counts_in(place)
    if state != expected:
        differences = {
            word: (state[word], expected[word]) for word in state | expected if state[word] != expected[word]
        }
        faults.append(f"{len(differences)} words with (state, expected) such as {dict(list(differences.items())[:9])}")
    last, commit = Journal(place).last_commit()
    if commit.entries:
        faults.append(f"the journal still has {commit.entries[:3]}")
    used = {file.name for chain in commit.chains.values() for file in chain.files}
    files = place.filesystem.get_file_info(FileSelector(place.path, recursive=True))
    names = [each.path.removeprefix(f"{place.path}/") for each in files if each.is_file]
    there = {name.removeprefix("state/") for name in names if name.startswith("state/")}
    if there != used:
        faults.append(f"files of state: {sorted(there - used)[:3]} are not needed, {sorted(used - there)[:3]} missing")
    unfinished = [name for name in names if "/." in name and not name.startswith("query/")]
    if unfinished:
        faults.append(f"unfinished files are left: {unfinished[:3]}")
    if faults:
        raise AccountError("; ".join(faults))
    again = len(acked) + len(dead) - len(set(acked)) - len(set(dead))
    return Account(len(set(acked)), len(set(dead)), again, last + 1, state.total())
