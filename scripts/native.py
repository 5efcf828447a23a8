"""Compile the native tests and run them: native.py test | soak | mutants. Standard library only.

test     run the unit tests and a short fuzz run with fixed seeds, plain or under sanitizers; code with threads runs
         under ThreadSanitizer too
soak     run the fuzz body on every core for some time
mutants  put plausible bugs into copies of the headers, one at a time; the tests must catch each
"""

import argparse
import os
import platform
import random
import re
import shlex
import shutil
import subprocess
import tempfile
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import environment

ROOT = Path(__file__).resolve().parent.parent
HEADERS = ROOT / "ext/acker"
MUTANTS = HEADERS / "tests/mutants.toml"
BUILD = ROOT / "build/native"

UNIT, SHARDED, FUZZ = "test_headers", "test_sharded", "fuzz_acker"
OF_SHARDS = {"shard_of.h", "workers.h", "sharded.h"}  # what the other programs do not include
FLAGS = ["-std=c++17", "-g1", "-pthread", "-DACKER_TESTING"]
WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Werror"]
RUN_SECONDS_MAX = 300
MUTANT_SECONDS_MAX = 120  # a bug may make a loop endless
MUTANT_SEEDS = 80
MEMORY_KB_MAX = 4_000_000
SEEDS_A_WORKER = 10**12
CORES = os.cpu_count() or 1


class Mutant(NamedTuple):
    """A bug: `text`, which occurs once in `file`, is replaced."""

    what: str
    file: str
    text: str
    replacement: str
    machine: str = ""  # the only one that runs this code; "": all do


def read_mutants(path: Path = MUTANTS) -> list[Mutant]:
    """Return the bugs of the list; one that does not fit the headers any more is an error."""
    mutants = [Mutant(**table) for table in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]]
    for mutant in mutants:
        found = (HEADERS / mutant.file).read_text(encoding="utf-8").count(mutant.text)
        if found != 1:
            raise SystemExit(f"mutants: {mutant.what}: the text occurs {found} times in {mutant.file}, not once")
    if len({mutant.what for mutant in mutants}) != len(mutants):
        raise SystemExit("mutants: two have one name")
    return mutants


def compile_program(name: str, sources: Path, program: Path, flags: Sequence[str]) -> None:
    """Compile one of the test programs; leave with the compiler's words if it fails."""
    program.parent.mkdir(parents=True, exist_ok=True)
    compiler = shlex.split(environment.compiler(dict(os.environ)))
    command = [*compiler, *FLAGS, *flags, str(sources / "tests" / f"{name}.cpp"), "-o", str(program)]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)}\n{done.stderr}")


