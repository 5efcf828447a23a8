"""Bring .venv to the state that a make target needs. Standard library only: it runs before anything is installed.

Up to six steps, each repeated only when its inputs have changed (stamps in .venv/acker): a JDK for targets that start
Spark; the virtual environment; what the native modules are built with; and then three steps at once, namely the native
modules, compiled in place (an editable install, so Python sources need no step), the target's dependencies from
pyproject.toml, with an archive of Spark's classes for its tests, and message brokers, if they can be had.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import brokers
import find_jdk
from brokers.errors import UnavailableError

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin/python"
STAMPS = VENV / "acker"

NATIVE_SOURCES = {".cpp", ".h", ".pxd", ".pxi", ".pyx"}
BUILD_SWITCHES = ("ACKER_DEBUG", "ACKER_NATIVE", "ACKER_SANITIZE", "CXX", "CXXFLAGS", "CFLAGS", "LDFLAGS")


class Needs(NamedTuple):
    """What a make target needs beside numpy and the native module."""

    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    jdk: bool = False
    spark_archive: bool = False
    brokers: tuple[str, ...] = ()


EXPORTERS = ("prometheus", "otel", "ui")
CLIENTS = ("rabbitmq", "kafka", "redis", "sqs", "nats", "postgresql")
QUEUES = ("celery", "dramatiq", "rq", "taskiq", "httpx")
# That of SQS comes with the packages of the tests.
BROKERS = ("rabbitmq", "redis", "kafka", "nats", "postgresql")
BROWSER = ("chromium",)
LEVELS = {
    "build": Needs(),
    "run": Needs(extras=("spark", "cli"), jdk=True),
    "quick": Needs(extras=("arrow", "cli", *EXPORTERS, *CLIENTS), groups=("test", "bench")),
    "lint": Needs(extras=("spark", "cli", *EXPORTERS, *CLIENTS), groups=("lint", "test", "plots")),
    "test": Needs(
        extras=("spark", "connect", "cli", *EXPORTERS, *CLIENTS, *QUEUES),
        groups=("lint", "test", "types", "browser", "queues", "bench", "docs"),
        jdk=True,
        spark_archive=True,
        brokers=(*BROKERS, *BROWSER),
    ),
    "docs": Needs(extras=("spark", "cli", *EXPORTERS, *CLIENTS, *QUEUES), groups=("docs",)),
    "bench": Needs(extras=("spark", "cli", *CLIENTS), groups=("test", "bench"), jdk=True, brokers=BROKERS),
    "release": Needs(groups=("release",)),
}


def say(text: str) -> None:
    """Print what a step waits for, before the wait."""
    print(f"==> {text}", file=sys.stderr, flush=True)


def digest(*parts: object) -> str:
    """Return a short fingerprint of JSON-able values."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


def has_stamp(name: str, value: str) -> bool:
    """Return whether the step `name` was last done for the same `value`."""
    stamp = STAMPS / name
    return stamp.is_file() and stamp.read_text() == value


def put_stamp(name: str, value: str) -> None:
    """Note that the step `name` is done for `value`."""
    STAMPS.mkdir(exist_ok=True)
    (STAMPS / name).write_text(value)


