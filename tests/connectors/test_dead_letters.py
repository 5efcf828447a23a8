"""Dead letters in a file, and the thread that writes them."""

import json
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from datetime import datetime, timedelta, timezone

import pytest

from acker import PublishError, SourceError
from acker.connectors import DeadLetterFile, Delivery, Outgoing
from acker.connectors.attempts import Attempt
from acker.connectors.dead_letters import DeadLetterWriter, dead_letter_of, key_of_text, key_text
from acker.connectors.source import Origin
from acker.observe.reasons import Reason, ReasonKind
from acker.testing.connectors import MemoryPublisher


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


@pytest.mark.parametrize("act", ["moves", "removes", "replaces"])
def test_a_file_that_somebody_moves_or_removes_is_made_anew(tmp_path, act, caplog):
    caplog.set_level("INFO")
    path, elsewhere = tmp_path / "letters", tmp_path / "letters.1"
    with DeadLetterFile(path) as letters:
        letters.publish([Outgoing(b"lamp")])
        if act == "removes":
            path.unlink()
        else:
            path.rename(elsewhere)
        if act == "replaces":
            path.write_text("")
        assert letters.publish([Outgoing(b"desk")]) == [None]
        assert letters.publish([Outgoing(b"chair")]) == [None]
    assert [line["value"] for line in lines(path)] == ["desk", "chair"]
    assert caplog.text.count("was moved or removed") + caplog.text.count("another file is there now") == 1


def test_a_file_that_is_removed_while_letters_are_written_is_made_anew(tmp_path, monkeypatch):
    path = tmp_path / "letters"
    sync = os.fsync

    def remove_and_sync(descriptor):
        sync(descriptor)
        if len(lines(path)) == 2:
            path.unlink()

    with DeadLetterFile(path) as letters:
        letters.publish([Outgoing(b"lamp")])
        monkeypatch.setattr(os, "fsync", remove_and_sync)
        assert letters.publish([Outgoing(b"desk")]) == [None]
    assert [line["value"] for line in lines(path)] == ["desk"]


