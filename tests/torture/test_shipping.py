"""Executors that lack acker, or have another one: what they say, and each way of getting it there."""

import inspect
import pickle
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from pyspark import cloudpickle

import acker
from acker.errors import ArgumentTypeError, ArgumentValueError, SessionError
from acker.spark.shipping import archives
from acker.spark.versioned_pickle import VersionedPickle, pack_function
from tests.torture.shipping import (
    CLUSTER,
    Recipe,
    ShippingError,
    clean_environment,
    copy_package,
    job,
    make_environment,
    pack,
    submit,
)
from tests.torture.shipping.run import PACKAGES, command_of
from tests.torture.spark_home import JVM_OPTIONS, make_spark_home

MESSAGES = 100_000


@pytest.fixture(scope="module")
def lacking(tmp_path_factory):
    """A Python with everything but acker."""
    return make_environment(tmp_path_factory.mktemp("lacking"), linked=True)


@pytest.fixture
def other_release(tmp_path):
    """A folder with an acker that says it is another release."""
    text = copy_package(tmp_path / "other") / "__init__.py"
    text.write_text(text.read_text().replace(acker.__version__, "9.9.9"))
    return text.parents[1]


# ---- versioned pickles ----------------------------------------------------------------------------------------------


def open_with(python, packed, path=""):
    """Open a versioned pickle with another Python; return the last line of what it says."""
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer))"
    environment = {**clean_environment(), "PYTHONPATH": str(path)}
    command = [python, "-c", code]
    answer = subprocess.run(
        command, input=cloudpickle.dumps(packed), capture_output=True, check=False, env=environment, cwd="/"
    )
    return (answer.stdout + answer.stderr).decode().strip().splitlines()[-1]


def test_a_versioned_pickle_is_its_content_where_it_is_opened(lacking):
    assert pickle.loads(cloudpickle.dumps(VersionedPickle([acker.Kind.OK]))) == [acker.Kind.OK]
    assert list(pickle.loads(cloudpickle.dumps(pack_function(iter)))([1, 2])) == [1, 2]
    assert open_with(lacking, VersionedPickle(acker.Kind.OK), Path(acker.__file__).parents[1]) == "2"


def test_a_worker_without_acker_says_what_to_do(lacking):
    said = open_with(lacking, VersionedPickle(acker.Kind.OK))
    assert said.startswith("ImportError: acker cannot be imported by the Python of this worker, 3.")
    assert str(lacking) in said and "(No module named 'acker')" in said
    assert said.endswith("call acker.spark.ship(spark) before the job, or take another way of docs/shipping.md")


def test_a_worker_with_another_release_says_both(lacking, other_release):
    said = open_with(lacking, VersionedPickle(acker.Kind.OK), other_release)
    assert said.startswith(f"RuntimeError: the driver has acker {acker.__version__} and the worker at {lacking} on ")
    assert "has acker 9.9.9: install the same release in both" in said


@pytest.mark.spark
def test_a_versioned_pickle_may_hold_broadcast_variables(spark):
    import pyarrow as pa

    numbers = spark.sparkContext.broadcast([3, 4])

    def run(batches):
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"id": numbers.value})

    assert [row.id for row in spark.range(1).coalesce(1).mapInArrow(pack_function(run), "id long").collect()] == [3, 4]


# ---- archives -------------------------------------------------------------------------------------------------------


