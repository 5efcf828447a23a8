"""Run a selection of the tests of acker.spark on other releases of Spark.

    python scripts/spark_versions.py 4.0 4.1

Each release gets its own environment in build/, with its PySpark from the package index (a download of about 400 MB)
and all other packages from the present environment. It stays there for the next run; --delete removes it.
Standard library only.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"

# Every way into Spark, and a stream that goes on from its checkpoint.
TESTS = (
    "test_completion_functions.py::test_a_doubled_track_is_harmless_wherever_it_lies",
    "test_completion_functions.py::test_completions_have_the_schema",
    "test_block_settlement.py::test_blocks_that_are_wrong_fail_the_job_and_say_why",
    "pipelines/test_tracked.py::test_each_tree_ends_as_its_rows_did",
    "pipelines/test_tracked.py::test_columns_of_all_sorts_go_through",
    "streams/test_plan.py::test_any_stream_cut_anywhere_ends_as_the_rules_say[well-formed]",
    "streams/test_sinks.py::test_a_rerun_after_the_effect_is_told_by_the_batch_id",
)
# Tests with jars that are for one release.
TESTS_OF = {"4.1": ("table_sinks.py",)}
# Sockets that PySpark 4.0 leaves to the garbage collector.
IGNORED = ("ResourceWarning", "pytest.PytestUnraisableExceptionWarning")

ASK = """
import importlib.metadata, pandas, pyarrow, pyspark, sys
known = importlib.metadata.metadata("pyspark").get_all("Classifier")
fits = "Programming Language :: Python :: {}.{}".format(*sys.version_info) in known
print(pyspark.__version__, pyarrow.__version__, pandas.__version__, fits)
"""


def environment(version: str) -> Path:
    """Make the environment of a release, if it is not there; return the path of its Python."""
    folder = BUILD / f"spark-{version}"
    python = folder / "bin/python"
    done = folder / "done"
    if not done.exists():
        venv.EnvBuilder(symlinks=True, with_pip=True, clear=True).create(folder)
        print(f"==> Installing PySpark {version} into {folder.relative_to(ROOT)}", file=sys.stderr, flush=True)
        pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
        subprocess.run([*pip, f"pyspark=={version}.*"], check=True)
        (site,) = folder.glob("lib/python*/site-packages")
        # As a site folder, so that editable installs are found; behind the environment's own, so that its PySpark is
        # the one that counts.
        (site / "others.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
        done.touch()
    return python


def run(version: str, arguments: list[str]) -> int:
    """Run the tests on one release; return pytest's exit status."""
    python = environment(version)
    found = subprocess.run([str(python), "-c", ASK], capture_output=True, text=True, check=True).stdout.split()
    if not found[0].startswith(f"{version}."):
        raise SystemExit(f"the environment of Spark {version} has PySpark {found[0]}")
    told = "PySpark {}, pyarrow {}, pandas {}".format(*found)
    print(f"==> {told}, Python {sys.version.split()[0]}", file=sys.stderr, flush=True)
    if found[3] != "True":
        print("==> not run: this PySpark does not name this Python among those it supports", file=sys.stderr)
        return 0
    ignored = [word for category in IGNORED for word in ("-W", f"ignore::{category}")]
    tests = arguments or [str(ROOT / "tests/spark" / name) for name in (*TESTS, *TESTS_OF.get(version, ()))]
    # No cache, which belongs to the main run; and no Spark that a variable names instead.
    command = [str(python), "-m", "pytest", "-p", "no:cacheprovider", *ignored, *tests]
    variables = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    variables |= dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), str(python))
    return subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode


def main() -> None:
    """Run all releases that are named, and fail at the end if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="+", metavar="VERSION", help="such as 4.0")
    parser.add_argument("--delete", action="store_true", help="remove each environment after its run")
    parser.add_argument("--tests", nargs="+", default=[], help="these tests, by path, instead of the selection")
    options = parser.parse_args()
    for version in options.versions:  # all of them, before the first one runs for minutes
        if not re.fullmatch(r"\d+\.\d+", version):
            parser.error(f"expected a version such as 4.0, got {version}; tests come after --tests")
    failed = []
    for version in options.versions:
        if run(version, options.tests):
            failed.append(version)
        if options.delete:
            shutil.rmtree(BUILD / f"spark-{version}")
    if failed:
        raise SystemExit(f"failed on Spark {', '.join(failed)}")


if __name__ == "__main__":
    main()
