"""The tables of ARCHITECTURE.md name what there is: each path exists, and no module or header is left out."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.repository

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
# Folders whose every module or header a table names, and the endings of those files.
COMPLETE = {
    "ext/acker/": (".h", ".pyx", ".pxi"),
    "src/acker/": (".py",),
    "src/acker/_engine/": (".py",),
    "src/acker/_files/": (".py",),
    "src/acker/observe/": (".py",),
    "src/acker/topology/": (".py",),
    "src/acker/local/": (".py",),
    "src/acker/connectors/": (".py",),
    "src/acker/remote/": (".py",),
    "src/acker/spark/": (".py",),
    "src/acker/spark/topologies/": (".py",),
}


def tables() -> dict[str, list[str]]:
    """Return the names in the first column of each table whose head is a folder, by that folder."""
    found: dict[str, list[str]] = {}
    for head, rows in re.findall(r"^\| `([^`]+)` \| content \|\n\|[-|]+\|\n((?:\|.*\n)+)", PAGE, re.MULTILINE):
        cells = [row.split("|")[1] for row in rows.splitlines()]
        found[head] = [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]
    return found


def tracked(folder: str) -> list[str]:
    """Return the paths below a folder that git tracks and that exist, relative to it."""
    command = ["git", "-C", str(ROOT / folder), "ls-files"]
    listed = subprocess.run(command, capture_output=True, check=True, text=True).stdout.splitlines()
    return [name for name in listed if (ROOT / folder / name).is_file()]


def parts_of(folder: str) -> set[str]:
    """Return what a table of this folder has to name: its files, and its folders of such files."""
    parts = set()
    for name in tracked(folder):
        first, slash, _ = name.partition("/")
        if not name.endswith(COMPLETE[folder]) or first in {"__init__.py", "__main__.py", "tests"}:
            continue
        parts.add(f"{first}/" if slash else first)
    return parts


def test_every_path_in_a_table_exists() -> None:
    assert tables().keys() == {".", *COMPLETE}
    for folder, names in tables().items():
        for name in names:
            path = ROOT / folder / name
            assert path.is_dir() if name.endswith("/") else path.is_file(), f"{folder}: {name} does not exist"


@pytest.mark.parametrize("folder", COMPLETE)
def test_a_table_names_every_part_of_its_folder_once(folder: str) -> None:
    names = tables()[folder]
    assert len(names) == len(set(names))
    assert set(names) == parts_of(folder)
    assert len(names) > 5


def test_the_folders_of_the_repository_are_named() -> None:
    folders = {f"{name.partition('/')[0]}/" for name in tracked(".") if "/" in name and not name.startswith(".")}
    assert set(tables()["."]) == folders