def run(command: list[str | Path], environ: dict[str, str] | None = None) -> None:
    """Run a command in the project's folder; leave with its exit code if it fails."""
    done = subprocess.run(command, check=False, cwd=ROOT, env=environ, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise SystemExit(done.returncode)


def base_of(python: Path) -> list[str] | None:
    """Return the version and the base installation of a virtual environment's Python; None if it does not run."""
    ask = "import sys; print(sys.version); print(sys.base_prefix)"
    try:
        done = subprocess.run([python, "-c", ask], capture_output=True, check=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.splitlines()


def ensure_venv() -> None:
    """Make .venv from the running Python, unless it was made from it already."""
    if Path(sys.prefix) == VENV or base_of(PYTHON) == [*sys.version.splitlines(), sys.base_prefix]:
        return
    if VENV.exists() and any(VENV.iterdir()) and not (VENV / "pyvenv.cfg").is_file():
        raise SystemExit(f"{VENV} is in the way: it is not a virtual environment.")
    say(f"Making .venv with Python {sys.version.split()[0]} ({sys.executable}), about ten seconds")
    run([sys.executable, "-m", "venv", "--clear", VENV])


def group(pyproject: dict[str, Any], name: str) -> list[str]:
    """Return the requirements of a dependency group (PEP 735) and of the groups it includes."""
    found: list[str] = []
    for item in pyproject["dependency-groups"][name]:
        found += [item] if isinstance(item, str) else group(pyproject, item["include-group"])
    return found


def requirements(pyproject: dict[str, Any], needs: Needs) -> list[str]:
    """Return what has to be installed, the build's own requirements included."""
    project = pyproject["project"]
    found = [*pyproject["build-system"]["requires"], *project["dependencies"]]
    for extra in needs.extras:
        found += project["optional-dependencies"][extra]
    for name in needs.groups:
        found += group(pyproject, name)
    return sorted(set(found))


def ensure_dependencies(pyproject: dict[str, Any], level: str) -> None:
    """Install what the target needs, in one go so that pip resolves it as a whole.

    Most of the modules are never imported, so each is compiled when it is, and not by pip.
    """
    wanted = requirements(pyproject, LEVELS[level])
    value = digest(wanted, sys.version)
    if has_stamp(f"dependencies-{level}", value):
        return
    say(f"Installing {len(wanted)} requirements of `make {level}` (about a minute the first time)")
    # Older pips run the setup.py of PySpark, and say that they will not for long. Newer ones ignore this.
    environ = {**os.environ, "PIP_USE_PEP517": "1"}
    run([PYTHON, "-m", "pip", "install", "--disable-pip-version-check", "--no-compile", *quiet(), *wanted], environ)
    put_stamp(f"dependencies-{level}", value)


def quiet() -> list[str]:
    """Leave pip's progress to terminals."""
    return [] if sys.stderr.isatty() else ["--quiet"]


def compiler(environ: dict[str, str]) -> str:
    """Return the C++ compiler to build with; SystemExit naming its package if there is none that runs."""
    named = environ.get("CXX")
    own = str(sysconfig.get_config_var("CXX") or "c++")  # the one this Python was built with
    for command in [named] if named else [own, "c++", "g++", "clang++"]:
        program = shutil.which(shlex.split(command)[0], path=environ.get("PATH", ""))
        # macOS has a /usr/bin/c++ that only asks to install the command line tools.
        if program and subprocess.run([program, "--version"], capture_output=True, check=False).returncode == 0:
            return command
    raise SystemExit(
        (f"No C++ compiler: CXX={named} does not run" if named else "No C++ compiler (tried g++, c++, clang++)")
        + ": install one. Debian, Ubuntu: apt-get install g++; Fedora: dnf install gcc-c++; Alpine: apk add g++; "
        "macOS: xcode-select --install."
    )


def ensure_native_module(pyproject: dict[str, Any]) -> None:
    """Compile the extension modules in place, with what tests need of them, and install the package as editable."""
    generated = {path.with_suffix(".cpp") for path in (ROOT / "ext/acker").glob("*.pyx")}
    found = [*(ROOT / "ext/acker").glob("*"), *(ROOT / "ext/acker/tests").glob("*.pyx")]
    sources = sorted({path for path in found if path.suffix in NATIVE_SOURCES} - generated)
    value = digest(
        {str(path.relative_to(ROOT)): path.read_text() for path in [ROOT / "setup.py", *sources]},
        [pyproject[table] for table in ("build-system", "project")],
        re.findall(r"^__version__ = .*$", (ROOT / "src/acker/__init__.py").read_text(), re.MULTILINE),
        {name: os.environ.get(name) for name in BUILD_SWITCHES},
        sys.version,
    )
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    modules = [ROOT / f"src/acker/{path.stem}{suffix}" for path in sorted((ROOT / "ext/acker").glob("*.pyx"))]
    if has_stamp("build", value) and all(module.is_file() for module in modules):
        return
    environ = {**os.environ, "CXX": compiler(dict(os.environ)), "ACKER_TESTING": "1"}
    names = " and ".join(f"acker.{module.name.removesuffix(suffix)}" for module in modules)
    say(f"Compiling {names}, one to two minutes")
    # A changed switch changes no file's time, so the last modules would be taken for this build's.
    for module in modules:
        module.unlink(missing_ok=True)
    pip: list[str | Path] = [PYTHON, "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    run([*pip, "--no-build-isolation", "--no-deps", "--editable", "."], environ)
    put_stamp("build", value)


def ensure_spark_archive(jdk: Path, level: str) -> None:
    """Archive the classes that Spark loads, so that the many JVMs of the tests start sooner; they do without one."""
    archive = STAMPS / "spark.jsa"
    release = (jdk / "release").read_text() if (jdk / "release").is_file() else ""
    value = digest(str(jdk), release, (STAMPS / f"dependencies-{level}").read_text())
    if has_stamp("spark-archive", value):
        return
    say("Archiving the classes of Spark, about twenty seconds")
    archive.unlink(missing_ok=True)
    environ = {**os.environ, "JAVA_HOME": str(jdk), "PYSPARK_PYTHON": str(PYTHON), "PYSPARK_DRIVER_PYTHON": str(PYTHON)}
    environ.pop("SPARK_HOME", None)
    command = [PYTHON, ROOT / "scripts/spark_archive.py", archive]
    done = subprocess.run(command, capture_output=True, check=False, env=environ, stdin=subprocess.DEVNULL, text=True)
    if not archive.is_file():
        say(f"Without an archive each Spark of the tests starts some seconds later: {done.stderr.strip()[-300:]}")
    put_stamp("spark-archive", value)


def ensure_brokers(names: tuple[str, ...]) -> None:
    """Get the brokers of the tests; without one, say that its tests will be skipped."""

    def get(name: str) -> None:
        try:
            brokers.BY_NAME[name].origin.find_or_bring(dict(os.environ))
        except UnavailableError as why:
            say(f"What needs it will be skipped: {why}")

    with concurrent.futures.ThreadPoolExecutor() as pool:  # most of the time they wait for the network
        list(pool.map(get, names))


def main() -> None:
    """Do the steps that the target needs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("level", choices=LEVELS, help="the make target")
    level = parser.parse_args().level
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    # Before the downloads: a missing compiler or Java should show at once.
    compiler(dict(os.environ))
    jdk = find_jdk.find_or_install(dict(os.environ)) if LEVELS[level].jdk else None
    ensure_venv()
    ensure_dependencies(pyproject, "build")

    def ensure_rest() -> None:
        ensure_dependencies(pyproject, level)
        if jdk is not None and LEVELS[level].spark_archive:
            ensure_spark_archive(jdk.home, level)

    with concurrent.futures.ThreadPoolExecutor() as pool:
        steps = [
            pool.submit(ensure_native_module, pyproject),
            pool.submit(ensure_rest),
            pool.submit(ensure_brokers, LEVELS[level].brokers),
        ]
    for step in steps:
        step.result()
    if jdk is not None:
        put_stamp("java_home", str(jdk.home))


if __name__ == "__main__":
    main()
