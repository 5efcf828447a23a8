"""The set-up scripts, run as make runs them, on machines that lack something: a PATH of our own stands for each."""

import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from tests.torture.spark_home import ARCHIVE, jvm_options

pytestmark = pytest.mark.repository

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
SHELL_TOOLS = ("sh", "cat", "dirname", "env", "grep", "ls", "sort")


def write_program(path: Path, text: str) -> Path:
    """Write a shell script that can be executed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Return a folder that serves as PATH and holds nothing but a shell and its everyday tools."""
    folder = tmp_path / "machine"
    folder.mkdir()
    for tool in SHELL_TOOLS:
        found = shutil.which(tool)
        assert found is not None
        (folder / tool).symlink_to(found)
    return folder


def run(command: list[str | Path], path: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command in an environment that holds PATH, an empty HOME, and what is given."""
    home = path.parent / "home"
    home.mkdir(exist_ok=True)
    return subprocess.run(
        command,
        capture_output=True,
        check=False,
        env={"PATH": str(path), "HOME": str(home), **environ},
        stdin=subprocess.DEVNULL,
        text=True,
    )


# ---- find_python.sh -------------------------------------------------------------------------------------------------


def find_python(path: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return run(["/bin/sh", SCRIPTS / "find_python.sh"], path, **environ)


def suitable(path: Path) -> Path:
    """Write what passes for a suitable Python: it passes the check and tells its own path."""
    return write_program(path, 'case "$*" in *sys.executable*) echo "$0" ;; esac\n')


def real_python(path: Path) -> Path:
    return write_program(path, f'exec "{sys.executable}" "$@"\n')


def test_the_running_python_is_suitable(machine: Path) -> None:
    real_python(machine / "python3")
    done = find_python(machine)
    assert (done.returncode, done.stdout.strip()) == (0, sys.executable), done.stderr


def test_the_newest_python_wins_wherever_it_is(machine: Path, tmp_path: Path) -> None:
    suitable(machine / "python3.12")
    newest = suitable(tmp_path / "pyenv/versions/3.13.2/bin/python3.13")
    done = find_python(machine, PYENV_ROOT=str(tmp_path / "pyenv"))
    assert done.stdout.strip() == str(newest)


def test_all_of_them_are_one_for_each_version_the_newest_first(machine: Path, tmp_path: Path) -> None:
    def python(path: Path, version: str) -> str:
        script = f'case "$*" in *sys.executable*) echo "$0" ;; *version_info*) echo {version} ;; esac\n'
        return str(write_program(path, script))

    pyenv = tmp_path / "pyenv/versions"
    wanted = [
        python(pyenv / "3.13.2/bin/python3.13", "3.13"),
        python(machine / "python3.12", "3.12"),
        python(pyenv / "3.11.10/bin/python3.11", "3.11"),
    ]
    python(pyenv / "3.11.9/bin/python3.11", "3.11")
    python(machine / "python3", "3.12")
    command: list[str | Path] = ["/bin/sh", SCRIPTS / "find_python.sh", "--all"]
    done = run(command, machine, PYENV_ROOT=str(tmp_path / "pyenv"))
    assert (done.returncode, done.stdout.split()) == (0, wanted), done.stderr
    named = run(command, machine, PYENV_ROOT=str(tmp_path / "pyenv"), PYTHON=wanted[1])
    assert named.stdout.split() == wanted[1:2]
    (machine / "python3").unlink()
    (machine / "python3.12").unlink()
    assert run(command, machine).returncode == 1


def test_pyenv_patch_releases_are_ordered_by_number(machine: Path, tmp_path: Path) -> None:
    for patch in ("3.12.9", "3.12.10", "3.12.1"):
        suitable(tmp_path / f"pyenv/versions/{patch}/bin/python3.12")
    done = find_python(machine, PYENV_ROOT=str(tmp_path / "pyenv"))
    assert "/3.12.10/" in done.stdout


def test_a_shim_that_fails_hides_nothing(machine: Path, tmp_path: Path) -> None:
    shims = tmp_path / "shims"
    write_program(shims / "python3.13", "echo 'pyenv: python3.13: command not found' >&2; exit 127\n")
    behind = suitable(machine / "python3.13")
    done = run(["/bin/sh", SCRIPTS / "find_python.sh"], machine, PATH=f"{shims}:{machine}")
    assert done.stdout.strip() == str(behind)


def test_without_a_python_the_packages_are_named(machine: Path) -> None:
    write_program(machine / "python3.12", "exit 127\n")
    done = find_python(machine)
    assert done.returncode == 1
    assert done.stdout == ""
    for words in ("CPython 3.11 to 3.14", "apt-get install python3 python3-venv python3-dev", "dnf install", "apk add"):
        assert words in done.stderr
    assert f"{machine}/python3.12 does not run" in done.stderr


@pytest.mark.parametrize(
    ("tamper", "words"),
    [
        (
            "sysconfig.get_path = lambda name: '/nowhere'",
            r"has no Python\.h \(Debian: apt-get install python3\.\d+-dev",
        ),
        (
            "importlib.util.find_spec = lambda name: name != 'ensurepip' or None",
            r"has no module ensurepip \(Debian: apt-get install python3\.\d+-venv\)",
        ),
        ("sys.version_info = (3, 10, 4)", r"is Python 3\.10; 3\.11 to 3\.14 are supported"),
        ("sys.version_info = (3, 15, 0)", r"is Python 3\.15; 3\.11 to 3\.14 are supported"),
        ("platform.python_implementation = lambda: 'PyPy'", "is not CPython"),
        ("sysconfig.get_config_var = lambda name: 1", "is a free-threaded Python"),
    ],
)
def test_what_makes_a_python_unsuitable_is_told(machine: Path, tamper: str, words: str) -> None:
    # Called as python3 -I -c CODE OLDEST NEWEST.
    before = f"import importlib.util, platform, sys, sysconfig; {tamper}; exec(sys.argv.pop(1))"
    write_program(machine / "python3", f'exec "{sys.executable}" -I -c "{before}" "$3" "$4" "$5"\n')
    done = find_python(machine)
    assert done.returncode == 1
    assert re.search(words, done.stderr), done.stderr


def test_a_named_python_is_taken_or_refused_and_no_other_is_looked_for(machine: Path, tmp_path: Path) -> None:
    suitable(machine / "python3.14")
    older = suitable(tmp_path / "elsewhere/python")
    assert find_python(machine, PYTHON=str(older)).stdout.strip() == str(older)
    for name, words in (("no-such-python", "no such program"), (str(machine / "grep"), "does not run")):
        done = find_python(machine, PYTHON=name)
        assert done.returncode == 1
        assert done.stdout == ""
        assert words in done.stderr


# ---- find_jdk.py ----------------------------------------------------------------------------------------------------


def java(home: Path, version: str) -> Path:
    """Write a Java home whose java tells this version."""
    lines = (f"    java.home = {home}", f"    java.specification.version = {version}")
    write_program(home / "bin/java", "".join(f"echo '{line}' >&2\n" for line in lines))
    return home


def find_jdk(path: Path, jvms: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run find_jdk.py as a user who is not root, so that it does not depend on who runs the tests."""
    as_user = "import os, runpy, sys; os.geteuid = lambda: 1000; del sys.argv[0]; "
    code = as_user + "runpy.run_path(sys.argv[0], run_name='__main__')"
    command: list[str | Path] = [sys.executable, "-c", code, SCRIPTS / "find_jdk.py", "--jvm-folder", jvms]
    return run(command, path, **environ)


@pytest.fixture
def jvms(tmp_path: Path) -> Path:
    folder = tmp_path / "jvm"
    folder.mkdir()
    return folder


def test_a_usable_java_home_is_taken_as_it_is(machine: Path, jvms: Path, tmp_path: Path) -> None:
    java(jvms / "seventeen", "17")
    own = java(tmp_path / "own", "25")
    assert find_jdk(machine, jvms, JAVA_HOME=str(own)).stdout.strip() == str(own)


@pytest.mark.parametrize(
    ("version", "words"), [("11", "is Java 11"), ("1.8", "is Java 8"), (None, "holds no java that runs")]
)
def test_an_unusable_java_home_is_refused(
    machine: Path, jvms: Path, tmp_path: Path, version: str | None, words: str
) -> None:
    other = java(jvms / "other", "21")
    own = tmp_path / "own"
    if version is not None:
        java(own, version)
    done = find_jdk(machine, jvms, JAVA_HOME=str(own))
    assert done.stdout.strip() == str(other)
    assert f"JAVA_HOME={own} {words}; Java 17 or newer is needed" in done.stderr


def test_the_releases_that_spark_knows_best_come_first(machine: Path, jvms: Path) -> None:
    java(jvms / "a", "26")
    assert find_jdk(machine, jvms).stdout.strip() == str(jvms / "a")
    assert "newer than Spark 4 is tested on" in find_jdk(machine, jvms).stderr
    java(jvms / "b", "25")
    assert find_jdk(machine, jvms).stdout.strip() == str(jvms / "b")
    java(jvms / "c", "21")
    assert find_jdk(machine, jvms).stdout.strip() == str(jvms / "c")
    assert find_jdk(machine, jvms).stderr == ""


def test_java_on_path_is_found_and_a_broken_one_passed_over(machine: Path, jvms: Path, tmp_path: Path) -> None:
    home = java(tmp_path / "real", "17")
    (machine / "java").symlink_to(home / "bin/java")
    broken = write_program(tmp_path / "broken/java", "exit 1\n").parent
    code = find_jdk(machine, jvms, PATH=f"{broken}:{machine}")
    assert code.stdout.strip() == str(home)


@pytest.mark.parametrize("layout", ["Contents/Home", "libexec/openjdk.jdk/Contents/Home"])
def test_the_layouts_of_macos_are_known(machine: Path, jvms: Path, layout: str) -> None:
    home = java(jvms / "openjdk" / layout, "21")
    assert find_jdk(machine, jvms).stdout.strip() == str(home)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({}, "no package manager that is known here"),
        ({"ACKER_INSTALL_JDK": "0"}, "ACKER_INSTALL_JDK=0 forbids to install one"),
    ],
)
def test_without_java_one_sentence_says_what_to_install(
    machine: Path, jvms: Path, environ: dict[str, str], words: str
) -> None:
    java(jvms / "old", "11")
    done = find_jdk(machine, jvms, **environ)
    assert done.returncode == 1
    assert done.stdout == ""
    ignored, sentence = done.stderr.splitlines()
    assert ignored == f"Ignored: {jvms / 'old'} is Java 11; Java 17 or newer is needed."
    assert words in sentence
    for package in (
        "openjdk-17-jdk-headless",
        "dnf install java-21-openjdk-devel",
        "apk add openjdk17-jdk",
        "brew install",
    ):
        assert package in sentence