def test_an_archive_is_the_package_under_its_name(tmp_path):
    (archive,) = archives()
    path, _, name = archive.partition("#")
    assert name == "acker" and archives() == [archive]
    with zipfile.ZipFile(path) as content:
        content.extractall(tmp_path / name)
    assert {"__init__.py", "py.typed", "spark/__init__.py"} <= set(content.namelist())
    command = [sys.executable, "-I", "-c", "import sys; sys.path.insert(0, ''); import acker; print(acker.__file__)"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert Path(said.stdout.strip()) == tmp_path / "acker/__init__.py"


def test_an_archive_of_a_wheel_has_the_libraries_in_it(tmp_path):
    wheel = tmp_path / f"acker-{acker.__version__}-cp313-cp313-musllinux_1_2_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as content:
        for name in ("acker/__init__.py", "acker.libs/libstdc++.so.6", f"acker-{acker.__version__}.dist-info/RECORD"):
            content.writestr(name, name)
    made = [archive.partition("#") for archive in archives(wheel)]
    assert [name for *_, name in made] == ["acker", "acker.libs"]
    assert [zipfile.ZipFile(path).namelist() for path, *_ in made] == [["__init__.py"], ["libstdc++.so.6"]]


def test_what_is_no_wheel_of_this_release_is_refused(tmp_path):
    with pytest.raises(ArgumentTypeError, match="wheel: expected a path, got int"):
        archives(3)
    for name in ("numpy-2.0.0-py3-none-any.whl", "acker-9.9.9-py3-none-any.whl", f"acker-{acker.__version__}.tar.gz"):
        with pytest.raises(ArgumentValueError, match=rf"a wheel of acker {acker.__version__}, got {name}"):
            archives(tmp_path / name)
    wheel = tmp_path / f"acker-{acker.__version__}-py3-none-any.whl"
    for content in (None, b"no zip"):
        if content is not None:
            wheel.write_bytes(content)
        with pytest.raises(ArgumentValueError, match="cannot be read"):
            archives(wheel)


def test_an_acker_within_a_zip_cannot_be_sent(monkeypatch, tmp_path):
    from acker.spark import shipping

    monkeypatch.setattr(acker, "__file__", str(tmp_path / "acker.zip/acker/__init__.py"))
    shipping._archives.cache_clear()
    with pytest.raises(SessionError, match=r"acker was imported from .*acker\.zip, which is no folder"):
        archives()


# ---- jobs on two executors ------------------------------------------------------------------------------------------


def places_of(shipped):
    """Return where acker is on each executor, from the executor's folder."""
    assert len(shipped.executors) == len({found["folder"] for found in shipped.executors}) == 2
    return {found["at"].removeprefix(found["folder"] + "/") for found in shipped.executors}


def check(shipped):
    assert shipped.messages >= MESSAGES
    assert shipped.outcomes["ACKED"] > MESSAGES // 5 and shipped.outcomes["FAILED"] > 0
    assert shipped.outcomes["PENDING"] > 0


@pytest.mark.slow
@pytest.mark.spark
def test_acker_is_sent_from_a_running_session(lacking, tmp_path):
    shipped = submit(Recipe.ARTIFACTS, tmp_path / "job", lacking, messages=MESSAGES)
    check(shipped)
    assert shipped.fault.startswith("ImportError: acker cannot be imported by the Python of this worker")
    assert places_of(shipped) == {"acker"}


@pytest.mark.soak
@pytest.mark.spark
def test_acker_is_in_a_packed_environment(lacking, tmp_path):
    make_environment(tmp_path / "environment", linked=True, with_acker=True)
    packed = pack(tmp_path / "environment", tmp_path / "environment.tar.gz")
    shipped = submit(Recipe.ARCHIVES, tmp_path / "job", lacking, messages=MESSAGES, packed=packed)
    check(shipped)
    version = "python{}.{}".format(*sys.version_info)
    assert places_of(shipped) == {f"environment/lib/{version}/site-packages/acker"}


@pytest.mark.soak
@pytest.mark.spark
def test_a_job_that_fails_is_told(lacking, tmp_path):
    with pytest.raises(ShippingError, match="archives: the job ended with 1"):
        submit(Recipe.ARCHIVES, tmp_path / "job", lacking, messages=1000, packed=tmp_path / "none.tar.gz")


@pytest.mark.repository
def test_the_page_has_the_commands_that_are_run(tmp_path):
    page = Path(__file__).parents[2] / "docs/shipping.md"
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL)
    lines = [line.removeprefix("$ ") for kind, block in blocks if kind == "console" for line in block.splitlines()]
    (typed,) = [shlex.split(line) for line in lines if "spark-submit" in line]
    command, variables = command_of(Recipe.ARCHIVES, tmp_path, Path("python"), Path("environment.tar.gz"))
    words = [word.replace(f"{tmp_path}/", "") for word in command]
    settings = {f"{name}={value}" for name, value in variables.items()} | {"PYSPARK_DRIVER_PYTHON=python"}
    assert {word for word in typed if word not in settings} <= {*words, "spark-submit", "job.py"}
    (install,) = [shlex.split(line) for line in lines if "/pip install" in line]
    assert set(PACKAGES) | {"venv-pack", "acker"} == set(install[2:])
    (example,) = [block for kind, block in blocks if kind == "python"]
    assert example.strip().splitlines()[-1] in inspect.getsource(job)


