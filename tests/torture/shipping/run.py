"""The environments, the submission of the job, and the comparison of its output."""

from __future__ import annotations

import enum
import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import acker
from acker._engine.acker import Acker
from acker._engine.completions import Completions
from acker._engine.protocol import Kind, Outcome
from acker._engine.schemas import MESSAGE_SCHEMA
from acker.errors import AckerError
from acker.testing.streams import TreeStream
from tests.torture.spark_home import JVM_OPTIONS, make_spark_home

CLUSTER: Final = "local-cluster[2,1,1024]"
EXECUTORS: Final = 2
# The packages that executors need beside PySpark, which comes with Spark.
PACKAGES: Final = ("numpy", "pyarrow", "pandas<3", "protobuf")

_FILES: Final = 8
_PENDING: Final = 1_000
_OKS: Final = 3
_SECONDS_MAX: Final = 900
_LOG_BYTES: Final = 4_000


class ShippingError(AckerError):
    """A job failed, or its output is wrong; the text says which."""


class Recipe(enum.StrEnum):
    """A way to send acker to executors."""

    ARCHIVES = "archives"
    ARTIFACTS = "artifacts"


class Shipped(NamedTuple):
    """The figures of a job.

    Attributes
    ----------
    messages : int
    outcomes : dict
        How many trees ended how.
    executors : list of dict
        What each said of its acker, as for `acker doctor`.
    fault : str or None
        ARTIFACTS: what the job said on the same executors before acker was sent to them.
    settled : dict
        How many trees each executor settled, by its folder.
    """

    messages: int
    outcomes: dict[str, int]
    executors: list[dict[str, Any]]
    fault: str | None
    settled: dict[str, int]


# ---- environments ---------------------------------------------------------------------------------------------------


def make_environment(folder: Path, *, linked: bool, with_acker: bool = False) -> Path:
    """Make a virtual environment of the running Python, and return the path of its interpreter.

    Parameters
    ----------
    folder : Path
        Of the environment.
    linked : bool
        Take the packages of the running environment, by links, but for acker. Else pip installs what executors need.
    with_acker : bool
        Put a copy of the installed acker into it.
    """
    venv.EnvBuilder(symlinks=True, with_pip=not linked, clear=True).create(folder)
    python = folder / "bin/python"
    (site,) = folder.glob("lib/python*/site-packages")
    if linked:
        for package in _packages():
            if "acker" not in package.name.lower() and package.suffix != ".pth" and not (site / package.name).exists():
                (site / package.name).symlink_to(package)
    else:
        packages = [*PACKAGES, "venv-pack"] if with_acker else PACKAGES
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
        subprocess.run(command, check=True, env=clean_environment())
    asked = [str(python), "-c", "import numpy, pyarrow, pandas, google.protobuf; import acker"]
    answer = subprocess.run(asked, capture_output=True, text=True, check=False, env=clean_environment(), cwd=folder)
    if "ModuleNotFoundError: No module named 'acker'" not in answer.stderr:
        raise ShippingError(f"{python} should lack acker and nothing else:\n{answer.stderr}")
    if with_acker:
        copy_package(site)
    return python


