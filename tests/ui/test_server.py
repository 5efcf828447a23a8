"""The server of the live page: what it answers, what it refuses, and its start and end. No browser."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import subprocess
import sys
import threading

import pytest

from acker.errors import PageError
from acker.local import LocalRuntime
from acker.topology import Bolt, Spout, Topology
from acker.ui import LivePage
from acker.ui.app import STATIC, STREAMS_MAX
from acker.ui.feed import Feed
from acker.ui.server import LiveServer
from tests.ui.fakes import FakeSource, ask, fake_view, fresh

SOON = 0.01  # seconds between two readings


@pytest.fixture
def source() -> FakeSource:
    return FakeSource()


@pytest.fixture
def server(source):
    server = LiveServer(source, LivePage(port=0, interval_secs=SOON))
    yield server
    server.close()


def events(server, path="/api/events"):
    """Yield the events of a stream, as (name, value)."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.headers["content-type"].startswith("text/event-stream")
        name = ""
        for line in answer:
            field, _, value = line.decode().rstrip("\n").partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                yield name, json.loads(value)
    finally:
        connection.close()


# ---- readings ----


def test_a_reading_costs_what_its_threads_work(monkeypatch, source) -> None:
    """And not the time that they wait for a busy machine: 0.5 s for the view, and 0.25 s to make its event."""
    seconds = iter([1.0, 1.5, 2.0, 2.25])
    monkeypatch.setattr("acker.ui.feed.time.thread_time", lambda: next(seconds))
    assert asyncio.run(Feed(source, 1.0).read()) == 0.75


# ---- answers ----


def test_the_page_and_its_parts_come_from_here_alone(server) -> None:
    status, headers, body = ask(server, "/")
    assert status == 200 and headers["content-type"].startswith("text/html")
    assert b"http://" not in body and b"https://" not in body and b"<style" not in body and b"style=" not in body
    for path in STATIC.rglob("*"):
        if path.is_file():
            status, _, body = ask(server, f"/static/{path.relative_to(STATIC).as_posix()}")
            assert status == 200 and body == path.read_bytes()


def test_the_page_weighs_little() -> None:
    files = [path for path in STATIC.rglob("*") if path.is_file()]
    assert len(files) > 8
    assert sum(path.stat().st_size for path in files) <= 400_000


def test_figures_as_json(server, source) -> None:
    status, headers, body = ask(server, "/api/view")
    view = json.loads(body)
    assert status == 200 and headers["content-type"] == "application/json"
    assert {name: view[name] for name in source.now} == source.now
    assert view["at_ms"] > 0 and view["is_last"] is False and view["sequence"] >= 1
    assert json.loads(ask(server, "/api/stats")[2]) == {"topology": "Fake"}
    found = json.loads(ask(server, "/api/find?id=known")[2])
    assert found["id"] == "known" and found["found"][0]["id"] == "known"
    assert json.loads(ask(server, "/api/find?id=other")[2])["found"] == []
    assert ask(server, "/api/find")[0] == 400
    history = json.loads(ask(server, "/api/history")[2])
    assert len(history["times_ms"]) == len(history["series"]["throughput.acked"]) >= 1


def test_metrics_and_health(server, source) -> None:
    status, headers, body = ask(server, "/metrics")
    assert status == 200 and headers["content-type"].startswith("text/plain") and b"uptime" in body
    assert ask(server, "/healthz")[0] == 200
    assert json.loads(ask(server, "/healthz")[2]) == {"state": "running", "headline": "All is well."}
    source.now = fake_view(state="stopped")
    stream = events(server)
    assert any(value["state"] == "stopped" for name, value in stream if name == "view")
    assert ask(server, "/healthz")[0] == 503


def test_events_begin_with_the_history_and_go_on(server, source) -> None:
    stream = events(server)
    name, history = next(stream)
    assert name == "history" and set(history) == {"times_ms", "series"}
    sequences = [next(stream)[1]["sequence"] for _ in range(3)]
    assert sequences == sorted(set(sequences))
    source.now = fake_view(name="Changed")
    assert any(value["name"] == "Changed" for _, value in stream)


