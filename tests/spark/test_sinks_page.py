"""The recipes for Delta and Iceberg of docs/spark-sinks.md: that they can be compiled, and where they run."""

import re

from blocks import ROOT
from tests.connectors.running_page import programs_of


def test_the_other_recipes_run_on_the_release_that_their_jars_are_for():
    """They are not run here: `make spark-versions` has a Spark of that release."""
    blocks = programs_of("spark-sinks.md", "tests/spark/table_sinks.py")
    text = "\n".join(block.body for block in blocks)
    compile(text, "spark-sinks.md", "exec")
    assert set(re.findall(r"_(\d+\.\d+)_2\.13:", text)) == {"4.1"}
    program = (ROOT / "scripts/spark_versions.py").read_text(encoding="utf-8")
    assert '"4.1": ("table_sinks.py",)' in program
