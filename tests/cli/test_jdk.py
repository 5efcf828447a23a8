"""The choice of a JDK among those of a machine."""

from __future__ import annotations

import os

import pytest

from acker.cli import environment, jdk
from tests.cli.conftest import java


def test_the_first_jdk_that_will_do_is_taken(machine) -> None:
    homes = machine(broken=None, old="1.8.0_402", eleven="11.0.2", good="21.0.1", newer="25-ea")
    assert environment.find_jdk() == (homes["good"], 21, "21.0.1")


@pytest.mark.parametrize(
    ("version", "release"), [("17.0.15", 17), ("25-ea", 25), ("1.8.0_402", 8), ("21", 21), (None, None)]
)
def test_versions_of_java(tmp_path, version, release) -> None:
    found = jdk.inspect(java(tmp_path / "java", version) / "bin" / "java")
    assert (found and found.release) == release


def test_java_home_and_path_come_first(monkeypatch, tmp_path) -> None:
    named, on_path = java(tmp_path / "named", "25"), java(tmp_path / "on path", "21")
    monkeypatch.setenv("JAVA_HOME", str(named))
    monkeypatch.setenv("PATH", str(on_path / "bin"), prepend=os.pathsep)
    assert environment.find_jdk().version == "25"
    monkeypatch.setenv("JAVA_HOME", "")
    assert environment.find_jdk().version == "21"


def test_a_folder_of_path_that_is_closed_is_passed_over(monkeypatch, tmp_path) -> None:
    def is_file(path):
        raise PermissionError(path)  # as for a user who may not enter its folder

    monkeypatch.setattr("pathlib.Path.is_file", is_file)
    assert jdk.inspect(tmp_path / "closed/bin/java") is None
