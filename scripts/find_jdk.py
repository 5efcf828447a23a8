"""Find a Java that Spark 4 runs on, or install one; print its JAVA_HOME. Standard library only.

Spark 4 needs Java 17 or newer; 17 and 21 are what it is tested on the longest, 25 came last. So: a usable JAVA_HOME is
taken as it is; else the best of what PATH and the usual folders hold; else one is installed with the system's package
manager, where that needs no password; else one sentence says what to install. ACKER_INSTALL_JDK=0 forbids to install.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

OLDEST = 17
BEST = (17, 21)
GOOD = (25,)

JVM_FOLDERS = (
    Path("/usr/lib/jvm"),
    Path("/usr/java"),
    Path("/opt/java"),
    Path("/Library/Java/JavaVirtualMachines"),
    Path("/opt/homebrew/opt"),
    Path("/usr/local/opt"),
    Path.home() / ".sdkman/candidates/java",
)

# What to ask each package manager for, best first: distributions carry different releases.
PACKAGES = {
    "apt-get": ("openjdk-17-jdk-headless", "openjdk-21-jdk-headless", "openjdk-25-jdk-headless"),
    "dnf": ("java-21-openjdk-devel", "java-17-openjdk-devel", "java-25-openjdk-devel"),
    "apk": ("openjdk17-jdk", "openjdk21-jdk"),
    "brew": ("openjdk@21", "openjdk@17"),
}
ADVICE = (
    "Debian, Ubuntu: apt-get install openjdk-17-jdk-headless or openjdk-21-jdk-headless; Fedora: dnf install "
    "java-21-openjdk-devel; Alpine: apk add openjdk17-jdk; macOS: brew install openjdk@21"
)


class Jdk(NamedTuple):
    """A Java that was started and told its own version."""

    home: Path
    release: int


def inspect(java: Path) -> Jdk | None:
    """Start `java` and return what it says of itself; None if it does not run."""
    if not (java.is_file() and os.access(java, os.X_OK)):
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
    text = done.stderr + done.stdout
    home = re.search(r"^\s*java\.home = (.+)$", text, re.MULTILINE)
    release = re.search(r"^\s*java\.specification\.version = (\d+)(?:\.(\d+))?\s*$", text, re.MULTILINE)
    if home is None or release is None:
        return None
    # Java 8 calls itself 1.8.
    number = int(release[2]) if release[1] == "1" and release[2] else int(release[1])
    return Jdk(Path(home[1].strip()), number)


def java_on_path(path: str) -> Iterator[Path]:
    """Yield each `java` on PATH, in its order."""
    for folder in path.split(os.pathsep):
        if folder:
            yield Path(folder) / "java"


def java_in(folders: tuple[Path, ...]) -> Iterator[Path]:
    """Yield the `java` of each installation below the folders."""
    layouts = ("bin/java", "Contents/Home/bin/java", "libexec/openjdk.jdk/Contents/Home/bin/java")  # Linux, macOS, brew
    for folder in folders:
        for home in sorted(folder.glob("*")):
            yield from (home / layout for layout in layouts)


def rank(jdk: Jdk) -> int:
    """Order releases by how well Spark knows them; 0 is best."""
    return 0 if jdk.release in BEST else 1 if jdk.release in GOOD else 2


def find(environ: dict[str, str], folders: tuple[Path, ...]) -> tuple[Jdk | None, list[str]]:
    """Return the Java to use, and a sentence for each one that was refused."""
    refused: list[str] = []
    usable: list[Jdk] = []
    named = environ.get("JAVA_HOME")
    if named:
        jdk = inspect(Path(named) / "bin/java")
        if jdk is not None and jdk.release >= OLDEST:
            return jdk, refused
        why = "holds no java that runs" if jdk is None else f"is Java {jdk.release}"
        refused.append(f"JAVA_HOME={named} {why}; Java {OLDEST} or newer is needed")
    for java in (*java_on_path(environ.get("PATH", "")), *java_in(folders)):
        jdk = inspect(java)
        if jdk is None:
            continue
        if jdk.release < OLDEST:
            refused.append(f"{jdk.home} is Java {jdk.release}; Java {OLDEST} or newer is needed")
            continue
        usable.append(jdk)
        if rank(jdk) == 0:
            break
    return min(usable, key=rank, default=None), refused


def privileges(manager: str) -> list[str] | None:
    """Return the prefix that lets the manager install without a password; None if there is none."""
    if manager == "brew" or os.geteuid() == 0:
        return []
    sudo = shutil.which("sudo")
    if sudo and subprocess.run([sudo, "-n", "true"], capture_output=True, check=False).returncode == 0:
        return [sudo, "-n"]
    return None


def install() -> str | None:
    """Install a JDK with the system's package manager; return why that did not work, or None."""
    manager = next((name for name in PACKAGES if shutil.which(name)), None)
    if manager is None:
        return "no package manager that is known here"
    prefix = privileges(manager)
    if prefix is None:
        return f"{manager} needs root, and sudo would ask for a password"
    add = {"apk": ["add"], "brew": ["install"]}.get(manager, ["install", "-y"])
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    attempts = [[manager, "update"]] if manager == "apt-get" else []
    attempts += [[manager, *add, package] for package in PACKAGES[manager]]
    said = ""
    for command in attempts:
        print(f"No Java {OLDEST} or newer here: {' '.join(command)}", file=sys.stderr)
        done = subprocess.run(
            [*prefix, *command],
            check=False,
            env=environ,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        if done.returncode == 0 and command[1] != "update":
            return None
        said = done.stdout.strip().rpartition("\n")[2] or said
    return f"{manager} failed: {said}"


def find_or_install(environ: dict[str, str], folders: tuple[Path, ...] = JVM_FOLDERS) -> Jdk:
    """Return a usable Java; SystemExit with one sentence if there is none and none can be installed."""
    jdk, refused = find(environ, folders)
    for sentence in refused:
        print(f"Ignored: {sentence}.", file=sys.stderr)
    if jdk is None:
        if environ.get("ACKER_INSTALL_JDK", "1") in {"0", "no"}:
            why: str | None = "ACKER_INSTALL_JDK=0 forbids to install one"
        else:
            why = install()
        if why is None:
            jdk, _ = find(environ, folders)
            why = "the one that was installed is not found"
        if jdk is None:
            raise SystemExit(f"Spark needs a JDK {OLDEST} or newer, and none is here ({why}): install one. {ADVICE}.")
    if jdk.release > max(BEST + GOOD):
        print(f"Note: {jdk.home} is Java {jdk.release}, newer than Spark 4 is tested on.", file=sys.stderr)
    return jdk


def main() -> None:
    """Print the JAVA_HOME to use."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--jvm-folder",
        action="append",
        help="look for installations below this folder, not below the usual ones (may be repeated)",
        type=Path,
    )
    options = parser.parse_args()
    folders = JVM_FOLDERS if options.jvm_folder is None else tuple(options.jvm_folder)
    print(find_or_install(dict(os.environ), folders).home)


if __name__ == "__main__":
    main()