def test_a_series_that_comes_later_has_no_values_before(server, source) -> None:
    stream = events(server)
    next(stream), next(stream)
    line = {"key": "new", "label": "new", "value": 7}
    source.now = fake_view(charts=[{"key": "late", "title": "Late", "unit": "trees", "series": [line]}])
    assert any(value["charts"][0]["key"] == "late" for name, value in stream if name == "view")
    series = json.loads(ask(server, "/api/history")[2])["series"]["late.new"]
    assert series[0] is None and series[-1] == 7


def test_trouble_with_reading_is_told_and_logged_once(server, source, caplog) -> None:
    stream = events(server)
    next(stream)
    source.fault = RuntimeError("no figures")
    assert any(value == {"text": "RuntimeError: no figures"} for name, value in stream if name == "trouble")
    assert next(stream)[0] == "trouble"
    source.fault = None
    assert any(name == "view" for name, _ in stream)
    assert caplog.text.count("the live page cannot read its figures") == 1


def test_only_so_many_streams(server) -> None:
    streams = [events(server) for _ in range(STREAMS_MAX)]
    for stream in streams:
        next(stream)
    status, _, body = ask(server, "/api/events")
    assert status == 503 and b"open already" in body
    for stream in streams:
        stream.close()


@pytest.mark.parametrize("path", ["/nothing", "/static/nothing.js", "/static/../server.py", "/static/%2e%2e/server.py"])
def test_other_paths_lead_nowhere(server, path) -> None:
    status, _, body = ask(server, path)
    assert status == 404 and "error" in json.loads(body)


# ---- refusals ----


def test_each_answer_has_the_headers_that_protect_it(server) -> None:
    for path in ("/", "/static/page.js", "/api/view", "/nothing"):
        headers = ask(server, path)[1]
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
        assert "set-cookie" not in headers and "access-control-allow-origin" not in headers
    assert ask(server, "/api/view")[1]["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("localhost:8790", 200),
        ("LOCALHOST", 200),
        ("[::1]:8790", 200),
        ("[::1]", 200),
        ("192.0.2.7:80", 200),  # a name cannot be rebound to what is no name
        ("evil.example", 421),
        ("evil.example:8790", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.evil.example", 421),
        ("", 421),
    ],
)
def test_names_of_others_are_refused(server, host, status) -> None:
    assert ask(server, "/api/view", host=host)[0] == status


def test_the_name_that_it_listens_on_is_known(source) -> None:
    with_name = LiveServer(source, LivePage(host="localhost", port=0))
    try:
        assert with_name.url.startswith("http://localhost:")
        assert ask(with_name, "/api/view", host=f"localhost:{with_name.port}")[0] == 200
    finally:
        with_name.close()


def test_an_action_needs_the_token(server, source) -> None:
    status, _, body = ask(server, "/api/actions/pause", "POST")
    assert status == 403 and b"token" in body
    assert ask(server, "/api/actions/pause", "POST", x_acker_token="wrong")[0] == 403
    assert ask(server, f"/api/actions/pause?token={server.token}", "POST")[0] == 403, "in the header alone"
    assert ask(server, "/api/actions/pause", "POST", cookie=f"token={server.token}")[0] == 403
    assert ask(server, "/api/actions/pause", x_acker_token=server.token)[0] == 405, "by POST alone"
    assert source.did == []
    status, _, body = ask(server, "/api/actions/pause", "POST", {"a": 1}, x_acker_token=server.token)
    assert (status, json.loads(body)) == (200, {"did": "did pause"})
    assert source.did == [("pause", {"a": 1})]


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "https://127.0.0.1"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ],
    ids=lambda headers: " ".join(headers.values()),
)
def test_an_action_of_another_origin_is_refused_with_the_token(server, source, headers) -> None:
    status, _, body = ask(server, "/api/actions/pause", "POST", x_acker_token=server.token, **headers)
    assert status == 403 and b"origin" in body and source.did == []


def test_an_action_of_this_origin_is_not(server, source) -> None:
    origin = f"http://127.0.0.1:{server.port}"
    headers = {"x_acker_token": server.token, "origin": origin, "sec_fetch_site": "same-origin"}
    assert ask(server, "/api/actions/pause", "POST", **headers)[0] == 200


