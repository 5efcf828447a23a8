"""The servers of the tests: each dies, hangs and comes back as it is told, with the data that it confirmed.

And what is said where there is none.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import confluent_kafka
import confluent_kafka.admin
import nats as nats_client
import pika
import psycopg
import pytest
import redis as redis_client

from tests.connectors.proxy import Proxy
from tests.servers import PATIENCE_SECS, NoServerError

pytestmark = pytest.mark.repository

ROOT = Path(__file__).resolve().parents[2]
LONG = 60.0
ENDS = pytest.mark.parametrize("end", [pytest.param("stop", marks=pytest.mark.slow), "kill"])


def end_and_start(server, end):
    getattr(server, end)()
    server.start()


@ENDS
def test_redis_keeps_what_it_confirmed(redis, end):
    with redis_client.Redis.from_url(redis.url, socket_timeout=PATIENCE_SECS) as client:
        entry = client.xadd(f"kept over {end}", {"value": "1"})
        end_and_start(redis, end)
        assert client.xrange(f"kept over {end}") == [(entry, {b"value": b"1"})]


def test_a_paused_server_hangs_until_it_is_resumed(redis):
    with (
        redis_client.Redis.from_url(redis.url, socket_timeout=PATIENCE_SECS) as patient,
        redis_client.Redis.from_url(redis.url, socket_timeout=0.2) as hasty,
    ):
        assert patient.ping()
        redis.pause()
        with pytest.raises(redis_client.TimeoutError):
            hasty.ping()
        redis.resume()
        assert patient.ping()


@pytest.mark.soak  # a broker that was killed is let in again after seconds
@ENDS
def test_kafka_keeps_what_it_confirmed(kafka, end):
    """Several partitions on one node, written in a transaction, read by a group that commits."""
    topic = f"kept-over-{end}"
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": kafka.url})
    admin.create_topics([confluent_kafka.admin.NewTopic(topic, 3, 1)])[topic].result(LONG)
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.url, "transactional.id": topic})
    producer.init_transactions(LONG)
    producer.begin_transaction()
    for partition in range(3):
        producer.produce(topic, str(partition), partition=partition)
    producer.commit_transaction(LONG)
    end_and_start(kafka, end)
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": kafka.url,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    found = [consumer.poll(LONG) for _ in range(3)]
    assert sorted((message.partition(), message.value()) for message in found) == [(0, b"0"), (1, b"1"), (2, b"2")]
    consumer.commit(asynchronous=False)
    consumer.close()


@pytest.mark.soak  # it starts for long, and tests/connectors/test_rabbitmq_promises.py kills it, too
@ENDS
def test_rabbitmq_keeps_what_it_confirmed(rabbitmq, end):
    queue = f"kept over {end}"
    with pika.BlockingConnection(pika.URLParameters(rabbitmq.url)) as connection, connection.channel() as channel:
        channel.confirm_delivery()
        channel.queue_declare(queue, durable=True)
        channel.basic_publish("", queue, "1", pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent))
    end_and_start(rabbitmq, end)
    with pika.BlockingConnection(pika.URLParameters(rabbitmq.url)) as connection, connection.channel() as channel:
        assert channel.basic_get(queue, auto_ack=True)[2] == b"1"
        channel.queue_delete(queue)


@ENDS
def test_jetstream_keeps_what_it_confirmed(nats, end):
    async def with_stream(act):
        async with await nats_client.connect(nats.url) as client:
            return await act(client.jetstream())

    async def publish(stream):
        await stream.add_stream(name=end, subjects=[f"kept.{end}"])
        await stream.publish(f"kept.{end}", b"1")

    async def read(stream):
        return (await stream.get_msg(end, 1)).data

    asyncio.run(with_stream(publish))
    end_and_start(nats, end)
    assert asyncio.run(with_stream(read)) == b"1"


@pytest.mark.parametrize(
    ("credentials", "answer"),
    [({}, "PONG"), ({"pass": "only-for-tests"}, "PONG"), ({"pass": "wrong"}, "-ERR 'Authorization Violation'")],
)
def test_nats_needs_no_credentials_but_refuses_wrong_ones(nats, credentials, answer):
    assert nats.facts == {"user": "acker", "password": "only-for-tests"}
    options = json.dumps({"verbose": False, **({"user": "acker"} if credentials else {}), **credentials})
    with socket.create_connection(("127.0.0.1", int(nats.url.rpartition(":")[2])), LONG) as client:
        client.sendall(f"CONNECT {options}\r\nPING\r\n".encode())
        lines = client.makefile("r")
        assert lines.readline().startswith("INFO ")
        assert lines.readline().strip() == answer


@ENDS
def test_postgresql_keeps_what_it_committed_whatever_sessions_there_are(postgresql, end):
    with contextlib.closing(psycopg.connect(postgresql.url)) as session:
        session.execute(f"CREATE TABLE kept_over_{end} AS SELECT 1 AS value")
        session.commit()
        session.execute("SELECT 1")  # the session stays open, in a transaction
        end_and_start(postgresql, end)
        with pytest.raises(psycopg.OperationalError):
            session.execute("SELECT 1")
    with psycopg.connect(postgresql.url) as session:
        assert session.execute(f"SELECT value FROM kept_over_{end}").fetchall() == [(1,)]


def test_a_pause_reaches_processes_that_left_the_group_of_their_parent(postgresql):
    """PostgreSQL makes a session of its own for each client."""
    with psycopg.connect(postgresql.url) as session:
        postgresql.pause()
        session.pgconn.send_query(b"SELECT 1")
        session.pgconn.flush()
        assert not readable(session.pgconn.socket, 0.2)
        postgresql.resume()
        assert readable(session.pgconn.socket, LONG)
        while session.pgconn.get_result():
            pass


def readable(socket, seconds):
    return bool(select.select([socket], [], [], seconds)[0])


@ENDS
def test_sqs_answers_again(sqs, end):
    end_and_start(sqs, end)
    with urllib.request.urlopen(f"{sqs.url}/moto-api/data.json", timeout=LONG) as answer:
        assert answer.status == 200


def test_clients_of_kafka_stay_with_a_proxy(kafka):
    """What the second listener tells them is the proxy's address, so that they do not go round it."""
    with Proxy(kafka.facts["proxied_port"], own_port=kafka.facts["proxy_port"]) as proxy:
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": f"127.0.0.1:{proxy.port}"})
        (broker,) = admin.list_topics(timeout=LONG).brokers.values()
        assert broker.port == proxy.port
        admin.create_topics([confluent_kafka.admin.NewTopic("through-a-proxy", 1, 1)])["through-a-proxy"].result(LONG)


