"""Readings that are kept for a frozen page, without a server."""

from __future__ import annotations

import logging
import threading

import pytest

from acker.errors import ArgumentValueError
from acker.ui import LivePage
from acker.ui.opening import open_page
from acker.ui.recorder import Recorder
from tests.ui.fakes import FakeSource, fake_view


class CountedSource(FakeSource):
    """Tells when it has been read so often."""

    def __init__(self, wanted: int) -> None:
        super().__init__()
        self.read = 0
        self.wanted = wanted
        self.enough = threading.Event()

    def view(self):
        self.read += 1
        if self.read >= self.wanted:
            self.enough.set()
        return super().view()


def test_the_last_reading_is_taken_at_the_end() -> None:
    source = CountedSource(3)
    recorder = Recorder(source, 0.05)  # a history holds 600 readings, also if this thread stands still
    assert source.enough.wait(60)
    source.now = fake_view(state="stopped")
    recorder.close()
    recorder.close()
    assert recorder.latest["state"] == "stopped"
    history = recorder.history()
    assert history is not None and len(history["times_ms"]) == source.read
    assert history["series"] == {"throughput.acked": [1.5] * source.read}


def test_two_readings_are_no_line() -> None:
    source = CountedSource(1)
    recorder = Recorder(source, 3_600)
    assert source.enough.wait(60)
    recorder.close()
    assert source.read == 2 and recorder.latest and recorder.history() is None


def test_trouble_with_reading_is_logged_once(caplog) -> None:
    source = CountedSource(3)
    source.fault = ValueError("no figures")
    with caplog.at_level(logging.ERROR, "acker.ui"):
        recorder = Recorder(source, 0.01)
        assert source.enough.wait(60)
        recorder.close()
    assert [record.getMessage() for record in caplog.records] == [
        "Fake: the report cannot read figures for its charts; it tries again"
    ]
    assert recorder.latest == {} and recorder.history() is None


def test_a_page_that_nobody_serves_is_for_topologies_alone() -> None:
    with pytest.raises(ArgumentValueError, match="only topologies write reports"):
        open_page(FakeSource(), LivePage(serve=False))