def test_executors_whose_python_lacks_pyspark_find_that_of_the_cluster(lacking, tmp_path):
    for name, python in (("linked", lacking), ("installed", tmp_path / "bin/python")):
        _, variables = command_of(Recipe.ARTIFACTS, tmp_path / name, python, None)
        home = Path(variables["SPARK_HOME"])
        assert (home / "python/lib/pyspark.zip").exists() is (name == "installed")


# ---- acker doctor ---------------------------------------------------------------------------------------------------


def doctor(folder, lacking, *arguments, master=CLUSTER):
    """Look at a cluster; return the exit status and the lines about executors."""
    package = Path(acker.__file__).resolve().parents[1]
    code = f"import sys; sys.path.insert(0, {str(package)!r}); from acker.cli import main; main()"
    command = [sys.executable, "-c", code, "doctor", "--master", master, "--python", lacking, *arguments]
    java = {"JAVA_TOOL_OPTIONS": JVM_OPTIONS}
    environment = {**clean_environment(), **java, "SPARK_HOME": str(make_spark_home(folder / "spark"))}
    answer = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=folder)
    waits = answer.stderr.splitlines()
    assert waits[0] == f"starting Spark at {master} ..." and all(line.endswith(" ...") for line in waits)
    assert ("sending acker to the executors ..." in waits) == ("--ship" in arguments)
    lines = [" ".join(line.split()) for line in answer.stdout.splitlines()]
    return answer.returncode, [line for line in lines if line.split()[1] in ("executor", "fix", "tasks")]


@pytest.mark.soak
@pytest.mark.spark
def test_the_doctor_finds_executors_without_acker(lacking, tmp_path):
    code, lines = doctor(tmp_path / "doctor", lacking)
    assert code == 1
    assert [line.split()[:2] for line in lines] == [["NO", "executor"], ["NO", "fix"]] * 2 + [["ok", "tasks"]]
    assert f"python {sys.version.split()[0]} at {lacking}; No module named 'acker'" in lines[0]
    assert lines[1] == ("NO fix acker cannot be imported there: send it along; docs/shipping.md has the ways to do so")


@pytest.mark.soak
@pytest.mark.spark
def test_the_doctor_looks_at_what_is_sent(lacking, tmp_path):
    code, lines = doctor(tmp_path / "doctor", lacking, "--ship", master="local[2]")
    assert (code, lines[-1]) == (0, "ok tasks 2 of 2 answered")
    assert len(lines) == 2 and f"acker {acker.__version__}, " in lines[0]


@pytest.mark.soak
@pytest.mark.spark
def test_the_doctor_finds_another_release(lacking, tmp_path, other_release):
    code, lines = doctor(tmp_path / "doctor", lacking, "--conf", f"spark.executorEnv.PYTHONPATH={other_release}")
    assert code == 1
    assert "acker 9.9.9, " in lines[0] and f"at {other_release}" in lines[0]
    assert lines[1].startswith(f"NO fix the driver has acker {acker.__version__}: install the same release in both")
