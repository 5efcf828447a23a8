"""Fixtures of the tests of the command line."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from acker.cli import jdk
from acker.cli.commands import cli
from acker.observe.stats import RuntimeStats
from tests.figures import Runtime


@pytest.fixture
def runtime() -> Runtime:
    return Runtime()


@pytest.fixture
def stats(runtime) -> RuntimeStats:
    return runtime.value


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        return CliRunner().invoke(cli, [str(argument) for argument in arguments])

    return run


def java(folder: Path, version: str | None) -> Path:
    """Make something that answers like a Java of a version; None: one that does not run."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    release = re.match(r"(?:1\.)?\d+", version or "0")
    properties = {"home": folder, "version": version, "specification.version": release and release[0]}
    lines = [f"echo '    java.{name} = {value}' >&2" for name, value in properties.items()]
    program.write_text("\n".join(["#!/bin/sh", *(["exit 1"] if version is None else lines), ""]))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return folder


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine that has these Javas and no other."""

    def have(**versions: str | None) -> dict[str, Path]:
        homes = {name: java(tmp_path / name, version) for name, version in versions.items()}
        programs = [home / "bin" / "java" for home in (tmp_path / "nothing", *homes.values())]
        monkeypatch.setattr(jdk, "_programs", lambda _path, _folders: iter(programs))
        monkeypatch.delenv("JAVA_HOME", raising=False)
        return homes

    return have
