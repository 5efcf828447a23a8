"""The examples of docs/spark.md run, one after the other, and print what stands below them."""

import contextlib
import io
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
EXAMPLE = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n(?P<output>.*?)```)?", re.DOTALL)

pytestmark = [pytest.mark.spark, pytest.mark.repository]


def test_examples_run_and_print_what_the_page_says(spark, tmp_path):
    names = {"spark": spark, "folder": str(tmp_path), "__name__": "docs"}
    ran = 0
    for match in EXAMPLE.finditer(PAGE.read_text(encoding="utf-8")):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(match["code"], f"{PAGE.name}-{ran}", "exec"), names)
        if match["output"] is not None:
            assert printed.getvalue() == match["output"]
        ran += 1
    assert ran == 3
