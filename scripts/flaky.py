"""Run tests again and again on a busy machine that stands still now and then, and count which of them fail.

    python scripts/flaky.py -k name tests/local

Each round is a run of pytest in an order of its own (pytest-random-order), beside one busy loop for each core. Now and
then the process of the tests is stopped for a few seconds, as on a machine that swaps or a laptop that sleeps. What a
round does depends on its seed, which the table at the end names; when the stalls come depends on the machine too.
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BUSY = "while True: pass"
# Seconds between two stalls, and of a stall.
BETWEEN_SECS, STALL_SECS = (2.0, 10.0), (0.5, 4.0)
NO_TESTS = 5  # an exit code of pytest


class Failure(NamedTuple):
    """A test that failed in a round."""

    test: str
    words: str
    seed: int


def main(arguments: list[str] | None = None) -> int:
    """Run the rounds and print the table; return 1 if a test failed, 2 if none ran."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="how often (default 10); Ctrl-C ends earlier")
    parser.add_argument("--seed", type=int, default=1, help="of the first round; the others follow (default 1)")
    parser.add_argument("--no-stalls", action="store_true", help="never stop the process of the tests")
    parser.add_argument("--no-load", action="store_true", help="without busy loops")
    options, rest = parser.parse_known_args(arguments)
    failures: list[Failure] = []
    ran = done = 0
    with contextlib.suppress(KeyboardInterrupt), contextlib.nullcontext() if options.no_load else load():
        for seed in range(options.seed, options.seed + options.rounds):
            begin = time.monotonic()
            tests, failed = run_round(seed, rest, stalls=not options.no_stalls)
            done, ran = done + 1, ran + tests
            failures += failed
            took = f"{tests} tests in {time.monotonic() - begin:.0f} s, {len(failed)} failed"
            print(f"round {done} of {options.rounds}, seed {seed}: {took}", flush=True)
    if not ran:
        print("flaky: no test ran", file=sys.stderr)
        return 2
    print_table(failures, done)
    return 1 if failures else 0


@contextlib.contextmanager
def load() -> Iterator[None]:
    """Keep every core busy."""
    loops = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def run_round(seed: int, arguments: list[str], *, stalls: bool) -> tuple[int, list[Failure]]:
    """Run the tests once; return how many ran, and those that failed."""
    with tempfile.TemporaryDirectory() as folder:
        report, log = Path(folder) / "report.xml", Path(folder) / "log"
        order = ["--random-order", f"--random-order-seed={seed}"]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *order, f"--junitxml={report}"]
        with log.open("wb") as output:
            process = subprocess.Popen([*command, *arguments], cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
            ended = threading.Event()
            staller = threading.Thread(target=stall, args=(process, random.Random(seed), ended))
            if stalls:
                staller.start()
            try:
                code = process.wait()
            finally:
                ended.set()
                if stalls:
                    staller.join()
                process.kill()
                process.wait()
        if code == NO_TESTS:
            return 0, []
        if not report.exists():
            words = log.read_text(errors="replace").strip().splitlines()[-3:]
            return 1, [Failure("(pytest itself)", f"exit code {code}: {' / '.join(words)}", seed)]
        return read_report(report, seed)


def stall(process: "subprocess.Popen[bytes]", chance: random.Random, ended: threading.Event) -> None:
    """Stop the process for a while, again and again, until it has ended."""
    while not ended.wait(chance.uniform(*BETWEEN_SECS)):
        process.send_signal(signal.SIGSTOP)
        ended.wait(chance.uniform(*STALL_SECS))
        process.send_signal(signal.SIGCONT)


def read_report(report: Path, seed: int) -> tuple[int, list[Failure]]:
    """Return how many tests a report has, and those that failed."""
    cases = list(ET.parse(report).iter("testcase"))
    failures = []
    for case in cases:
        for fault in (*case.findall("failure"), *case.findall("error")):
            words = (fault.get("message") or fault.text or "").strip().splitlines()
            failures.append(Failure(f"{case.get('classname')}::{case.get('name')}", " / ".join(words[:3]), seed))
    return len(cases), failures


def print_table(failures: list[Failure], rounds: int) -> None:
    """Print how often each test failed, the most frequent first, with the seeds and the words of the first failure."""
    if not failures:
        print(f"no test failed in {rounds} rounds")
        return
    by_test: dict[str, list[Failure]] = {}
    for failure in failures:
        by_test.setdefault(failure.test, []).append(failure)
    print(f"\nfailed of {rounds}  test")
    for test, found in sorted(by_test.items(), key=lambda item: -len(item[1])):
        seeds = ", ".join(str(failure.seed) for failure in found)
        print(f"{len(found):6}       {test}\n             seeds {seeds}: {found[0].words[:300]}")


if __name__ == "__main__":
    raise SystemExit(main())
