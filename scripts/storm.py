"""Bring Apache Storm for the benchmarks, compile their word count for it, and print the command that runs it.

The jars come from Maven Central, with checksums, and are kept below build/brokers. ACKER_INSTALL_BROKERS=0 forbids the
download. The command is one line of JSON, a list to which the arguments of benchmarks/storm/WordCount.java are added.
Standard library only.

Exit codes: 0 printed; 3 this machine cannot have it, 4 it could but the download failed or is forbidden, each with the
reason.
"""

import argparse
import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import find_jdk
from broker import NOT_BROUGHT, UNAVAILABLE
from brokers.errors import NotBroughtError, UnavailableError
from brokers.kafka import Jars
from brokers.packages import BROKERS

# The jars with their SHA-256: what a LocalCluster loads of all that storm-server depends on.
JARS = Path(__file__).with_name("brokers") / "storm.json"
SOURCES = Path(__file__).resolve().parents[1] / "benchmarks/storm"
PROGRAM = "WordCount"


def compiled(javac: Path, jars: Path, source: Path, folder: Path) -> Path:
    """Return the folder with the classes of a source, compiled if it is not there."""
    if not javac.exists():
        raise UnavailableError(f"storm needs a JDK, and not a JRE alone: there is no {javac}")
    fingerprint = hashlib.sha256(jars.name.encode() + source.read_bytes()).hexdigest()[:8]
    classes = folder / f"storm-{source.stem}-{fingerprint}"
    if not classes.is_dir():
        with tempfile.TemporaryDirectory(prefix=".storm-", dir=folder) as scratch:
            made = Path(scratch, "classes")
            subprocess.run([javac, "-cp", f"{jars}/*", "-d", made, source], check=True, stdin=subprocess.DEVNULL)
            with contextlib.suppress(OSError):  # another process may have been quicker
                made.rename(classes)
    return classes


def command(environ: Mapping[str, str], folder: Path = BROKERS) -> list[str]:
    """Return the command that runs the word count; UnavailableError if it cannot be had."""
    jars = Jars("storm", JARS).find_or_bring(environ)
    home = find_jdk.finder.find(environ)[0].home
    classes = compiled(home / "bin/javac", jars, SOURCES / f"{PROGRAM}.java", folder)
    logging = f"-Dlog4j2.configurationFile={SOURCES / 'log4j2.properties'}"
    return [str(home / "bin/java"), logging, "-cp", f"{classes}{os.pathsep}{jars}/*", PROGRAM]


def main() -> int:
    """Print the command, and return the exit code."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    try:
        print(json.dumps(command(dict(os.environ))))
    except UnavailableError as why:
        print(why, file=sys.stderr)
        return NOT_BROUGHT if isinstance(why, NotBroughtError) else UNAVAILABLE
    return 0


if __name__ == "__main__":
    sys.exit(main())
