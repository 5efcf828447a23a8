"""The search for a Java that runs Spark 4. Standard library only: scripts/find_jdk.py loads this file by its path."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

OLDEST: Final = 17
# The releases that Spark is tested on: the first two the longest, 25 came last.
BEST: Final = (17, 21)
GOOD: Final = (25,)

JVM_FOLDERS: Final = (
    Path("/usr/lib/jvm"),
    Path("/usr/java"),
    Path("/opt"),
    Path("/opt/java"),
    Path("/Library/Java/JavaVirtualMachines"),
    Path("/opt/homebrew/opt"),
    Path("/usr/local/opt"),
    Path.home() / ".sdkman/candidates/java",
)

_JAVA: Final = "java.exe" if os.name == "nt" else "java"
# Linux and Windows, macOS, Homebrew.
_LAYOUTS: Final = ("bin", "Contents/Home/bin", "libexec/openjdk.jdk/Contents/Home/bin")


class Jdk(NamedTuple):
    """A Java that was started and reported its own version, such as release 17 and version "17.0.15"."""

    home: Path
    release: int
    version: str


def inspect(java: Path) -> Jdk | None:
    """Start `java` and return what it reports; None if it does not run (macOS has one that only says how to get it)."""
    # In this order: is_file raises where a folder of PATH is closed to this user.
    if not (os.access(java, os.X_OK) and java.is_file()):
        return None
    try:
        done = subprocess.run(
            [java, "-XshowSettings:properties", "-version"],
            capture_output=True,
            check=True,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=60,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    values = dict(re.findall(r"^\s*(java\.\S+) = (.+?)\s*$", done.stderr + done.stdout, re.MULTILINE))
    specification = re.fullmatch(r"(?:1\.)?(\d+)", values.get("java.specification.version", ""))  # Java 8 is 1.8.
    if specification is None or "java.home" not in values:
        return None
    return Jdk(Path(values["java.home"]), int(specification[1]), values.get("java.version", specification[0]))


def find(environ: Mapping[str, str], folders: tuple[Path, ...] = JVM_FOLDERS) -> tuple[Jdk | None, list[str]]:
    """Return the Java to use, and why others were passed over.

    A usable JAVA_HOME is taken as it is; otherwise the best one on PATH and below the folders.
    """
    refused: list[str] = []
    usable: list[Jdk] = []
    named = environ.get("JAVA_HOME")
    if named:
        jdk = inspect(Path(named, "bin", _JAVA))
        if jdk is not None and jdk.release >= OLDEST:
            return jdk, refused
        refused.append(f"JAVA_HOME={named} " + ("holds no java that runs" if jdk is None else f"is Java {jdk.release}"))
    for java in _programs(environ.get("PATH", ""), folders):
        jdk = inspect(java)
        if jdk is None:
            continue
        if jdk.release < OLDEST:
            refused.append(f"{jdk.home} is Java {jdk.release}")
            continue
        usable.append(jdk)
        if jdk.release in BEST:
            break
    return min(usable, key=_rank, default=None), refused


def _programs(path: str, folders: tuple[Path, ...]) -> Iterator[Path]:
    """Yield each `java` on PATH, then those of the installations below the folders."""
    for folder in path.split(os.pathsep):
        if folder:
            yield Path(folder, _JAVA)
    for parent in folders:
        for home in sorted(parent.glob("*")):
            yield from (home / layout / _JAVA for layout in _LAYOUTS)


def _rank(jdk: Jdk) -> int:
    """Return how well Spark knows a release; 0 is best."""
    return 0 if jdk.release in BEST else 1 if jdk.release in GOOD else 2