def _packages() -> list[Path]:
    """Return the contents of the folders of installed packages on this Python's path."""
    folders = [Path(path) for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    return [package for folder in folders if folder.is_dir() for package in folder.iterdir()]


def copy_package(folder: Path) -> Path:
    """Copy the installed acker into a folder, and return its path."""
    package = Path(acker.__file__).parent
    target = folder / package.name
    shutil.copytree(package, target, ignore=shutil.ignore_patterns("__pycache__"))
    return target


def pack(environment: Path, archive: Path) -> Path:
    """Pack an environment for ``--archives``, with the venv-pack in it; with tar if there is none."""
    program = environment / "bin/venv-pack"
    if program.exists():
        command = [str(program), "--quiet", "--prefix", str(environment), "--output", str(archive)]
        subprocess.run(command, check=True, env=clean_environment())
    else:
        with tarfile.open(archive, "w:gz", compresslevel=1) as target:
            target.add(environment, ".")
    return archive


def clean_environment() -> dict[str, str]:
    """Return the environment variables without those that would make acker importable, or import it."""
    dropped = {"PYTHONPATH", "VIRTUAL_ENV", "SPARK_SUBMIT_OPTS"}
    return {name: value for name, value in os.environ.items() if name not in dropped}


# ---- the job --------------------------------------------------------------------------------------------------------


def submit(recipe: Recipe, folder: Path, lacking: Path, *, messages: int, packed: Path | None = None) -> Shipped:
    """Submit the job in one way, and check its output.

    Parameters
    ----------
    recipe : Recipe
    folder : Path
        For the files of this job; not there yet, or empty.
    lacking : Path
        A Python without acker, for executors.
    messages : int
        How many, at least.
    packed : Path, optional
        For ARCHIVES: an environment with acker in it, packed.

    Raises
    ------
    ShippingError
        The job failed, or its completions are not those of one acker, or an executor did nothing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    expected, count = _write_messages(folder / "messages", messages)
    command, environment = command_of(recipe, folder, lacking, packed)
    with (folder / "log").open("wb") as log:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=folder, check=False,
            timeout=_SECONDS_MAX,
        )  # fmt: skip
    if done.returncode:
        raise ShippingError(f"{recipe}: the job ended with {done.returncode}\n{_telling(folder / 'log')}")
    rows = pq.read_table(folder / "completions")
    said = json.loads((folder / "job.json").read_text())
    executors = said["executors"]
    settled = Counter(map(str, rows["executor"].to_pylist()))
    if len(settled) != EXECUTORS or settled.keys() != {found["folder"] for found in executors}:
        raise ShippingError(f"{recipe}: expected {EXECUTORS} executors to settle trees, got {dict(settled)}")
    names = ("root_id", "message_id", "task_id", "outcome")
    got = sorted(zip(*(rows[name].to_pylist() for name in names), strict=True))
    if got != expected:
        wrong = len(set(got) ^ set(expected))
        raise ShippingError(f"{recipe}: {wrong} of {len(expected)} trees ended otherwise than with one acker")
    outcomes = Counter(Outcome(outcome).name for *_, outcome in got)
    return Shipped(count, dict(outcomes), executors, said["fault"], dict(settled))


def command_of(recipe: Recipe, folder: Path, lacking: Path, packed: Path | None) -> tuple[list[str], dict[str, str]]:
    """Return the command that submits the job, and its environment variables."""
    has_pyspark = any(lacking.parent.parent.glob("lib/python*/site-packages/pyspark"))
    home = make_spark_home(folder / "spark", is_zipped=not has_pyspark)
    # The driver's acker must not be on a path that executors get too, so the script itself says where it is.
    script = folder / "job.py"
    package = Path(acker.__file__).resolve().parents[1]
    lines = ["import runpy, sys", f"sys.path.insert(0, {str(package)!r})"]
    lines += [f"runpy.run_path({str(Path(__file__).with_name('job.py'))!r}, run_name='__main__')"]
    options = ["--conf", "spark.ui.enabled=false", "--conf", "spark.driver.bindAddress=127.0.0.1"]
    options += ["--conf", "spark.driver.host=127.0.0.1", "--conf", f"spark.sql.warehouse.dir={folder / 'warehouse'}"]
    variables = {"SPARK_HOME": str(home), "PYSPARK_DRIVER_PYTHON": sys.executable, "PYSPARK_PYTHON": str(lacking)}
    variables["JAVA_TOOL_OPTIONS"] = f"{os.environ.get('JAVA_TOOL_OPTIONS', '')} {JVM_OPTIONS}".strip()
    if recipe is Recipe.ARCHIVES:
        options += ["--archives", f"{packed}#environment"]
        variables["PYSPARK_PYTHON"] = "./environment/bin/python"
    script.write_text("\n".join([*lines, ""]))
    command = [str(home / "bin/spark-submit"), "--master", CLUSTER, *options, str(script), str(folder), str(recipe)]
    return command, {**clean_environment(), **variables}


def _write_messages(folder: Path, messages: int) -> tuple[list[tuple[int, int, int, int]], int]:
    """Write messages as files; return the expected completions, in order, and the number of messages."""
    folder.mkdir()
    stream = TreeStream(_PENDING, _OKS, fail_share=0.02, seed=1)
    acker_of_all = Acker(seed=1)
    batches = [*stream.prefill(), *(stream.take(-(-messages // _FILES)) for _ in range(_FILES))]
    done = []
    tracked: dict[int, tuple[int, int]] = {}
    for number, batch in enumerate(batches):
        done.append(acker_of_all.ingest(*batch))
        kind, root_id, _, task_id, message_id = map(np.asarray, batch)
        tracks = kind == Kind.TRACK
        ids = zip(message_id[tracks].tolist(), task_id[tracks].tolist(), strict=True)
        tracked |= zip(root_id[tracks].tolist(), ids, strict=True)
        table = pa.table([pa.array(np.asarray(column)) for column in batch], schema=MESSAGE_SCHEMA)
        pq.write_table(table, folder / f"{number:04d}.parquet")
    ended = Completions.concat(done)
    outcomes = dict.fromkeys(tracked, int(Outcome.PENDING)) | dict(
        zip(ended.root_id.tolist(), ended.outcome.tolist(), strict=True)
    )
    expected = sorted((root, *tracked[root], outcome) for root, outcome in outcomes.items())
    return expected, sum(len(batch.kind) for batch in batches)


def _telling(log: Path) -> str:
    """Return the lines of a log that begin with an exception's name, or its end."""
    text = log.read_text(errors="replace")
    lines = [line.strip() for line in text.splitlines()]
    return "\n".join(_unique(line for line in lines if "Error: " in line)) or text[-_LOG_BYTES:]


def _unique(lines: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(lines))