def test_what_a_server_cannot_do_is_an_error(redis):
    for order, why in (("start", "it runs already"), ("dance", "unknown order 'dance'")):
        with pytest.raises(AssertionError, match=why):
            redis._order(order, "up")
    redis.stop()
    for order in (redis.kill, redis.stop, redis.pause, redis.resume):
        with pytest.raises(AssertionError, match="it does not run"):
            order()


def test_a_port_can_be_chosen_unless_it_is_in_use(redis):
    def run(port):
        command = [sys.executable, ROOT / "scripts/broker.py", "redis", "--port", port]
        return subprocess.run(command, capture_output=True, check=False, input="", text=True)

    taken = redis.url.rpartition(":")[2].partition("/")[0]
    done = run(taken)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"port {taken} is in use\n")
    for _ in range(5):  # another program may take the port before the server does
        with socket.create_server(("127.0.0.1", 0)) as listener:
            free = str(listener.getsockname()[1])
        done = run(free)
        if done.returncode == 0:
            break
    assert (done.returncode, json.loads(done.stdout)["url"]) == (0, f"redis://127.0.0.1:{free}/0"), done.stderr


def test_the_next_test_finds_a_server_that_runs(redis):
    """Although another one left it stopped."""
    assert redis.state == "up"
    with redis_client.Redis.from_url(redis.url, socket_timeout=PATIENCE_SECS) as client:
        assert client.ping()


def reached(condition):
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def accepts(url):
    host, port = url.rpartition("//")[2].partition("/")[0].split(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), LONG):
        return True
    return False