def package_manager(machine: Path, jvms: Path, *, offers: str) -> Path:
    """Write an apt-get that installs one package only, and a sudo without a password; return the log of their calls."""
    log = machine.parent / "log"
    home = jvms / "installed"
    write_program(machine / "sudo", f'echo "sudo $*" >>{log}\n[ "$1" = -n ] && shift\n[ "$1" = true ] || exec "$@"\n')
    properties = f"java.home = {home}|java.specification.version = 17"
    write_program(
        machine / "apt-get",
        f"""echo "apt-get $*" >>{log}
[ "$1" = update ] && exit 0
[ "$3" = {offers} ] || {{ echo "E: Unable to locate package $3"; exit 100; }}
/bin/mkdir -p {home}/bin
printf '#!/bin/sh\\necho "{properties}" | /usr/bin/tr "|" "\\\\n" >&2\\n' >{home}/bin/java
/bin/chmod +x {home}/bin/java
""",
    )
    return log


def test_a_jdk_is_installed_where_that_needs_no_password(machine: Path, jvms: Path) -> None:
    log = package_manager(machine, jvms, offers="openjdk-21-jdk-headless")
    done = find_jdk(machine, jvms)
    assert done.stdout.strip() == str(jvms / "installed"), done.stderr
    assert [line for line in log.read_text().splitlines() if line.startswith("apt-get")] == [
        "apt-get update",
        "apt-get install -y openjdk-17-jdk-headless",
        "apt-get install -y openjdk-21-jdk-headless",
    ]
    assert "No Java 17 or newer here: apt-get install -y openjdk-21-jdk-headless" in done.stderr