@pytest.mark.parametrize(
    ("name", "body", "status", "text"),
    [
        ("unknown", {}, 404, "there is no action 'unknown'; there are: pause"),
        ("refuse", {}, 409, "it cannot"),
        ("pause", [1], 409, "expected a JSON object, got list"),
        ("pause", "x" * 70_000, 409, "longer than"),
    ],
    ids=["unknown", "refuse", "list", "long"],
)
def test_wrong_actions_say_why(server, name, body, status, text) -> None:
    told, _, answer = ask(server, f"/api/actions/{name}", "POST", body, x_acker_token=server.token)
    assert told == status and text in json.loads(answer)["error"]


def test_tokens_differ(server, source) -> None:
    other = LiveServer(source, LivePage(port=0))
    try:
        assert len(server.token) >= 20 and server.token != other.token
        assert server.url_with_token == f"{server.url}#token={server.token}"
    finally:
        other.close()


# ---- start and end ----


def test_a_port_that_is_taken_is_a_clear_error(source) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PageError, match=rf"ui: 127\.0\.0\.1:{port}: .* take another port, or 0"):
            LiveServer(source, LivePage(port=port))
    with pytest.raises(PageError, match=r"ui: nowhere\.invalid"):
        LiveServer(source, LivePage(host="nowhere.invalid", port=0))


def test_streams_end_with_the_last_reading(source) -> None:
    server = LiveServer(source, LivePage(port=0, interval_secs=SOON))
    stream = events(server)
    next(stream)
    source.now = fake_view(state="stopped")
    server.close()
    last = list(stream)[-1][1]
    assert last["is_last"] and last["state"] == "stopped"
    with pytest.raises(ConnectionRefusedError):
        ask(server, "/")
    server.close()


class Numbers(Spout):
    outputs = ["n"]
    left = 5

    def next_tuple(self):
        if self.left:
            self.left -= 1
            self.emit([self.left], tup_id=self.left)


class Sink(Bolt):
    def process(self, tup):
        pass


class Small(Topology):
    numbers = Numbers.spec()
    sink = Sink.spec(inputs=[numbers])


def test_it_starts_and_stops_with_its_runtime(capsys) -> None:
    with LocalRuntime(Small, ui=LivePage(port=0, interval_secs=SOON)) as runtime:
        page = runtime.page
        assert capsys.readouterr().err == f"live page of Small: {page.url_with_token}\n"
        runtime.run_until(5)
        # A reading is no single moment: it may have begun before the last tree was done.
        view = fresh(page, lambda view: (view["totals"]["acked"], view["totals"]["pending"]) == (5, 0))
        assert view["state"] == "running"
        assert ask(page, "/api/actions/pause", "POST", x_acker_token=page.token)[0] == 200
        assert json.loads(ask(page, "/api/view")[2])["paused"]
        assert {thread.name for thread in threading.enumerate()} >= {"Small.ui"}
        stream = events(page)
        next(stream)
    assert list(stream)[-1][1]["state"] == "stopped"
    assert "Small.ui" not in {thread.name for thread in threading.enumerate()}


def test_a_runtime_whose_port_is_taken_does_not_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        runtime = LocalRuntime(Small, ui=taken.getsockname()[1])
        with pytest.raises(PageError, match="take another port"):
            runtime.start()
    assert runtime.state == "new"


RUN = """
import sys
from acker.local import run
from acker.topology import Bolt, Spout, Topology
class Numbers(Spout):
    outputs = ["n"]
    def next_tuple(self):
        self.emit([1], tup_id=1)
        self.finish()
class Sink(Bolt):
    def process(self, tup): pass
class Small(Topology):
    numbers = Numbers.spec()
    sink = Sink.spec(inputs=[numbers])
run(Small, until="drained"{ui})
names = {{"starlette", "uvicorn", "anyio", "acker.ui.server", "acker.ui.app", "acker.local.page.live_view"}}
print(*sorted(names & set(sys.modules)))
"""


@pytest.mark.parametrize(("ui", "loaded"), [("", 0), (", ui=0", 6)], ids=["without", "with"])
def test_without_the_option_nothing_of_it_is_imported(ui, loaded) -> None:
    command = [sys.executable, "-c", RUN.format(ui=ui)]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    assert len(done.stdout.split()) == loaded
    assert ("live page of Small: http://127.0.0.1:" in done.stderr) == bool(ui)
