"""Run a command that takes long, its output in a log, and say now and then how far it is. Standard library only."""

import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

SHOW_EVERY_S = 30


def follow(
    command: Sequence[str | Path],
    log: Path,
    *,
    cwd: Path,
    environ: Mapping[str, str],
    show_every_s: float = SHOW_EVERY_S,
) -> int:
    """Return the exit code of a command; its last line is shown whenever some time has passed."""
    log.parent.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    with (
        log.open("wb") as out,
        subprocess.Popen(command, cwd=cwd, env=environ, stdout=out, stderr=subprocess.STDOUT) as process,
    ):
        while True:
            try:
                return process.wait(show_every_s)
            except subprocess.TimeoutExpired:
                print(f"    {time.monotonic() - begin:5.0f} s  {last_lines(log)[:100]}", flush=True)


def last_lines(log: Path, count: int = 1) -> str:
    """Return the last lines of a log that hold something."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return "\n".join(lines[-count:])
