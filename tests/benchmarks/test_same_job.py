"""The same job in five libraries: the page tells its lines of code, and each program does it."""

import importlib
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMES = ["acker", "faststream", "dramatiq", "celery", "taskiq"]


@pytest.fixture
def same_job(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks/rivals")
    return importlib.import_module("same_job.__main__")


@pytest.mark.repository
def test_the_page_tells_the_lines_of_code_of_each_program(same_job):
    assert list(same_job.JOBS) == NAMES
    counts = [str(same_job.lines_of_code(same_job.HERE / f"{name}_job.py")) for name in NAMES]
    assert f"| lines for the same job | {' | '.join(counts)} |" in (ROOT / "docs/comparison.md").read_text()


@pytest.mark.soak
@pytest.mark.parametrize(
    "name", [name for name in NAMES if find_spec(name) and (name != "taskiq" or find_spec("taskiq_aio_pika"))]
)
def test_each_program_does_the_job(same_job, rabbitmq, name):
    """Needs half a minute for the back-off. Without the group `rivals`, only acker's runs."""
    try:
        same_job.run(name, rabbitmq.url)
    finally:
        same_job.reset(rabbitmq.url)  # others declare these queues with other options