def sanitizer_flags(sanitizers: str) -> list[str]:
    """Return the compiler's flags for some sanitizers; none where it has no runtime for them that runs here."""
    flags = [f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"]
    compiler = shlex.split(environment.compiler(dict(os.environ)))
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "empty.cpp", Path(folder) / "empty"
        source.write_text("int main() {}\n")
        commands = [[*compiler, *flags, str(source), "-o", str(program)], [str(program)]]
        runs = all(subprocess.run(command, capture_output=True, check=False).returncode == 0 for command in commands)
    return flags if runs else []


def test(seeds: int, *, sanitize: bool) -> None:
    """Compile and run the unit tests, and the fuzz body on the first seeds."""
    # Unoptimized where every access is checked: compiling takes longer than running.
    flags, suffix = ["-O1"], ""
    if sanitize:
        flags, suffix = ["-O0", *sanitizer_flags("address,undefined")], "_sanitized"
        if len(flags) == 1:
            print("sanitizers: none with this compiler")
            return
    programs = [(name, f"{name}{suffix}", flags) for name in (UNIT, SHARDED, FUZZ)]
    if not sanitize:
        threads = sanitizer_flags("thread")
        if threads:
            programs.append((SHARDED, f"{SHARDED}_threads", [*flags, *threads]))
        else:
            print("ThreadSanitizer: not with this compiler")
    with ThreadPoolExecutor(CORES) as pool:
        compiling = [
            pool.submit(compile_program, name, HEADERS, BUILD / program, [*WARNINGS, *flags])
            for name, program, flags in programs
        ]
        for compiled in compiling:
            compiled.result()
    for name, program, _ in programs:
        command = [str(BUILD / program), *(["--seeds", str(seeds)] if name == FUZZ else [])]
        done = subprocess.run(command, capture_output=True, check=False, text=True, timeout=RUN_SECONDS_MAX)
        if done.returncode:
            raise SystemExit(f"{program} failed ({done.returncode}):\n{done.stderr[-8000:]}")
        print(f"{program}: {done.stdout.strip()}", flush=True)


def soak(seconds: float, seed: int) -> None:
    """Run the fuzz body on every core until the time is over."""
    program = BUILD / f"{FUZZ}_soak"
    compile_program(FUZZ, HEADERS, program, [*WARNINGS, "-O2"])
    print(f"soak: {seconds:g} s on {CORES} cores, first seed {seed}", flush=True)
    runs = [
        subprocess.Popen(
            [program, "--seconds", str(seconds), "--seed", str(seed + worker * SEEDS_A_WORKER)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for worker in range(CORES)
    ]
    operations = seeds = 0
    failed = False
    for run in runs:
        said = run.communicate()[0]
        failed |= run.returncode != 0
        done = re.match(r"operations=(\d+) seeds=(\d+) ", said)
        if done is not None:
            operations += int(done[1])
            seeds += int(done[2])
    print(f"soak: {operations:,} operations over {seeds:,} seeds")
    if failed or operations == 0:
        raise SystemExit("soak: failed; the seed is told above")


def run_caught(program: Path, arguments: Sequence[str]) -> bool:
    """Return whether a program fails, takes forever, or wants more memory than any test should."""
    limited = ["sh", "-c", f'ulimit -v {MEMORY_KB_MAX}; ulimit -c 0; exec "$0" "$@"', str(program), *arguments]
    try:
        done = subprocess.run(limited, capture_output=True, check=False, timeout=MUTANT_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


def caught_by(headers: Path, mutant: Mutant | None) -> str:
    """Return which program notices the bug: the fuzz body, else one with unit tests, else none ("")."""
    with tempfile.TemporaryDirectory(prefix="acker-mutant-") as folder:
        sources = Path(folder) / "acker"
        shutil.copytree(headers, sources)
        if mutant is not None:
            target = sources / mutant.file
            target.write_text(target.read_text(encoding="utf-8").replace(mutant.text, mutant.replacement))
        programs = [(FUZZ, ("--seeds", str(MUTANT_SEEDS))), (UNIT, ()), (SHARDED, ())]
        if mutant is not None and mutant.file in OF_SHARDS:
            programs = programs[-1:]
        for name, arguments in programs:
            program = sources / name
            compile_program(name, sources, program, ["-O1", "-w"])
            if run_caught(program, arguments):
                return name
    return ""


def mutants(wanted: str) -> None:
    """Put each bug back, and tell which tests notice it."""
    here = {"", platform.machine()}
    chosen = [mutant for mutant in read_mutants() if wanted in mutant.what and mutant.machine in here]
    if not chosen:
        raise SystemExit(f"mutants: none is called {wanted!r}")
    start, survivors = time.monotonic(), 0
    # One copy for all, so that edits meanwhile do not matter.
    with tempfile.TemporaryDirectory(prefix="acker-mutants-") as folder, ThreadPoolExecutor(CORES) as pool:
        headers = Path(folder) / "acker"
        shutil.copytree(HEADERS, headers, ignore=shutil.ignore_patterns("_*.cpp"))
        noticed = caught_by(headers, None)
        if noticed:
            raise SystemExit(f"mutants: {noticed} fails on the headers as they are")
        caught = pool.map(partial(caught_by, headers), chosen)
        for mutant, by in zip(chosen, caught, strict=True):
            survivors += not by
            print(f"{by or 'SURVIVED':12} {mutant.file:10} {mutant.what}", flush=True)
    print(f"mutants: {len(chosen) - survivors} of {len(chosen)} caught in {time.monotonic() - start:.0f} s")
    if survivors:
        raise SystemExit(1)


def main() -> None:
    """Do what the first argument says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("test")
    command.add_argument("--seeds", type=int, default=40)
    command.add_argument("--sanitize", action="store_true", help="with AddressSanitizer and UBSan")
    command = commands.add_parser("soak")
    command.add_argument("--seconds", type=float, default=600)
    command.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**12), help="the first one")
    command = commands.add_parser("mutants")
    command.add_argument("wanted", nargs="*", help="a part of the names of the bugs to try")
    arguments = parser.parse_args()
    if arguments.command == "test":
        test(arguments.seeds, sanitize=arguments.sanitize)
    elif arguments.command == "soak":
        soak(arguments.seconds, arguments.seed)
    else:
        mutants(" ".join(arguments.wanted))


if __name__ == "__main__":
    main()
