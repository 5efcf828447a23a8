"""Letters in a file are removed while a consumer writes there: none is lost, whatever comes between."""

import fcntl
import json
import os
import subprocess
import sys

import pytest

from acker import ArgumentValueError, SourceError
from acker.connectors import DeadLetterFile, DeadLetters, Letter, Outgoing
from acker.connectors.dead_letter_file import FileLetters
from acker.connectors.source import Delivery, Origin
from acker.testing.connectors import MemoryPublisher


def written(path, *values, **headers):
    with DeadLetterFile(path) as letters:
        assert not any(letters.publish([Outgoing(value, headers=headers) for value in values]))


def values(path):
    return [json.loads(line)["value"] for line in path.read_text().splitlines()]


WRITER = """
import sys
from acker.connectors import DeadLetterFile, Outgoing
letters = DeadLetterFile(sys.argv[1])
for number in range(int(sys.argv[2]), int(sys.argv[2]) + 300):
    assert letters.publish([Outgoing(b"%d" % number)]) == [None]
"""


def test_letters_that_two_processes_write_while_others_are_dropped_are_kept(tmp_path):
    path = tmp_path / "letters"
    written(path, b"first")
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, path, str(begin)]) for begin in (0, 300)]
    dropped = []
    while any(writer.poll() is None for writer in writers):
        dropped += [letter.value for letter in DeadLetters(DeadLetterFile(path)).drop().letters]
    assert [writer.returncode for writer in writers] == [0, 0]
    found = [value.decode() for value in dropped] + values(path)
    assert sorted(found) == sorted(["first", *map(str, range(600))])


def test_a_writer_that_waited_for_the_lock_writes_to_the_new_file(tmp_path, monkeypatch):
    path = tmp_path / "letters"
    letters = DeadLetterFile(path)
    assert letters.publish([Outgoing(b"lamp")]) == [None]
    lock, done = fcntl.flock, []

    def drop_and_lock(file, how):
        if not done:
            done.append(how)
            DeadLetters(DeadLetterFile(path)).drop()
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", drop_and_lock)
    assert letters.publish([Outgoing(b"desk")]) == [None]
    assert values(path) == ["desk"]
    letters.close()


def test_a_file_that_is_written_anew_keeps_its_mode_and_the_link_to_it(tmp_path):
    path, link = tmp_path / "letters", tmp_path / "link"
    written(path, b"lamp", b"desk")
    path.chmod(0o640)
    link.symlink_to(path)
    report = DeadLetters(DeadLetterFile(link)).drop(lambda letter: letter.value == b"lamp")
    assert len(report.letters) == 1 and values(path) == ["desk"]
    assert path.stat().st_mode & 0o777 == 0o640 and link.is_symlink()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["letters", "link"]