@pytest.mark.parametrize("state", [pytest.param("up", marks=pytest.mark.slow), "paused"])
def test_a_server_dies_with_the_program_that_started_it(tmp_path, state):
    """Even if that is killed, with its group, when it had paused the server."""
    code = f"""
import sys, time
from pathlib import Path
from tests.servers import Server
server = Server("sqs", Path({str(tmp_path / "told")!r}))
if {state!r} == "paused":
    server.pause()
print(server.url, server.folder, flush=True)
time.sleep({LONG})
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True, cwd=ROOT) as process:
        url, folder = process.stdout.readline().split()
        assert Path(folder).is_dir()
        os.killpg(process.pid, signal.SIGKILL)
    reached(lambda: not Path(folder).exists())
    assert not accepts(url)


@pytest.fixture
def stubborn(monkeypatch, tmp_path):
    """A server that ignores SIGTERM, with a child that does so too, in a session of its own."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    server = importlib.import_module("brokers.server")
    monkeypatch.setattr(server, "STOP_SECONDS", 0.2)

    class Stubborn(server.Server):
        url = ""

        def command(self):
            ignore = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
            child = "if not os.fork(): os.setsid(); open('child', 'w').write(str(os.getpid()))"
            return [sys.executable, "-c", f"{ignore}\n{child}\nwhile True: time.sleep(1)"]

        def child(self):
            path = self.folder / "child"
            return int(path.read_text() or 0) if path.exists() else 0

        def answers(self):
            return self.child() != 0

    return Stubborn(Path("/"), tmp_path)


def is_alive(pid):
    children = importlib.import_module("brokers.processes").children()
    return any(pid in pids for pids in children.values())


def test_a_server_that_does_not_stop_is_killed_in_the_end(stubborn):
    stubborn.start()
    child = stubborn.child()
    assert is_alive(child)
    with pytest.raises(importlib.import_module("brokers.errors").StartError, match="did not stop"):
        stubborn.stop()
    assert not is_alive(child)
    stubborn.close()


def test_an_interrupted_start_leaves_nothing(stubborn, monkeypatch):
    def interrupted():
        if stubborn.child():
            raise KeyboardInterrupt
        return False

    monkeypatch.setattr(stubborn, "answers", interrupted)
    with pytest.raises(KeyboardInterrupt):
        stubborn.start()
    assert not is_alive(stubborn.child())
    stubborn.close()


@pytest.mark.parametrize("times", [1, 3])
def test_a_server_whose_port_is_taken_before_it_listens_gets_another(stubborn, monkeypatch, capsys, times):
    broker = importlib.import_module("broker")
    others = []

    class Late(type(stubborn)):
        origin = SimpleNamespace(find_or_bring=lambda environ, root: Path("/"))

        def prepare(self):
            if len(others) < times:
                others.append(socket.create_server(("127.0.0.1", self.ports[0])))

        def command(self):
            listen = f"import socket, time; listener = socket.create_server(('127.0.0.1', {self.ports[0]}))"
            return [sys.executable, "-c", f"{listen}\nopen('child', 'w').write('1')\ntime.sleep(600)"]

    monkeypatch.setitem(broker.BY_NAME, "redis", Late)
    monkeypatch.setattr(sys, "argv", ["broker.py", "redis"])
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    code = broker.main()
    for other in others:
        other.close()
    told = capsys.readouterr()
    assert (code, told.out.count('"folder"')) == ((0, 1) if times < broker.STARTS_MAX else (1, 0)), told.err
    assert len(others) == times


# ---- where there is none --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "is_skipped", "is_skipped_by_ci"),
    [(3, True, True), (4, True, False), (1, False, False)],
    ids=["impossible here", "not downloaded", "does not start"],
)
def test_ci_does_without_a_server_only_where_the_machine_cannot_have_it(
    monkeypatch, code, is_skipped, is_skipped_by_ci
):
    monkeypatch.delenv("CI", raising=False)
    assert NoServerError("", code).is_skipped == is_skipped
    monkeypatch.setenv("CI", "true")
    assert NoServerError("", code).is_skipped == is_skipped_by_ci


