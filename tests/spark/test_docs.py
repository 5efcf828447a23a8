"""The pages on Spark: their examples run one after the other, and print what stands below them."""

import re

import pytest

from acker.observe.metric_names import METRICS as LOCAL_METRICS
from acker.spark import session_checks
from acker.spark.streams.listener import METRICS
from blocks import ON_SPARK, ROOT, blocks_of, mode_of, pages, spans_of
from running import is_example, is_name, run_blocks

PAGES = [page for page in pages() if mode_of(page) == ON_SPARK]

pytestmark = [pytest.mark.spark, pytest.mark.repository]


# Of acker.messages, those of streams and topologies.
SHARED = ("acked", "failed", "timed_out", "rejected", "late", "duplicates", "pending", "oldest_age")
METRIC = re.compile(r"\| `(acker\.[a-z_.]+)` \| (\w+) \| (\S+) \| (.*) \|")


def test_there_are_pages():
    assert {"spark.md", "streaming.md"} <= {page.name for page in PAGES}


# What these show, other tests of `make test` show too.
SLOW = ("cluster.md", "spark.md", "streaming.md", "tutorial.md")


def param_of(page):
    return pytest.param(page, marks=pytest.mark.slow if page.name in SLOW else (), id=page.name)


@pytest.mark.parametrize("page", [param_of(page) for page in PAGES])
def test_examples_run_and_print_what_the_page_says(spark, tmp_path, monkeypatch, page):
    examples = list(filter(is_example, blocks_of(page)))
    before = spark.conf.get(session_checks.PROVIDER_CONF)
    monkeypatch.chdir(tmp_path)
    try:
        ran = run_blocks(examples, {"spark": spark, "folder": str(tmp_path), "__name__": "docs"})
    finally:
        spark.conf.set(session_checks.PROVIDER_CONF, before)
    assert ran == len(examples) > 0


def test_the_first_page_tracks_rows_as_it_says(spark):
    blocks = [block for block in blocks_of(ROOT / "README.md") if block.note == "run by: tests/spark/test_docs.py"]
    assert run_blocks(blocks, {"spark": spark, "__name__": "docs"}) == 1


def test_the_table_of_metrics_is_the_one_of_the_module():
    found = METRIC.findall((ROOT / "docs/streaming-reference.md").read_text(encoding="utf-8"))
    local = {metric.name for metric in LOCAL_METRICS}
    assert found == [(each.name, each.kind, each.unit, each.text) for each in METRICS if each.name not in local]
    shared = {each.name for each in METRICS} & local
    assert {name.rpartition(".")[2] for name in shared if name.startswith("acker.messages.")} == set(SHARED)
    assert shared == {f"acker.messages.{name}" for name in SHARED} | {
        name for name in local if name.startswith("acker.trees.")
    }


def test_what_pages_call_by_a_dotted_name_is_there():
    """Metrics, and what can be imported: a page may not name what was renamed."""
    metrics = {metric.name for metric in (*METRICS, *LOCAL_METRICS)}
    today = [page for page in pages() if page != ROOT / "CHANGELOG.md"]  # which names what was
    spans = {span for page in today for span in spans_of(page) if not span.endswith(".py")}
    named = {span for span in spans if re.fullmatch(r"acker(?:\.\w+)+", span)}
    assert len(named & metrics) > 40
    assert len(named - metrics) > 20
    parts = {f"{metric}.{part}" for metric in metrics for part in ("count", "sum", "quantile")}  # of a histogram
    unknown = {name for name in named - metrics - parts if not is_name(name)}
    assert not unknown