def test_a_failed_installation_is_told_with_its_last_line(machine: Path, jvms: Path) -> None:
    package_manager(machine, jvms, offers="none")
    done = find_jdk(machine, jvms)
    assert done.returncode == 1
    assert "apt-get failed: E: Unable to locate package openjdk-25-jdk-headless" in done.stderr


def test_nothing_is_installed_where_sudo_would_ask(machine: Path, jvms: Path) -> None:
    log = package_manager(machine, jvms, offers="openjdk-17-jdk-headless")
    write_program(machine / "sudo", "exit 1\n")
    done = find_jdk(machine, jvms)
    assert done.returncode == 1
    assert "apt-get needs root, and sudo would ask for a password" in done.stderr
    assert not log.exists()


# ---- broker.py ------------------------------------------------------------------------------------------------------
# That it starts servers and obeys is seen in test_servers.py, and by every test that uses a fixture of a server.


def broker(path: Path, root: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return run([sys.executable, SCRIPTS / "broker.py", "rabbitmq", "--root", root], path, **environ)


def test_no_broker_and_nothing_to_download_it_with_is_one_sentence(machine: Path, tmp_path: Path) -> None:
    done = broker(machine, tmp_path / "brokers/rabbitmq")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "rabbitmq is not here, and there is no apt-get to download it with: install it\n"
    assert not (tmp_path / "brokers").exists()


def test_a_download_of_a_broker_can_be_forbidden(machine: Path, tmp_path: Path) -> None:
    for program in ("apt-get", "apt-cache", "dpkg-deb", "dpkg-query"):
        write_program(machine / program, f"touch {tmp_path / 'called'}\n")
    done = broker(machine, tmp_path / "rabbitmq", ACKER_INSTALL_BROKERS="0")
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr == "rabbitmq is not here, and ACKER_INSTALL_BROKERS=0 forbids to download it\n"
    assert not (tmp_path / "called").exists()


def test_a_download_that_fails_says_why_and_leaves_nothing(machine: Path, tmp_path: Path) -> None:
    write_program(machine / "apt-get", "echo 'E: Some index files failed to download.' >&2; exit 100\n")
    for program in ("apt-cache", "dpkg-deb", "dpkg-query"):
        write_program(machine / program, "exit 1\n")
    done = broker(machine, tmp_path / "brokers/rabbitmq")
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.splitlines()[-1] == "apt-get failed: E: Some index files failed to download."
    assert list((tmp_path / "brokers").iterdir()) == []


def test_an_update_without_a_network_is_told(machine: Path, tmp_path: Path) -> None:
    """It only warns, and then no package is known."""
    write_program(machine / "apt-get", "echo 'W: Some index files failed to download.' >&2\n")
    write_program(machine / "apt-cache", "echo 'E: No packages found' >&2; exit 100\n")
    for program in ("dpkg-deb", "dpkg-query"):
        write_program(machine / program, "exit 1\n")
    done = broker(machine, tmp_path / "brokers/rabbitmq")
    assert (done.returncode, done.stdout) == (4, "")
    assert "apt-get update found no package rabbitmq-server: without a network" in done.stderr.splitlines()[-1]
    assert list((tmp_path / "brokers").iterdir()) == []


def test_a_broker_that_does_not_start_shows_what_it_wrote(machine: Path, tmp_path: Path) -> None:
    root = tmp_path / "rabbitmq"
    write_program(root / "usr/lib/erlang/bin/epmd", "echo the address is in use; exit 7\n")
    write_program(root / "usr/lib/rabbitmq/bin/rabbitmq-server", "exit 1\n")
    done = broker(machine, root, TMPDIR=str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert "ended with 7, and wrote:\nthe address is in use" in done.stderr
    assert not list(tmp_path.glob("acker-rabbitmq-*"))


# ---- environment.py and in_env.sh -----------------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a copy of what the set-up reads, so that a step that is wrongly taken harms nothing."""
    copy = tmp_path / "checkout"
    shutil.copytree(SCRIPTS, copy / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "ext", copy / "ext", ignore=shutil.ignore_patterns("_*.cpp"))
    (copy / "src/acker/cli").mkdir(parents=True)
    for name in ("pyproject.toml", "setup.py", "Makefile", "src/acker/__init__.py", "src/acker/cli/jdk.py"):
        shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.fixture
def environment(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import environment.py of the copy."""
    monkeypatch.syspath_prepend(str(checkout / "scripts"))
    spec = importlib.util.spec_from_file_location("environment", checkout / "scripts/environment.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({}, "No C++ compiler (tried g++, c++, clang++)"),
        ({"CXX": "no-such-c++ -O1"}, "CXX=no-such-c++ -O1 does not run"),
    ],
)
def test_without_a_compiler_its_packages_are_named(
    machine: Path, checkout: Path, environ: dict[str, str], words: str
) -> None:
    write_program(machine / "c++", "exit 1\n")  # what macOS has before its command line tools are installed
    done = run([sys.executable, checkout / "scripts/environment.py", "build"], machine, **environ)
    assert done.returncode == 1
    assert words in done.stderr
    for package in ("apt-get install g++", "dnf install gcc-c++", "apk add g++", "xcode-select --install"):
        assert package in done.stderr
    assert not (checkout / ".venv").exists()


def test_another_compiler_serves_where_pythons_own_is_missing(machine: Path, environment: ModuleType) -> None:
    write_program(machine / "clang++", "echo clang\n")
    assert environment.compiler({"PATH": str(machine)}) == "clang++"


def test_a_folder_that_is_no_environment_is_left_alone(machine: Path, checkout: Path) -> None:
    write_program(machine / "c++", "exit 0\n")
    (checkout / ".venv").mkdir()
    (checkout / ".venv/thesis.txt").write_text("irreplaceable")
    done = run([sys.executable, checkout / "scripts/environment.py", "build"], machine, CXX="c++")
    assert done.returncode == 1
    assert "is in the way" in done.stderr
    assert (checkout / ".venv/thesis.txt").read_text() == "irreplaceable"


def test_every_level_resolves_its_requirements(environment: ModuleType) -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    names = {
        level: {re.split(r"[<>=\[ ]", wanted)[0] for wanted in environment.requirements(pyproject, needs)}
        for level, needs in environment.LEVELS.items()
    }
    assert names["build"] == {"Cython", "numpy", "setuptools"}
    assert names["run"] == names["build"] | {"click", "pandas", "protobuf", "pyarrow", "pyspark", "rich"}
    assert names["test"] > names["run"] | {"hypothesis", "mypy", "pytest", "ruff"}
    assert environment.group(pyproject, "dev") == [
        item for name in ("test", "lint", "docs", "release") for item in environment.group(pyproject, name)
    ]


def test_the_native_modules_are_built_again_only_when_something_of_it_changed(
    environment: ModuleType, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[list[str]] = []
    suffix = environment.sysconfig.get_config_var("EXT_SUFFIX")

    def build(command: list[str], environ: dict[str, str]) -> None:
        assert environ["CXX"]
        built.append(command)
        for name in ("_core", "_flow", "_handles"):
            (checkout / f"src/acker/{name}{suffix}").touch()
            (checkout / f"ext/acker/{name}.cpp").write_text(f"// made by Cython, run {len(built)}\n")

    monkeypatch.setattr(environment, "run", build)
    (checkout / ".venv").mkdir()
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())

    def builds() -> int:
        before = len(built)
        environment.ensure_native_module(pyproject)
        return len(built) - before

    assert [builds(), builds()] == [1, 0]
    header = next(iter((checkout / "ext").rglob("*.h")))
    header.write_text(header.read_text() + "// a comment\n")
    assert [builds(), builds()] == [1, 0]
    monkeypatch.setenv("ACKER_DEBUG", "1")
    assert [builds(), builds()] == [1, 0]
    for name in ("_core", "_flow", "_handles"):
        (checkout / f"src/acker/{name}{suffix}").unlink()
        assert [builds(), builds()] == [1, 0]
    (checkout / "src/acker/notes.py").touch()
    assert builds() == 0


def test_pip_builds_pyspark_in_the_way_of_which_old_pips_do_not_complain(
    environment: ModuleType, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str | None] = []
    monkeypatch.setattr(environment, "run", lambda _, environ: asked.append(environ.get("PIP_USE_PEP517")))
    (checkout / ".venv").mkdir()
    environment.ensure_dependencies(tomllib.loads((ROOT / "pyproject.toml").read_text()), "run")
    assert asked == ["1"]


def test_the_modules_are_compiled_while_the_rest_is_downloaded(
    environment: ModuleType, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    all_three = threading.Barrier(3, timeout=60)

    def step(name: str) -> None:
        all_three.wait()
        steps.append(name)

    def install(_: object, level: str) -> None:
        if level == "build":
            steps.append("build requirements")
        else:
            step("requirements")

    monkeypatch.setattr(sys, "argv", ["environment.py", "quick"])
    monkeypatch.setattr(environment, "compiler", lambda _: "c++")
    monkeypatch.setattr(environment, "ensure_venv", lambda: steps.append("venv"))
    monkeypatch.setattr(environment, "ensure_dependencies", install)
    monkeypatch.setattr(environment, "ensure_native_module", lambda _: step("modules"))
    monkeypatch.setattr(environment, "ensure_brokers", lambda _: step("brokers"))
    environment.main()
    assert steps[:2] == ["venv", "build requirements"]
    assert sorted(steps[2:]) == ["brokers", "modules", "requirements"]

    monkeypatch.setattr(environment, "ensure_brokers", lambda _: sys.exit(7))
    monkeypatch.setattr(environment, "ensure_native_module", lambda _: None)
    monkeypatch.setattr(environment, "ensure_dependencies", lambda _, level: None)
    with pytest.raises(SystemExit, match="7"):
        environment.main()


def test_the_options_of_the_tests_name_the_archive_of_spark_if_there_is_one(tmp_path: Path) -> None:
    spaced = tmp_path / "a folder"
    spaced.mkdir()
    archives = [tmp_path / "none.jsa", tmp_path / "spark.jsa", spaced / "spark.jsa"]
    for archive in archives[1:]:
        archive.touch()
    assert [str(archive) in jvm_options(archive) for archive in archives] == [False, True, False]


@pytest.mark.minutes(3)
@pytest.mark.slow  # what it makes is an advantage of every other test with Spark, and none needs it
@pytest.mark.spark
def test_a_jvm_takes_the_classes_of_spark_from_the_archive(tmp_path: Path) -> None:
    archive, log = ARCHIVE, tmp_path / "classes"
    environ = {name: value for name, value in os.environ.items() if name not in {"SPARK_SUBMIT_OPTS", "SPARK_CONF_DIR"}}
    if not archive.is_file():  # the set-up could not make it, so this says why
        archive = tmp_path / "spark.jsa"
        command = [sys.executable, str(SCRIPTS / "spark_archive.py"), str(archive)]
        subprocess.run(command, check=True, env=environ, stdin=subprocess.DEVNULL)
    program = "from pyspark.sql import SparkSession; SparkSession.builder.master('local[1]').getOrCreate().stop()"
    options = f"{jvm_options(archive)} -Xlog:class+load:file={log}"
    environ["SPARK_SUBMIT_OPTS"] = options
    subprocess.run([sys.executable, "-c", program], check=True, env=environ, stdin=subprocess.DEVNULL)
    loaded = [line for line in log.read_text().splitlines() if " org.apache.spark." in line]
    assert len([line for line in loaded if "source: shared objects file" in line]) > 1_000


def test_commands_run_with_the_environments_python_and_java(machine: Path, checkout: Path) -> None:
    (checkout / ".venv/acker").mkdir(parents=True)
    (checkout / ".venv/acker/java_home").write_text("/some/java")
    settings = {"SPARK_HOME": "/other", "JAVA_HOME": "/old", "PYTHONDONTWRITEBYTECODE": "1"}
    done = run(["/bin/sh", checkout / "scripts/in_env.sh", "env"], machine, **settings)
    environ = dict(line.split("=", 1) for line in done.stdout.splitlines())
    python = str(checkout / ".venv/bin/python")
    assert environ["PYSPARK_PYTHON"] == environ["PYSPARK_DRIVER_PYTHON"] == python
    assert environ["PATH"].split(os.pathsep)[0] == str(checkout / ".venv/bin")
    assert environ["JAVA_HOME"] == "/some/java"
    assert "SPARK_HOME" not in environ
    assert "PYTHONDONTWRITEBYTECODE" not in environ, "each process would compile what it imports"


# ---- Makefile, setup.py ---------------------------------------------------------------------------------------------


def make(*arguments: str) -> str:
    done = subprocess.run(["make", "-C", ROOT, *arguments], capture_output=True, check=True, text=True)
    return done.stdout


def test_help_lists_every_target() -> None:
    phony = " ".join(re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE))
    listed = re.findall(r"^  make ([\w-]+) ", make("--no-print-directory", "help"), re.MULTILINE)
    assert sorted(listed) == sorted(phony.split())
    assert {"run", "test", "help", "build", "lint", "bench", "clean"} <= set(listed)


@pytest.mark.parametrize(
    ("target", "program"),
    [
        ("run", "python examples/wordcount.py"),
        ("test", "sh scripts/test.sh"),
        ("test-slow", "sh scripts/test.sh --slow 4.0"),
        ("quick", 'sh scripts/pytest.sh --ignore=tests/spark -m "not spark and not server and not slow"'),
        ("bench", "python -m benchmarks.suite --json build/bench.json"),
    ],
)
def test_targets_pass_arguments_on(target: str, program: str) -> None:
    assert f"{program} --input some/folder\n" in make("-n", target, "ARGS=--input some/folder")


def test_a_named_python_reaches_the_setup() -> None:
    assert 'PYTHON="python3.12" sh scripts/setup.sh test' in make("-n", "test", "PYTHON=python3.12")


@pytest.mark.parametrize(
    ("environ", "words"),
    [({"ACKER_DEBUG": "maybe"}, "ACKER_DEBUG=maybe: expected 0 or 1"), ({"ACKER_NATIVE": "2"}, "ACKER_NATIVE=2")],
)
def test_a_switch_with_a_strange_value_stops_the_build(checkout: Path, environ: dict[str, str], words: str) -> None:
    done = subprocess.run(
        [sys.executable, "setup.py", "--version"],
        capture_output=True,
        check=False,
        cwd=checkout,
        env={**os.environ, **environ},
        text=True,
    )
    assert done.returncode != 0
    assert words in done.stderr


@pytest.mark.soak
def test_tests_of_a_file_stay_in_one_process() -> None:
    """As tests/conftest.py groups them: else module-wide fixtures, and the Spark session, are made in each process."""
    files = [f"tests/topology/test_{name}.py" for name in ("methods", "tuples", "hashing")]
    command = [sys.executable, "-m", "pytest", "-v", "-n", "2", "--dist", "loadgroup", "-p", "no:cacheprovider", *files]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(command, capture_output=True, check=True, text=True, cwd=ROOT, env=environ)
    processes: dict[str, set[str]] = {}
    for process, path in re.findall(r"^\[(gw\d+)\].* PASSED ([\w/.]+)::", done.stdout, re.MULTILINE):
        processes.setdefault(path, set()).add(process)
    assert set(processes) == set(files) and all(len(found) == 1 for found in processes.values()), processes


# ---- flaky.py -------------------------------------------------------------------------------------------------------


def test_slow_tests_are_not_begun_when_the_time_is_up_and_others_are() -> None:
    # This run has taken the time over, so what its tests start has none.
    assert "ACKER_SLOW_UNTIL" not in os.environ
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/remote/test_ledger.py", "-k", "no_sim"]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "ACKER_SLOW_UNTIL": "0"}, capture_output=True, check=False, text=True
    )
    assert "not begun: .ci/run has no time left for slow tests" in done.stdout and "1 passed, 1 skipped" in done.stdout


@pytest.mark.soak
def test_tests_that_fail_now_and_then_are_counted(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(
        "import os\n"
        "def test_good(): pass\n"
        "def test_second(tmp_path_factory):\n"
        f"    with open({str(tmp_path / 'count')!r}, 'a+') as file:\n"
        "        file.write('x')\n"
        "        assert file.tell() != 2, 'the second round'\n"
    )
    flaky: list[str | Path] = [sys.executable, SCRIPTS / "flaky.py", "--rounds", "3", "--seed", "7", "--no-load"]
    done = subprocess.run([*flaky, tmp_path], capture_output=True, check=False, text=True)
    assert done.returncode == 1, done.stderr
    assert "round 3 of 3, seed 9: 2 tests in " in done.stdout
    assert re.search(r"failed of 3  test\n +1 +test_some::test_second\n +seeds 8: .*the second round", done.stdout)
    none = subprocess.run([*flaky, "-k", "nowhere", tmp_path], capture_output=True, check=False, text=True)
    assert none.returncode == 2 and none.stderr == "flaky: no test ran\n"


# ---- storm.py -------------------------------------------------------------------------------------------------------
# That the command runs is seen in tests/benchmarks/test_storm_benchmarks.py.


def test_storm_without_a_compiler_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)
    storm = importlib.import_module("storm")
    errors = importlib.import_module("brokers.errors")
    javac = tmp_path / "javac"
    with pytest.raises(errors.UnavailableError, match=f"storm needs a JDK, and not a JRE alone: there is no {javac}"):
        storm.compiled(javac, tmp_path / "jars", tmp_path / "WordCount.java", tmp_path)


def test_a_program_for_storm_is_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)
    storm = importlib.import_module("storm")
    javac = write_program(tmp_path / "javac", f"echo called >> {tmp_path / 'calls'}\nmkdir $4\n")
    source = tmp_path / "Program.java"
    source.write_text("one")
    first = storm.compiled(javac, tmp_path / "jars", source, tmp_path)
    assert first == storm.compiled(javac, tmp_path / "jars", source, tmp_path)
    source.write_text("two")
    assert first != storm.compiled(javac, tmp_path / "jars", source, tmp_path)
    assert (tmp_path / "calls").read_text() == "called\n" * 2


def test_the_arguments_of_spark_versions_are_looked_at_before_the_first_one_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)
    spark_versions = importlib.import_module("spark_versions")
    ran: list[str] = []
    monkeypatch.setattr(spark_versions, "run", lambda version, _: ran.append(version))
    monkeypatch.setattr(sys, "argv", ["spark_versions.py", "4.0", "tests/spark/test_files.py"])
    with pytest.raises(SystemExit):
        spark_versions.main()
    assert "got tests/spark/test_files.py; tests come after --tests" in capsys.readouterr().err and not ran