@pytest.mark.slow
@pytest.mark.parametrize(("code", "processes"), [(3, 2), (1, 0)])
def test_the_last_lines_say_which_tests_had_no_server(tmp_path, code, processes):
    """A few tests of this file, where broker.py says that there is no server, or that it does not start."""
    script, plugin = tmp_path / "broker.py", tmp_path / "no_servers.py"
    words = "f'{sys.argv[1]} is not here, and there is no shop'"
    script.write_text(f"import sys; print({words}, file=sys.stderr); sys.exit({code})")
    plugin.write_text(f"import pathlib, tests.servers\ntests.servers.SCRIPT = pathlib.Path({str(script)!r})\n")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environ["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(ROOT)])
    options = f"-q -n {processes} --dist loadgroup -p no_servers -p no:cacheprovider".split()
    command = [sys.executable, "-m", "pytest", *options, "-k", "redis_keeps or jetstream_keeps", __file__]
    done = subprocess.run(command, capture_output=True, check=False, cwd=ROOT, env=environ, text=True)
    *_, told, counts = done.stdout.splitlines()
    if code == 3:
        assert (done.returncode, counts.partition(" in ")[0]) == (0, "4 skipped")
        assert told == (
            "2 tests skipped without nats: nats is not here, and there is no shop; "
            "2 tests skipped without redis: redis is not here, and there is no shop"
        )
    else:
        assert (done.returncode, counts.partition(" in ")[0].rpartition(", ")[2]) == (1, "4 errors")
        assert "no server redis: redis is not here" in done.stdout


@pytest.fixture
def jars(monkeypatch, tmp_path):
    """Two jars in a Maven Central of our own."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    kafka = importlib.import_module("brokers.kafka")
    monkeypatch.setattr(kafka, "CENTRAL", (tmp_path / "central").as_uri())
    checksums = {}
    for name in ("one", "two"):
        jar = tmp_path / f"central/org/{name}.jar"
        jar.parent.mkdir(parents=True, exist_ok=True)
        jar.write_text(name)
        checksums[f"org/{name}.jar"] = hashlib.sha256(name.encode()).hexdigest()
    listed = tmp_path / "jars.json"
    listed.write_text(json.dumps(checksums))
    return kafka.Jars("kafka", listed)


def test_jars_are_downloaded_once(jars, tmp_path):
    root = jars.find_or_bring(os.environ, tmp_path / "brokers/kafka")
    assert {path.name: path.read_text() for path in root.iterdir()} == {"one.jar": "one", "two.jar": "two"}
    (tmp_path / "central/org/one.jar").unlink()
    assert jars.find_or_bring({**os.environ, "ACKER_INSTALL_BROKERS": "0"}, root) == root
    assert [path.name for path in root.parent.iterdir()] == ["kafka"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda jar: jar.write_text("three"), "it has another checksum than it had"),
        (lambda jar: jar.unlink(), "No such file"),
    ],
)
def test_a_jar_that_is_not_what_it_was_is_refused_and_nothing_is_left(jars, tmp_path, change, why):
    change(tmp_path / "central/org/two.jar")
    errors = importlib.import_module("brokers.errors")
    with pytest.raises(errors.NotBroughtError, match=f"two.jar was not downloaded: .*{why}"):
        jars.find_or_bring(os.environ, tmp_path / "brokers/kafka")
    assert not list((tmp_path / "brokers").iterdir())


def test_without_java_there_is_no_kafka(jars, monkeypatch, tmp_path):
    monkeypatch.setattr("find_jdk.finder.find", lambda environ: (None, []))
    errors = importlib.import_module("brokers.errors")
    with pytest.raises(errors.UnavailableError, match="kafka needs Java 17 or newer") as raised:
        jars.find_or_bring(os.environ, tmp_path / "kafka")
    assert raised.type is errors.UnavailableError


def test_the_set_up_says_which_servers_there_are_not_and_goes_on(monkeypatch, capsys):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    environment = importlib.import_module("environment")

    def find_or_bring(self, environ, root=None):
        raise environment.UnavailableError(f"{self.name} is not here")

    monkeypatch.setattr("brokers.packages.Packages.find_or_bring", find_or_bring)
    environment.ensure_brokers(("nats", "redis"))
    assert sorted(capsys.readouterr().err.splitlines()) == [
        f"==> What needs it will be skipped: {name} is not here" for name in ("nats", "redis")
    ]


def test_programs_find_the_libraries_that_were_unpacked_with_them(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    packages = importlib.import_module("brokers.packages")
    assert packages.library_path(Path("/")) == packages.library_path(tmp_path) == {}
    places = ("usr/lib/x86_64-linux-gnu/libone.so.1", "usr/lib/x86_64-linux-gnu/a/libtwo.so", "usr/lib/libthree.so")
    for place in places:
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).touch()
    folder = tmp_path / "usr/lib/x86_64-linux-gnu"
    assert packages.library_path(tmp_path) == {"LD_LIBRARY_PATH": f"{folder}{os.pathsep}{folder / 'a'}"}
