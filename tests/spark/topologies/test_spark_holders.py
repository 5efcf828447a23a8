"""Where the live page finds the tuples of open trees while a micro-batch runs."""

import json
import queue
import threading
import time
from pathlib import Path

from acker.spark.topologies.batch_progress import BatchProgress
from acker.spark.topologies.run import run
from acker.topology import Bolt, ReliableSpout, Topology
from acker.ui import LivePage
from acker.ui.server import LiveServer
from tests.ui.fakes import ask

GO = "user.go"


class Two(ReliableSpout):
    """Emits a second tuple when the test says so."""

    outputs = ["n"]
    second = threading.Event()

    def initialize(self, conf, context):
        self.names = ["first", "second"]

    def next_tuple(self):
        if len(self.names) == 2 or (self.names and self.second.is_set()):
            self.emit([1], tup_id=self.names.pop(0))
        if not self.names:
            self.finish()


class Wait(Bolt):
    """Waits for a file, which a process of Spark can see."""

    def initialize(self, conf, context):
        self.go = Path(conf[GO])

    def process(self, tup):
        while not self.go.exists():
            time.sleep(0.01)


class Pair(Topology):
    two = Two.spec()
    wait = Wait.spec(inputs=[two])


def test_a_tree_is_in_a_micro_batch_or_waits_for_the_next_one(spark, tmp_path, monkeypatch) -> None:
    Two.second.clear()
    # After five seconds its worker would report the call, which is shown in the place of the micro-batch.
    monkeypatch.setattr(BatchProgress, "reports", lambda progress: [])
    go, pages, seen = tmp_path / "go", queue.SimpleQueue(), {}
    monkeypatch.setattr(LiveServer, "announce", lambda page: pages.put(page))  # noqa: PLW0108  put is no method

    def look():
        page = pages.get(timeout=120)

        def holders(name):
            found = json.loads(ask(page, f"/api/find?id={name}")[2])["found"]
            return found[0]["holders"] if found else []

        try:
            while not (first := holders("first")) or "tasks are done" not in first[0].get("text", ""):
                pass
            seen["first"] = first
            Two.second.set()
            while not (second := holders("second")):
                pass
            seen["second"] = second
        finally:
            go.touch()

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    report = run(Pair, {GO: str(go)}, spark=spark, ui=LivePage(port=0, interval_secs=0.1))
    looking.join()
    assert report.stats.totals.acked == 2
    (first,) = seen["first"]
    assert (first["component"], first["task"], first["how"]) == ("micro-batch 0", None, "process")
    assert first["text"].startswith("has run for ") and " tasks are done" in first["text"]
    (second,) = seen["second"]
    assert (second["component"], second["how"]) == ("wait", "queue")
    assert second["text"] == "waits for the next micro-batch"
