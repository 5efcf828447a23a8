"""Find a Java that Spark 4 runs on, or install one; print its JAVA_HOME. Standard library only.

Spark 4 needs Java 17 or newer. A usable JAVA_HOME is taken as it is; otherwise the best Java on PATH and in the usual
folders (`acker.cli.jdk` finds it). If there is none, the system's package manager installs one, where that needs no
password. ACKER_INSTALL_JDK=0 forbids that.
"""

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

# The package is not installed yet when this runs, and importing it would need NumPy.
_spec = importlib.util.spec_from_file_location(
    "acker_cli_jdk", Path(__file__).resolve().parents[1] / "src/acker/cli/jdk.py"
)
assert _spec is not None
assert _spec.loader is not None
finder = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = finder
_spec.loader.exec_module(finder)

# The packages to try with each package manager, best first: distributions carry different releases.
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
        print(f"No Java {finder.OLDEST} or newer here: {' '.join(command)}", file=sys.stderr)
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


def find_or_install(environ: dict[str, str], folders: tuple[Path, ...] | None = None) -> Any:
    """Return a usable Java; SystemExit with one sentence if there is none and none can be installed."""
    folders = finder.JVM_FOLDERS if folders is None else folders
    jdk, refused = finder.find(environ, folders)
    for reason in refused:
        print(f"Ignored: {reason}; Java {finder.OLDEST} or newer is needed.", file=sys.stderr)
    if jdk is None:
        if environ.get("ACKER_INSTALL_JDK", "1") in {"0", "no"}:
            why: str | None = "ACKER_INSTALL_JDK=0 forbids to install one"
        else:
            why = install()
        if why is None:
            jdk, _ = finder.find(environ, folders)
            why = "the one that was installed is not found"
        if jdk is None:
            raise SystemExit(
                f"Spark needs a JDK {finder.OLDEST} or newer, and none is here ({why}): install one. {ADVICE}."
            )
    if jdk.release > max(finder.BEST + finder.GOOD):
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
    folders = None if options.jvm_folder is None else tuple(options.jvm_folder)
    print(find_or_install(dict(os.environ), folders).home)


if __name__ == "__main__":
    main()
