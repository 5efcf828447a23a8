"""Dead letters in a file, and the thread that writes them."""

import json
import resource
import signal
import subprocess
import sys
import threading

import pytest

from acker import PublishError, SourceError
from acker.connectors import DeadLetterFile, Delivery, Outgoing
from acker.connectors.attempts import Attempt
from acker.connectors.dead_letters import DeadLetterWriter, dead_letter_of
from acker.topology.reasons import Reason, ReasonKind


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_file_holds_bodies_keys_and_headers(tmp_path):
    path = tmp_path / "letters"
    with DeadLetterFile(path) as letters:
        messages = [
            Outgoing(b"lamp", headers={"n": 1}),
            Outgoing(b"\xff\n", key=b"k\xff"),
            Outgoing(b"", headers={"odd": {1, 2}}),
        ]
        assert letters.publish(messages) == [None] * 3
        assert lines(path) == [
            {"value": "lamp", "headers": {"n": 1}},
            {"value_base64": "/wo=", "key": "k\\xff", "headers": {}},
            {"value": "", "headers": {"odd": "{1, 2}"}},
        ]
    assert path.stat().st_mode & 0o777 == 0o600
    with DeadLetterFile(path) as letters:
        letters.publish([Outgoing(b"desk")])
    assert len(lines(path)) == 4


def test_a_file_opens_with_its_first_message_too(tmp_path):
    letters = DeadLetterFile(tmp_path / "letters")
    letters.close()
    assert letters.publish([Outgoing(b"lamp")]) == [None]
    letters.close()


def test_a_file_that_cannot_be_written_is_a_mistake(tmp_path):
    with pytest.raises(SourceError, match="Is a directory"):
        DeadLetterFile(tmp_path).open()
    assert repr(DeadLetterFile("a.jsonl")) == "<file a.jsonl>"


FULL = """
import resource, signal, sys
from acker.connectors import DeadLetterFile, Outgoing
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
letters = DeadLetterFile(sys.argv[1])
assert letters.publish([Outgoing(b"small")]) == [None]
faults = letters.publish([Outgoing(b"x" * 300), Outgoing(b"y" * 3000)])
print([str(fault) for fault in faults])
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert letters.publish([Outgoing(b"x" * 300)]) == [None]
"""


def test_a_full_disk_leaves_no_half_lines(tmp_path):
    """A limit on the size of files stands for a full disk: the system writes a part, and then refuses."""
    path = tmp_path / "letters"
    done = subprocess.run([sys.executable, "-c", FULL, path], capture_output=True, check=True, text=True)
    assert done.stdout.count("File too large; make room, or give another path") == 2
    assert [row["value"] for row in lines(path)] == ["small", "x" * 300]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 1000 and signal.SIGXFSZ


def attempt_of(number, state="dead"):
    delivery = Delivery(f"jobs#{number}", b"%d" % number, {"a": 1}, 1, None, None)
    return Attempt(number, delivery, 3, 0, state=state, reason=Reason(ReasonKind.TIMED_OUT, attempt=3))


def test_a_dead_letter_says_what_happened():
    assert dead_letter_of(attempt_of(7), "RabbitMQ queue 'jobs'") == Outgoing(
        b"7",
        headers={
            "a": 1,
            "acker-reason": "timed out (attempt 3)",
            "acker-attempts": 3,
            "acker-key": "jobs#7",
            "acker-source": "RabbitMQ queue 'jobs'",
        },
    )


class Flaky(DeadLetterFile):
    """Refuses every other message, and raises at the first call."""

    calls = 0

    def publish(self, messages):
        self.calls += 1
        if self.calls == 1:
            raise ZeroDivisionError("a bug")
        kept = messages[::2]
        faults = super().publish(kept)
        return [faults[0] if place % 2 == 0 else PublishError("no room") for place in range(len(messages))]


def test_the_writer_confirms_each_attempt_once_and_goes_on_after_errors(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("acker.connectors.dead_letters._BACKOFF_SECS", 0.001)
    path = tmp_path / "letters"
    confirmed, all_done = [], threading.Event()

    def confirm(attempt):
        confirmed.append(attempt.message_id)
        if len(confirmed) == 20:
            all_done.set()

    import logging

    writer = DeadLetterWriter(Flaky(path), "jobs", confirm, logging.getLogger("acker.connectors"))
    for number in range(20):
        writer.write(attempt_of(number))
    assert all_done.wait(60)
    writer.stop()
    assert sorted(confirmed) == list(range(20)) and len(lines(path)) == 20
    assert "division" in caplog.text or "a bug" in caplog.text
    assert "no room" in caplog.text


def test_the_writer_skips_what_has_gone_to_another_consumer(tmp_path):
    confirmed, done = [], threading.Event()

    def confirm(attempt):
        confirmed.append(attempt.message_id)
        done.set()

    import logging

    writer = DeadLetterWriter(DeadLetterFile(tmp_path / "letters"), "jobs", confirm, logging.getLogger("acker"))
    writer.write(attempt_of(1, state="ended"))
    writer.write(attempt_of(2))
    assert done.wait(60)
    writer.stop()
    assert confirmed == [2] and len(lines(tmp_path / "letters")) == 1


def test_a_writer_without_dead_letters_has_no_thread(tmp_path):
    writer = DeadLetterWriter(DeadLetterFile(tmp_path / "letters"), "jobs", print, None)
    writer.stop()
    assert not (tmp_path / "letters").exists()