def test_each_of_many_letters_is_found(tmp_path):
    """They are read some hundred at a time: between two reads none is left out."""
    path = tmp_path / "letters"
    written(path, *(b"%d" % number for number in range(1200)))
    letters = DeadLetters(DeadLetterFile(path))
    assert [int(letter.value) for letter in letters.find().letters] == list(range(1200))
    assert len(letters.retry(to=MemoryPublisher()).letters) == 1200 and values(path) == []


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "letters"
    written(path, b"lamp", b"desk")

    def refuse(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(SourceError, match="No space left on device"):
        DeadLetters(DeadLetterFile(path)).drop(lambda letter: letter.value == b"lamp")
    assert values(path) == ["lamp", "desk"]
    assert [each.name for each in tmp_path.iterdir()] == ["letters"]


def test_a_retry_that_cannot_drop_says_that_letters_are_there_twice(tmp_path, monkeypatch):
    path, target = tmp_path / "letters", MemoryPublisher()
    written(path, b"lamp", b"desk", b"rug")

    def refuse(_descriptor):
        raise OSError(28, "No space left on device")

    def publish(messages):  # Meanwhile others fill the disk.
        monkeypatch.setattr(os, "fsync", refuse)
        return MemoryPublisher.write(target, messages)

    target.write = publish
    with pytest.raises(SourceError, match=r"^2 letters were published again and not dropped.* twice: .*No space left"):
        DeadLetters(DeadLetterFile(path)).retry(lambda letter: letter.value != b"rug", to=target)
    assert [each.value for each in target.published] == [b"lamp", b"desk"]
    assert values(path) == ["lamp", "desk", "rug"]


@pytest.mark.parametrize("fault", ["no room", "read-only"])
def test_a_retry_publishes_nothing_where_the_file_cannot_be_written_anew(tmp_path, fault):
    """In a process that may write no more than half of the file; or beside a file that nobody may replace."""
    path = tmp_path / "letters"
    written(path, b"lamp", b"desk" * 1000)
    if fault == "read-only":
        (tmp_path / ".letters.new").mkdir()
    code = f"""
import resource
from acker import SourceError
from acker.connectors import DeadLetterFile, DeadLetters
from acker.testing.connectors import MemoryPublisher
if {fault!r} == "no room":
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
target = MemoryPublisher()
try:
    DeadLetters(DeadLetterFile({str(path)!r})).retry(to=target)
except SourceError as error:
    print(len(target.published), error)
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.startswith(f"0 nothing was published, since no letter can be dropped: file {path}: "), told
    assert values(path) == ["lamp", "desk" * 1000]


def test_a_line_that_is_nested_too_deep_hides_no_letter(tmp_path, caplog):
    path = tmp_path / "letters"
    path.write_bytes(b"[" * 200_000 + b"\n" + b'{"value": "lamp", "headers": {}}\n')
    report = DeadLetters(DeadLetterFile(path)).find()
    assert [letter.value for letter in report.letters] == [b"lamp"]
    assert "line 1: no dead letter" in caplog.text


def test_lines_that_are_no_letters_stay_and_are_named(tmp_path, caplog):
    path = tmp_path / "letters"
    odd, torn = b'no json\n{"value": 7, "headers": {}}\n', b'{"value": '
    path.write_bytes(odd + b'{"value_base64": "/wo=", "headers": {}}\n' + b"[]\n" + torn)
    report = DeadLetters(DeadLetterFile(path)).drop()
    assert [letter.value for letter in report.letters] == [b"\xff\n"]
    assert [f"line {number}" in caplog.text for number in (1, 2, 3, 4, 5)] == [True, True, False, True, True]
    assert path.read_bytes() == odd + b"[]\n" + torn


def test_one_of_two_equal_letters_can_go(tmp_path):
    path = tmp_path / "letters"
    written(path, b"lamp", b"lamp")
    (first, second) = DeadLetters(DeadLetterFile(path)).find().letters
    assert first == second
    target = MemoryPublisher()
    target.refuse()
    DeadLetters(DeadLetterFile(path)).retry(to=target)
    assert values(path) == ["lamp"] and len(target.published) == 1


def test_a_file_that_is_not_there_has_no_letters(tmp_path):
    assert DeadLetters(DeadLetterFile(tmp_path / "letters")).find().letters == []
    with pytest.raises(SourceError, match="no regular file"):
        FileLetters(tmp_path).open(None, 1)


def test_a_path_that_cannot_be_looked_at_is_an_error_of_its_source(tmp_path):
    with pytest.raises(SourceError, match="File name too long"):
        DeadLetters(DeadLetterFile(tmp_path / ("a" * 300))).find()


def test_a_missing_folder_is_a_mistake_at_once(tmp_path):
    with pytest.raises(ArgumentValueError, match=r"there is no folder .*/none for letters; create it"):
        DeadLetterFile(tmp_path / "none" / "letters")


def test_bytes_in_headers_come_back_as_their_text(tmp_path):
    """The headers of Kafka are bytes: in the file, they were the text of Python's literal."""
    path = tmp_path / "letters"
    written(path, b"lamp", colour=b"gr\xc3\xbcn")
    (letter,) = DeadLetters(DeadLetterFile(path)).find().letters
    assert letter.headers == {"colour": "grün"}


def letter(headers, value=b"lamp", lies_at=Origin()):  # noqa: B008
    return Letter.of(Delivery("place/1", value, headers, 1, None, None), lies_at)


def test_a_letter_says_what_its_headers_say_and_keeps_those_of_the_message():
    found = letter(
        {
            "colour": b"green",
            "acker-reason": b"failed: no lamp",
            "acker-attempts": "3",
            "acker-key": "orders/7",
            "acker-source": "orders",
            "acker-time": "2026-11-25T12:00:00.123Z",
            "acker-to": "orders",
            "acker-to-key": "base64:/w==",
            "acker-headers": "one of SQS",
            "x-delivery-count": 4,
            "x-death": [{}],
            "x-first-death-queue": "orders",
        }
    )
    assert found.headers == {"colour": b"green", "acker-headers": "one of SQS"}
    assert (found.reason, found.attempts, found.key, found.source) == ("failed: no lamp", 3, "orders/7", "orders")
    assert (found.to, found.to_key) == ("orders", b"\xff")
    assert found.time.isoformat() == "2026-11-25T12:00:00.123000+00:00"


@pytest.mark.parametrize(
    "headers", [{}, {"acker-attempts": "many", "acker-time": "noon"}, {"acker-attempts": "9" * 5000}]
)
def test_a_letter_of_somebody_else_has_no_age_and_no_reason(headers):
    found = letter(headers)
    assert (found.reason, found.attempts, found.time, found.age_secs(), found.to) == ("", None, None, None, None)


def test_properties_are_those_of_the_letter_only_if_a_broker_has_moved_the_message():
    lies_at, told = Origin("dead", properties={"type": "order"}), {"acker-reason": "failed"}
    assert letter({}, lies_at=lies_at).properties == {"type": "order"}
    assert letter(told, lies_at=lies_at).properties == letter(told).properties == {}
    assert letter({**told, "acker-properties": '{"priority": 3}'}, lies_at=lies_at).properties == {"priority": 3}


@pytest.mark.parametrize("text", ["", "[1]", "{", "null", "[" * 100_000])
def test_damaged_properties_are_none(text):
    assert letter({"acker-properties": text}).properties == {}


def test_the_id_of_a_letter_is_made_of_what_no_delivery_changes():
    told = {"acker-reason": "failed", "acker-time": "2026-11-25T12:00:00.123Z"}
    assert letter(told).letter_id == letter({**told, "x-delivery-count": 1}).letter_id
    assert letter(told).letter_id == letter({name: text.encode() for name, text in told.items()}).letter_id
    assert len({letter(told).letter_id, letter(told, b"desk").letter_id, letter({}).letter_id}) == 3
