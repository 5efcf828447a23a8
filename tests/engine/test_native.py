"""What is said where the native core cannot be imported, in real folders and zips; and what importing acker loads."""

import os
import shutil
import subprocess
import sys
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import acker

WANTED = f"_core{EXTENSION_SUFFIXES[0]}"


@pytest.fixture
def package(tmp_path):
    """A folder with a copy of the package that lacks the compiled modules."""
    copy = tmp_path / "site"
    ignored = shutil.ignore_patterns("*.so", "*.pyd", "__pycache__")
    shutil.copytree(Path(acker.__file__).parent, copy / "acker", ignore=ignored)
    return copy


@pytest.fixture
def archive(package, tmp_path):
    """The same as a zip, as for --py-files."""
    made = tmp_path / "acker.zip"
    with zipfile.ZipFile(made, "w") as target:
        for path in sorted(package.rglob("*.py")):
            target.write(path, path.relative_to(package))
    return made


def run(code, path=None):
    """Run some Python in a process of its own; `path` comes first on its search path."""
    environ = dict(os.environ)
    if path is not None:
        environ["PYTHONPATH"] = str(path)
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, check=False, env=environ, text=True)


def refusal(done):
    """Return the sentence with which an import failed."""
    assert done.returncode == 1
    kind, _, sentence = done.stderr.splitlines()[-1].partition(": ")
    assert kind == "ImportError", done.stderr
    return sentence


def test_without_the_compiled_module_the_import_fails_with_one_sentence(package):
    sentence = refusal(run("import acker", package))
    version = ".".join(map(str, sys.version_info[:3]))
    assert sentence.startswith(f"acker's compiled module {WANTED} for Python {version} is missing: ")
    assert f"{package / 'acker'} holds no compiled module at all" in sentence
    for remedy in ("install a wheel of acker", "docs/install.md", "acker.spark.ship(spark)", "docs/shipping.md"):
        assert remedy in sentence


def test_the_module_of_another_python_is_named(package):
    (package / "acker/_core.cpython-399-x86_64-linux-gnu.so").touch()
    (package / "acker/_core.cp399-win_amd64.pyd").touch()
    sentence = refusal(run("import acker", package))
    assert "holds _core.cp399-win_amd64.pyd, _core.cpython-399-x86_64-linux-gnu.so;" in sentence


def test_a_module_that_cannot_be_loaded_is_not_called_absent(package):
    (package / "acker" / WANTED).write_bytes(b"no module")
    assert f"it lies in {package / 'acker'} but cannot be loaded (" in refusal(run("import acker", package))


def test_from_a_zip_the_sentence_says_that_it_is_one(archive):
    sentence = refusal(run("import acker", archive))
    assert f"the package lies in an archive ({archive / 'acker'})" in sentence


def test_the_abi_is_that_of_this_python():
    assert EXTENSION_SUFFIXES[0].startswith(f".{acker.build_info()['abi']}.")


def test_all_names_can_be_imported_without_arrow():
    done = run("import sys; sys.modules['pyarrow'] = None; from acker import *; print(len(Acker()))")
    assert done.stdout == "0\n", done.stderr
    done = run("import sys; sys.modules['pyarrow'] = None; import acker; acker.MESSAGE_SCHEMA")
    assert done.stderr.endswith("ImportError: the schemas of acker need pyarrow: pip install 'acker[arrow]'\n")


def test_importing_acker_loads_little_besides_itself():
    """What takes long to import is left to those who need it: an import that creeps in shows here, not on a clock."""

    def modules_after(code):
        done = run(f"{code}; import sys; print(*sys.modules)")
        assert done.returncode == 0, done.stderr
        return set(done.stdout.split())

    added = modules_after("import numpy, acker") - modules_after("import numpy")
    others = {name for name in added if name.partition(".")[0] not in {"acker", "__future__", "cython_runtime"}}
    assert "acker._core" in added
    assert {name for name in others if not name.startswith("_")} <= {"copy", "dataclasses", "errno", "threading"}
    assert not added & {
        "acker._engine.combiner",
        "acker._engine.open_trees",
        "acker.spark",
        "acker.topology",
    }
