"""A row of a pipeline that hangs on a worker, in a stream with a listener that has a page."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from acker.spark import AckerListener, spout
from acker.ui import LivePage
from tests.ui.fakes import ask

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PATIENCE_SECS = 300


def test_the_page_names_the_row_that_hangs_and_nothing_is_left(spark, tmp_path) -> None:
    go = str(tmp_path / "go")

    def parse(row):
        while row.id == 7 and not Path(go).exists():
            time.sleep(0.01)
        return [row.id]

    listener = AckerListener(ui=LivePage(port=0, interval_secs=0.2))
    spark.streams.addListener(listener)
    query = None
    try:
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "rows.json").write_text("\n".join(json.dumps({"id": n}) for n in range(20)))
        rows = spark.readStream.schema("id long").json(str(tmp_path / "in"))
        pipeline = spout(rows, message_id="id", run_seed=1).bolt(parse, schema="id long", sink=True)
        query = pipeline.data().writeStream.format("noop").queryName("Orders")
        query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        until = time.monotonic() + PATIENCE_SECS
        text = ""
        while "parse hangs" not in text:
            assert time.monotonic() < until and query.exception() is None
            text = json.loads(ask(listener.page, "/api/view")[2])["headline"]["text"]
            time.sleep(0.05)
        assert text.startswith("parse hangs: it has been in one call with root id ")
        assert " at test_hung_rows.py:" in text
        Path(go).touch()
        query.awaitTermination()
    finally:
        Path(go).touch()
        if query is not None:
            query.stop()
        spark.streams.removeListener(listener)
        listener.close()
