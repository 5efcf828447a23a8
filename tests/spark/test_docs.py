"""The examples of the pages on Spark run, one after the other, and print what stands below them."""

import contextlib
import io
import re
from pathlib import Path

import pytest

from acker.spark import guards
from acker.spark.listener import METRICS

PAGES = Path(__file__).parents[2] / "docs"
EXAMPLE = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n(?P<output>.*?)```)?", re.DOTALL)

pytestmark = [pytest.mark.spark, pytest.mark.repository]


METRIC = re.compile(r"\| `(acker\.[a-z_.]+)` \| (\w+) \| (\S+) \| (.*) \|")


@pytest.mark.parametrize(("name", "examples"), [("spark.md", 4), ("streaming.md", 6)])
def test_examples_run_and_print_what_the_page_says(spark, tmp_path, name, examples):
    names = {"spark": spark, "folder": str(tmp_path), "__name__": "docs"}
    ran = 0
    before = spark.conf.get(guards.PROVIDER_CONF)
    try:
        for match in EXAMPLE.finditer((PAGES / name).read_text(encoding="utf-8")):
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(match["code"], f"{name}-{ran}", "exec"), names)
            if match["output"] is not None:
                assert printed.getvalue() == match["output"]
            ran += 1
    finally:
        spark.conf.set(guards.PROVIDER_CONF, before)
    assert ran == examples


def test_the_table_of_metrics_is_the_one_of_the_module():
    found = METRIC.findall((PAGES / "streaming.md").read_text(encoding="utf-8"))
    assert found == [(metric.name, metric.kind, metric.unit, metric.text) for metric in METRICS]