def test_a_file_whose_folder_is_gone_refuses_letters(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    with DeadLetterFile(folder / "letters") as letters:
        letters.publish([Outgoing(b"lamp")])
        shutil.rmtree(folder)
        (answer,) = letters.publish([Outgoing(b"desk")])
        assert isinstance(answer, PublishError) and "No such file" in str(answer)
        folder.mkdir()
        assert letters.publish([Outgoing(b"desk")]) == [None]


def test_a_line_without_an_end_gets_one(tmp_path):
    path = tmp_path / "letters"
    path.write_bytes(b'{"value": "la')
    with DeadLetterFile(path) as letters:
        assert letters.publish([Outgoing(b"desk")]) == [None]
        assert letters.publish([Outgoing(b"chair")]) == [None]
    torn, *whole = path.read_text().splitlines()
    assert torn == '{"value": "la'
    assert [json.loads(line)["value"] for line in whole] == ["desk", "chair"]


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


def nowhere(_delivery):
    return Origin()


def attempt_of(number, state="dead"):
    delivery = Delivery(f"jobs#{number}", b"%d" % number, {"a": 1}, 1, None, None)
    return Attempt(number, delivery, 3, 3, 0, state=state, reason=Reason(ReasonKind.TIMED_OUT, attempt=3))


NOON = datetime(2026, 11, 25, 13, 0, 0, 123456, timezone(timedelta(hours=1)))


def test_a_dead_letter_says_what_happened_and_where_it_came_from():
    own = {
        "a": 1,
        "acker-reason": "timed out (attempt 3)",
        "acker-attempts": 3,
        "acker-key": "jobs#7",
        "acker-source": "RabbitMQ queue 'jobs'",
        "acker-time": "2026-11-25T12:00:00.123Z",
    }
    letter = dead_letter_of(attempt_of(7), "RabbitMQ queue 'jobs'", Origin(), NOON)
    assert letter == Outgoing(b"7", headers=own)
    letter = dead_letter_of(attempt_of(7), "RabbitMQ queue 'jobs'", Origin("jobs", b"k"), NOON)
    assert letter == Outgoing(b"7", headers={**own, "acker-to": "jobs", "acker-to-key": "k"})
    letter = dead_letter_of(
        attempt_of(7), "RabbitMQ queue 'jobs'", Origin(properties={"type": b"t", "priority": 3}), NOON
    )
    assert letter == Outgoing(b"7", headers={**own, "acker-properties": '{"type": "t", "priority": 3}'})


def test_the_reason_in_a_letter_is_one_that_each_broker_can_write():
    attempt = attempt_of(7)
    attempt.reason = Reason(ReasonKind.FAILED, exception="LookupError: no customer Ann \ud83d", attempt=3)
    letter = dead_letter_of(attempt, "RabbitMQ queue 'jobs'", Origin(), NOON)
    assert letter.headers["acker-reason"] == "failed: LookupError: no customer Ann \\ud83d (attempt 3)"


def test_the_letter_of_a_copied_letter_has_nothing_of_the_old_one():
    attempt = attempt_of(7)
    attempt.delivery.headers.update({"acker-to": "old", "acker-to-key": "k", "acker-properties": "{}"})
    letter = dead_letter_of(attempt, "RabbitMQ queue 'jobs'", Origin(), NOON)
    assert letter.headers.keys() == {
        "a",
        *(f"acker-{name}" for name in ("reason", "attempts", "key", "source", "time")),
    }


@pytest.mark.parametrize("key", [b"k", b"", b"\xff\x00", "größer".encode(), b"base64:aGE=", b"base64:", b"a\nb"])
def test_a_key_survives_headers_that_are_texts_of_one_line(key):
    assert key_of_text(key_text(key)) == key
    assert key_text(key).isprintable() and key_text(key)


class Flaky(DeadLetterFile):
    """Refuses each message once, and raises at the first call."""

    def __init__(self, path):
        super().__init__(path)
        self.calls = 0
        self.refused = set()

    def write(self, messages):
        self.calls += 1
        if self.calls == 1:
            raise ZeroDivisionError("a bug")
        new = {message.value for message in messages} - self.refused
        self.refused |= new
        super().write([message for message in messages if message.value not in new])
        return [PublishError("no room") if message.value in new else None for message in messages]


def test_the_writer_confirms_each_attempt_once_and_goes_on_after_errors(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("acker.connectors.dead_letters._BACKOFF_SECS", 0.001)
    path = tmp_path / "letters"
    confirmed, all_done = [], threading.Event()

    def confirm(attempt):
        confirmed.append(attempt.message_id)
        if len(confirmed) == 20:
            all_done.set()

    writer = DeadLetterWriter(Flaky(path), "jobs", nowhere, confirm, logging.getLogger("acker.connectors"))
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

    writer = DeadLetterWriter(DeadLetterFile(tmp_path / "letters"), "jobs", nowhere, confirm, LOGGER)
    writer.write(attempt_of(1, state="ended"))
    writer.write(attempt_of(2))
    assert done.wait(60)
    writer.stop()
    assert confirmed == [2] and len(lines(tmp_path / "letters")) == 1


def test_a_writer_without_dead_letters_has_no_thread(tmp_path):
    writer = DeadLetterWriter(DeadLetterFile(tmp_path / "letters"), "jobs", nowhere, print, None)
    writer.stop()
    assert not (tmp_path / "letters").exists()


LOGGER = logging.getLogger("acker.connectors")


class Confirmed(list):
    """The message ids that were confirmed, in their order."""

    def __init__(self):
        super().__init__()
        self._changed = threading.Condition()

    def __call__(self, attempt):
        with self._changed:
            self.append(attempt.message_id)
            self._changed.notify_all()

    def wait_for(self, ids):
        with self._changed:
            assert self._changed.wait_for(lambda: set(self) >= set(ids), 60), self


class Picky(MemoryPublisher):
    """Answers to the message b"1" in its own way."""

    def __init__(self, answer):
        super().__init__()
        self._answer = answer

    def write(self, messages):
        faults = super().write(messages)
        return [
            self._answer() if message.value == b"1" else each for message, each in zip(messages, faults, strict=True)
        ]


def refuse():
    return PublishError("it is too large")


def crash():
    raise ZeroDivisionError("a bug")


def leave():
    raise SystemExit


@pytest.mark.parametrize("answer", [refuse, crash, leave])
def test_a_dead_letter_that_no_one_takes_does_not_stop_the_others(answer, monkeypatch):
    monkeypatch.setattr("acker.connectors.dead_letters._BACKOFF_SECS", 0.001)
    monkeypatch.setattr("acker.connectors.dead_letters._BACKOFF_SECS_MAX", 0.01)
    confirmed = Confirmed()
    writer = DeadLetterWriter(Picky(answer), "jobs", nowhere, confirmed, LOGGER)
    for number in range(1, 20):
        writer.write(attempt_of(number))
    confirmed.wait_for(range(2, 20))
    for number in range(20, 30):
        writer.write(attempt_of(number))
    confirmed.wait_for(range(2, 30))
    writer.stop()
    assert 1 not in confirmed


class Forgetful(MemoryPublisher):
    """Answers once for fewer messages than it got."""

    def write(self, messages):
        faults = super().write(messages)
        return faults[1:] if self.calls["publish"] == 1 else faults


def test_a_publisher_that_forgets_an_answer_is_asked_again(monkeypatch, caplog):
    monkeypatch.setattr("acker.connectors.dead_letters._BACKOFF_SECS", 0.001)
    confirmed = Confirmed()
    writer = DeadLetterWriter(Forgetful(), "jobs", nowhere, confirmed, LOGGER)
    writer.write(attempt_of(1))
    confirmed.wait_for([1])
    writer.stop()
    assert "ValueError" in caplog.text


def test_a_publisher_that_never_answers_is_left_behind(monkeypatch, caplog):
    monkeypatch.setattr("acker.connectors.dead_letters._STOP_SECS", 0.05)
    publisher, confirmed = MemoryPublisher(), Confirmed()
    publisher.block()
    writer = DeadLetterWriter(publisher, "jobs", nowhere, confirmed, LOGGER)
    writer.write(attempt_of(1))
    while not publisher.calls["publish"]:
        threading.Event().wait(0.002)
    writer.stop()
    assert "no answer within 0.05 s" in caplog.text and confirmed == []
    publisher.unblock()
    writer._thread.join()


def test_consumers_share_a_publisher(monkeypatch):
    """One call at a time, and the end of one consumer does not close it for the other."""
    monkeypatch.setattr("acker.connectors.dead_letters._BACKOFF_SECS", 0.001)
    publisher = MemoryPublisher()
    confirmed = [Confirmed(), Confirmed()]
    writers = [DeadLetterWriter(publisher, "jobs", nowhere, each, LOGGER) for each in confirmed]
    for number in range(200):
        writers[number % 2].write(attempt_of(number))
    for place, each in enumerate(confirmed):
        each.wait_for(range(place, 200, 2))
    writers[0].stop()
    writers[1].write(attempt_of(1000))
    confirmed[1].wait_for([1000])
    writers[1].stop()
    assert len(publisher.published) == 201


def test_headers_of_any_kind_become_lines(tmp_path):
    cycle = {}
    cycle["self"] = cycle
    with DeadLetterFile(tmp_path / "letters") as letters:
        messages = [
            Outgoing(b"", headers={"a": {b"k": 1}}),
            Outgoing(b"", headers=cycle),
            Outgoing(b"", headers={1: 2}),
        ]
        assert letters.publish(messages) == [None] * 3
    assert [row["headers"] for row in lines(tmp_path / "letters")] == [
        {"a": "{b'k': 1}"},
        {"self": "{'self': {...}}"},
        {"1": 2},
    ]
