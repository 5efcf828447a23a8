"""The text files under a folder, their lines, and a plain count of their words, without Spark.

A line ends at a newline byte or at the end of its file; line numbers start at 1. What is not UTF-8 reads as U+FFFD,
so no file fails, and every reader reads the same.
"""

from __future__ import annotations

import os
import sysconfig
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

# A file with a zero byte among the first ones is binary: what git and grep look at, too.
_PROBE_BYTES = 8192

# Not text of the folder itself: installed packages, compiled code, version control.
SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__", ".git", ".hg", ".svn"})


@dataclass(frozen=True)
class Corpus:
    """The text files of a run; their place in `paths` is the file number.

    Attributes
    ----------
    root : str
        The folder, absolute.
    paths : tuple of str
        Relative to the folder, sorted.
    sizes : tuple of int
        Bytes of each file when it was found.
    binary : int
        Files that were left out because they are not text.
    """

    root: str
    paths: tuple[str, ...]
    sizes: tuple[int, ...]
    binary: int

    def path(self, file: int) -> str:
        """Return where a file is."""
        return os.path.join(self.root, self.paths[file])  # noqa: PTH118  Called by workers for every file.

    def chunks(self, count: int) -> list[list[int]]:
        """Split the file numbers into at most `count` groups of about the same size; none is empty."""
        lots: list[list[int]] = [[] for _ in range(max(1, min(count, len(self.paths))))]
        held = [0] * len(lots)
        for file in sorted(range(len(self.paths)), key=lambda file: -self.sizes[file]):
            least = held.index(min(held))
            lots[least].append(file)
            held[least] += self.sizes[file] + 1
        return [sorted(lot) for lot in lots if lot]


def default_input() -> Path:
    """Return the folder of the running Python's standard library, which every machine has."""
    return Path(sysconfig.get_path("stdlib"))


def find(root: Path) -> Corpus:
    """Find the text files under a folder. Links to folders are not followed.

    Raises
    ------
    NotADirectoryError
        There is no such folder.
    FileNotFoundError
        No text file is under it.
    """
    root = root.resolve()
    if not root.is_dir():
        raise NotADirectoryError(f"{root} is not a folder")
    paths, sizes, binary = [], [], 0
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in SKIPPED_FOLDERS)
        for name in names:
            path = Path(folder, name)
            if not path.is_file():
                continue
            with path.open("rb") as stream:
                probe = stream.read(_PROBE_BYTES)
            if b"\0" in probe:
                binary += 1
                continue
            paths.append(path.relative_to(root).as_posix())
            sizes.append(path.stat().st_size)
    if not paths:
        raise FileNotFoundError(f"no text file under {root}")
    order = sorted(range(len(paths)), key=paths.__getitem__)
    return Corpus(str(root), tuple(paths[i] for i in order), tuple(sizes[i] for i in order), binary)


def read_lines(path: str) -> list[str]:
    """Return the lines of a file, without the newline characters that end them."""
    with open(path, "rb") as stream:  # noqa: PTH123  Called by workers for every file.
        lines = stream.read().decode("utf-8", "replace").split("\n")
    if not lines[-1]:
        lines.pop()  # What follows the last newline is no line.
    return lines


def expected_counts(corpus: Corpus, dead: Iterable[str]) -> tuple[Counter[str], int]:
    """Count words and lines by another way than the pipeline: each file in one go, no line looked at.

    Parameters
    ----------
    corpus : Corpus
    dead : iterable of str
        Dead-lettered lines, whose words are taken off.

    Returns
    -------
    Counter, int
        The words, none with a count of 0; and the number of lines, the dead-lettered ones included.
    """
    counts: Counter[str] = Counter()
    lines = 0
    for file in range(len(corpus.paths)):
        content = Path(corpus.path(file)).read_bytes()
        counts.update(content.decode("utf-8", "replace").split())
        lines += content.count(b"\n") + (not content.endswith(b"\n") and content != b"")
    for text in dead:
        counts.subtract(text.split())
    return Counter({word: count for word, count in counts.items() if count}), lines
