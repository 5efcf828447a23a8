"""States that come from a run in one process, and go back to it; no Spark is started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from acker.spark.topologies.bolt_state import StateFiles, read_files, write_states
from acker.spark.topologies.tuple_blocks import dumps


def test_states_of_a_file_are_those_that_the_first_micro_batch_finds(tmp_path: Path) -> None:
    root = str(tmp_path)
    chains = write_states(root, {4: {"fox": 2, "dog": 1}, 5: {}})
    assert set(chains) == {4}, "there is no file for an empty state"
    files = StateFiles(root, chains, 0)
    state, empty = files.new_state(4), files.new_state(5)
    assert (dict(state), dict(empty)) == ({"fox": 2, "dog": 1}, {})
    state["fox"] += 1
    del state["dog"]
    written = files.write()
    assert set(written) == {4}
    for chain, expected in ((chains[4], {"fox": 2, "dog": 1}), (written[4], {"fox": 3})):
        assert read_files(root, chain.files) == expected


def test_values_of_a_class_that_only_a_script_has_are_read_elsewhere(tmp_path: Path) -> None:
    module = "class Pair:\n    def __init__(self, left):\n        self.left = left\n"
    script = tmp_path / "script.py"
    name = dumps.__module__
    script.write_text(f"{module}import sys\nfrom {name} import dumps\nsys.stdout.buffer.write(dumps([Pair(7)]))\n")
    made = subprocess.run([sys.executable, script], capture_output=True, check=True).stdout
    code = f"import pickle, sys; from {name} import dumps; print(pickle.loads(dumps(pickle.loads({made!r})))[0].left)"
    read = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert read.stdout == "7\n"
