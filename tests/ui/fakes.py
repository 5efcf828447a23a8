"""A source for a live page, whose figures a test sets, and requests to the page."""

from __future__ import annotations

import http.client
import json
import threading
import time
from typing import Any

from acker.ui.source import ActionError


def fake_view(**changes: Any) -> dict[str, Any]:
    """Return what a page is given of a topology of two components where nothing happens."""
    totals = dict.fromkeys(
        ("acked", "failed", "timed_out", "rejected", "restarted", "shut_down", "ack_errors", "late"), 0
    )
    totals |= {"dead_letters": 0, "pending": 0, "oldest_age_ms": None, "executed": 0, "transferred": 0, "duplicates": 0}
    series = [{"key": "acked", "label": "acked", "value": 1.5}]
    view = {
        "kind": "topology",
        "name": "Fake",
        "state": "running",
        "paused": False,
        "uptime_secs": 1.0,
        "restarts": 0,
        "timeout_ms": 60_000,
        "headline": {"tone": "good", "text": "All is well."},
        "totals": totals,
        "rates": {"acked": 1.5, "not acked": 0.0, "executed": 1.5},
        "complete_latency": {"p50_ms": 1.0, "p99_ms": 2.0},
        "graph": {"nodes": [fake_node("a", "spout"), fake_node("b")], "edges": [fake_edge("a", "b")]},
        "charts": [{"key": "throughput", "title": "Throughput", "unit": "trees/s", "series": series}],
        "open_trees": {"total": 0, "stuck": 0, "rows": []},
        "failures": {"rows": []},
        "dead_letters": {"total": 0, "held": 0, "can_replay": True, "values": False, "rows": []},
        "events": [],
        "tables": [],
        "actions": ["pause", "log-level", "fail", "replay"],
        "log_level": "WARNING",
    }
    return {**view, **changes}


def fake_node(name: str, kind: str = "bolt", **changes: Any) -> dict[str, Any]:
    counts = dict.fromkeys(("executed", "emitted", "acked", "failed", "timed_out", "pending", "queue"), 0)
    node = {"name": name, "kind": kind, "tasks": 1, "executors": 1, "rate": 1.0, "emitted_rate": 1.0, **counts}
    node |= {"queue_capacity": 100, "busy": 0.1, "bottleneck": False, "latency": {"p50_ms": 0.1, "p99_ms": 0.2}}
    return {**node, **changes}


def fake_edge(source: str, target: str) -> dict[str, Any]:
    return {"from": source, "to": target, "streams": ["default: shuffle"], "rate": 1.0}


def fake_tree(name: str, **changes: Any) -> dict[str, Any]:
    tree = {"id": name, "root_id": name, "spout": "a", "task": 1, "attempt": 1, "age_ms": 5, "waits": False}
    return {**tree, "holders": [], "edges": [], **changes}


class Figures:
    def to_json(self) -> dict[str, Any]:
        return {"topology": "Fake"}


class FakeSource:
    """Shows `now`, and remembers which actions were called. `fault` is raised instead of a reading."""

    name = "Fake"

    def __init__(self) -> None:
        self.now = fake_view()
        self.fault: Exception | None = None
        self.did: list[tuple[str, Any]] = []
        self.acted = threading.Event()
        self.actions = {name: self._action(name) for name in ("pause", "log-level", "fail", "replay", "refuse")}

    def _action(self, name):
        def act(arguments):
            if name == "refuse":
                raise ActionError("it cannot")
            self.did.append((name, arguments))
            self.acted.set()
            return f"did {name}"

        return act

    def view(self) -> dict[str, Any]:
        if self.fault is not None:
            raise self.fault
        return dict(self.now)

    def find(self, text: str) -> list[dict[str, Any]]:
        return [{"what": "open", **fake_tree(text)}] if text == "known" else []

    def stats(self) -> Figures:
        return Figures()

    def metrics(self) -> bytes:
        return b"acker_topology_uptime_seconds 1.0\n"


def ask(server, path: str, method: str = "GET", body: Any = None, host: str | None = None, **headers: str):
    """Send one request; return the status, the headers and the body. Underscores in names stand for dashes."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    sent["Host"] = f"127.0.0.1:{server.port}" if host is None else host
    try:
        connection.request(method, path, body=body if body is None else json.dumps(body), headers=sent)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def view_of(page):
    """Return what a live page shows."""
    return json.loads(ask(page, "/api/view")[2])


def fresh(page, condition):
    """Return the first view of a live page for which a condition holds."""
    end = time.monotonic() + 60
    while not condition(view := view_of(page)):
        assert time.monotonic() < end, f"the page shows: {view['headline']['text']}"
        time.sleep(0.01)  # or it would take the interpreter from what it looks at
    return view
