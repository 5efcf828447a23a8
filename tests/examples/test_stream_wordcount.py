"""The word count as a stream: the real command, whose driver and one of whose workers are killed in a micro-batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter

import pytest

pytestmark = pytest.mark.spark

FILES = {f"{number}.txt": b"the quick brown fox\n\njumps over the lazy dog\n" * (5 + number) for number in range(8)}


def test_counts_are_exact_although_driver_and_worker_are_killed(tmp_path) -> None:
    folder = tmp_path / "input"
    folder.mkdir()
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    (tmp_path / "tmp").mkdir()
    faults = ["--fail-rate", "0.1", "--drop-rate", "0.1", "--max-attempts", "40", "--seed", "4"]
    pace = ["--timeout", "1", "--spread", "1", "--master", "local[2,4]", "--driver-memory", "1g"]
    command = [sys.executable, "-m", "examples.wordcount", "stream", "--input", str(folder), *faults, *pace]
    process = subprocess.run(
        [*command, "--kills", "1", "--worker-kills", "1", "--work", "work", "--output", "out", "--json", "out.json"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr + process.stdout
    told = process.stderr.splitlines()
    assert "starting Spark, and the stream up to its first micro-batch ..." in told
    assert told.count("killing the driver, and starting Spark again ...") == 1
    values = json.loads((tmp_path / "out.json").read_text())
    lines = [line for content in FILES.values() for line in content.decode().splitlines()]
    assert values["verified"] and values["exit_code"] == 0 and values["mismatches"] == []
    assert values["lines"] == values["acked"] == len(lines) and values["dead_lettered"] == 0
    assert values["words"] == sum(Counter(word for line in lines for word in line.split()).values())
    assert values["failed"] > 0 and values["timed_out"] > 0
    assert (
        values["trees"]
        == values["lines"] + values["replayed"]
        == values["lines"] + values["failed"] + values["timed_out"]
    )
    assert values["failed_by_reason"] == {"split: InjectedFault: injected by --fail-rate": values["failed"]}
    assert sum(batch["acked"] for batch in values["batches"]) == values["acked"]
    assert sorted(kill["what"] for kill in values["kills"]) == ["driver", "worker"]
    assert all(kill["back_seconds"] > 0 for kill in values["kills"])
    assert "yes, equal to a plain count" in process.stdout and "killed the driver at" in process.stderr
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["report.html", "spark.log"]
    assert {"checkpoint", "completions", "drop", "results"} < {path.name for path in (tmp_path / "work").iterdir()}
    assert not list((tmp_path / "tmp").glob("acker-stream-*"))
