"""A row of a pipeline that hangs on a worker: the page names it, and without one the log, in streams and batch jobs."""

from __future__ import annotations

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from acker.spark import AckerListener, spout
from acker.spark.report_receiver import ReportReceiver
from acker.ui import LivePage
from tests.ui.fakes import ask

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PATIENCE_SECS = 300


@pytest.fixture
def shop(spark, tmp_path):
    """Rows of which the one with the id 7 hangs until `go` is there; started with a pipeline that parses them."""
    go = tmp_path / "go"
    path = str(go)

    def parse(row):
        while row.id == 7 and not Path(path).exists():
            time.sleep(0.01)
        return [row.id]

    def parsed(rows):
        return spout(rows, message_id="id", run_seed=1).bolt(parse, schema="id long", sink=True).data()

    parsed.go = go
    yield parsed
    go.touch()


@pytest.fixture
def start(spark, shop, tmp_path):
    """Start the stream."""
    queries = []

    def start():
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "rows.json").write_text("\n".join(json.dumps({"id": n}) for n in range(20)))
        rows = spark.readStream.schema("id long").json(str(tmp_path / "in"))
        query = shop(rows).writeStream.format("noop").queryName("Orders")
        query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        queries.append(query)
        return query

    yield start
    shop.go.touch()
    for query in queries:
        query.stop()


def wait_for(look):
    """Return what a function returns, once that is true."""
    until = time.monotonic() + PATIENCE_SECS
    while not (found := look()):
        assert time.monotonic() < until
        time.sleep(0.05)
    return found


def warnings_of(caplog):
    return [message for message in caplog.messages if " hangs on " in message]


def check_warning(text):
    where = r"stage \d+, partition 0: it has been in one call with row 8 of its task \(root id -?\d+\)"
    place = rf"{re.escape(__file__)}:\d+ in .*parse"
    secs = r"(\d{2,}\.\d s|\d+ min \d+ s)"  # on a busy machine it is noticed late
    assert re.match(rf"pipelines: parse hangs on \S+, {where} at {place} for {secs}\. ", text), text


def test_the_page_names_the_row_that_hangs_in_a_pipeline_that_is_older_than_the_listener(spark, start, shop) -> None:
    query = start()
    listener = AckerListener(ui=LivePage(port=0, interval_secs=0.2))
    spark.streams.addListener(listener)
    try:
        headline = wait_for(lambda: hung(listener.page))
        assert headline.startswith("parse hangs: it has been in one call with row 8 of its task (root id ")
        assert " at test_hung_rows.py:" in headline and query.exception() is None
        shop.go.touch()
        query.awaitTermination()
    finally:
        spark.streams.removeListener(listener)
        listener.close()


def hung(page):
    """Return the headline, if it tells of a call that hangs."""
    text = json.loads(ask(page, "/api/view")[2])["headline"]["text"]
    return text if " hangs: " in text else None


def test_without_a_page_the_log_names_the_row_once(spark, start, shop, caplog) -> None:
    query = start()
    wait_for(lambda: warnings_of(caplog))
    reports = ReportReceiver.of_pipelines(spark).reports
    (before,) = wait_for(reports)  # one that is older than five seconds does not count
    wait_for(lambda: [each for each in reports() if each.number > before.number + 2])
    shop.go.touch()
    query.awaitTermination()
    (told,) = warnings_of(caplog)
    check_warning(told)


@pytest.mark.soak
def test_the_log_names_the_row_of_a_batch_job(spark, shop, caplog) -> None:
    with ThreadPoolExecutor() as pool:
        ids = pool.submit(shop(spark.range(20, numPartitions=1)).collect)
        (told,) = wait_for(lambda: warnings_of(caplog))
        shop.go.touch()
        assert sorted(row.id for row in ids.result()) == list(range(20))
    check_warning(told)
