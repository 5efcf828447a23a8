"""The unit tests of the native core, and a short run of its fuzz body, compiled with the system's compiler.

`make soak` runs the fuzz body for longer; `make mutants` shows that these tests notice bugs.
"""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.repository

ROOT = Path(__file__).resolve().parents[2]
HEADERS = ROOT / "ext/acker"
OPERATIONS = re.compile(r"operations=(\d+) seeds=(\d+) ")


def native(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "scripts/native.py", *arguments]
    return subprocess.run(command, capture_output=True, check=False, cwd=ROOT, text=True)


def count_tests(program: str) -> int:
    """Return how many tests the sources of a program have: its own file, or those of `headers/` which it includes."""
    folder = HEADERS / "tests"
    sources = [folder / f"{program}.cpp", *(folder.glob("headers/*.cpp") if program == "test_headers" else [])]
    return sum(len(re.findall(r"^TEST\(", source.read_text(), re.MULTILINE)) for source in sources)


def assert_ran(output: str, seeds: int) -> None:
    """Fail unless unit tests and fuzz body have done what was asked: a run of nothing would pass as well."""
    for program in ("test_headers", "test_sharded"):
        tests = re.search(rf"^{program}\w*: tests=(\d+)", output, re.MULTILINE)
        assert tests is not None and int(tests[1]) == count_tests(program)
    done = OPERATIONS.search(output)
    assert done is not None and int(done[2]) == seeds
    assert int(done[1]) > 50_000 * seeds


@pytest.mark.minutes(3)
@pytest.mark.slow
def test_the_headers_pass_their_tests() -> None:
    done = native("test", "--seeds", "40")
    assert done.returncode == 0, done.stderr
    assert_ran(done.stdout, 40)
    # And the program can fail: it says what, and where to find it again.
    fuzz = ROOT / "build/native/fuzz_acker"
    failed = subprocess.run([fuzz, "no such file"], capture_output=True, check=False, text=True)
    assert failed.returncode != 0
    assert "fuzz_acker.cpp" in failed.stderr and "does not hold" in failed.stderr
    assert "failed at: no such file" in failed.stderr


@pytest.mark.minutes(3)
@pytest.mark.soak
def test_the_headers_pass_their_tests_under_sanitizers() -> None:
    done = native("test", "--seeds", "8", "--sanitize")
    assert done.returncode == 0, done.stderr
    if "sanitizers: none" not in done.stdout:
        assert_ran(done.stdout, 8)


def test_every_mutant_fits_the_headers() -> None:
    mutants = tomllib.loads((HEADERS / "tests/mutants.toml").read_text())["mutant"]
    assert len(mutants) >= 50
    for mutant in mutants:
        assert (HEADERS / mutant["file"]).read_text().count(mutant["text"]) == 1, mutant["what"]
        assert mutant["text"] != mutant["replacement"]


@pytest.mark.slow
@pytest.mark.parametrize("program", ["test_headers", "test_sharded"])
def test_without_what_is_for_one_processor_the_headers_are_standard_cpp(program: str) -> None:
    # What is left is what a compiler without GCC's extensions gets to see, but for the few macros of probe.h.
    flags = ["-std=c++17", "-pedantic-errors", "-Wall", "-Wextra", "-Werror", "-DACKER_PORTABLE", "-DACKER_TESTING"]
    command = [*shlex.split(os.environ.get("CXX", "c++")), *flags, "-fsyntax-only", HEADERS / f"tests/{program}.cpp"]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stderr
