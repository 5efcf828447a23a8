"""`acker letters`: which letters a command means, what it prints, and its exit codes."""

import json
import sys
from datetime import UTC, datetime, timedelta

import pytest

from acker.cli.letters import parse_age
from acker.connectors import DeadLetterFile, Outgoing

MODULE = """
from acker.connectors import Consumer, DeadLetterFile
from acker.testing.connectors import MemoryBroker, MemoryPublisher, MemorySource

broker = MemoryBroker()
source = MemorySource(broker, name="orders")
consumer = Consumer(source, attempts_max=3, dead_letters=DeadLetterFile("letters.jsonl"))
plain = Consumer(MemorySource(broker))
elsewhere = MemoryPublisher(name="elsewhere")
refusing = MemoryPublisher(name="refusing")
refusing.refuse(1)
"""


def made_letter(value, reason, key, age=timedelta(), source="orders"):
    written = (datetime.now(UTC) - age).isoformat()
    told = {"reason": reason, "key": key, "attempts": 3, "source": source, "time": written}
    return Outgoing(value, headers={"colour": "green", **{f"acker-{name}": each for name, each in told.items()}})


@pytest.fixture
def letters(tmp_path, invoke):
    """The command, in a folder with a module and four letters."""
    sys.modules.pop("shop", None)
    (tmp_path / "shop.py").write_text(MODULE)
    with DeadLetterFile(tmp_path / "letters.jsonl") as file:
        file.publish(
            [
                made_letter(b"lamp", "failed: TimeoutError: pay", "orders/1", timedelta(hours=3)),
                made_letter(b"desk", "failed: LookupError: no desk", "orders/2", timedelta(minutes=5)),
                made_letter(b"\xff", "timed out", "orders/3", timedelta(days=4)),
                made_letter(b"ship", "failed: TimeoutError: pay", "parcels/1", source="parcels"),
            ]
        )
    yield lambda *words: invoke("letters", *words)
    sys.modules.pop("shop", None)


def left(tmp_path):
    rows = [json.loads(line) for line in (tmp_path / "letters.jsonl").read_text().splitlines()]
    return [row.get("value", "\xff") for row in rows]


def test_a_list_has_a_line_for_each_letter(letters):
    answer = letters("list", "letters.jsonl")
    first, second, third, *_ = answer.stdout.splitlines()
    assert first.split()[1:] == ["3h", "3", "orders/1", "failed:", "TimeoutError:", "pay"]
    assert second.split()[1] == "5m" and third.split()[1] == "4d"
    assert (answer.exit_code, answer.stderr) == (0, "4 letters\n")
    whole = [json.loads(line) for line in letters("list", "letters.jsonl", "--json").stdout.splitlines()]
    assert [row.get("value") for row in whole] == ["lamp", "desk", None, "ship"]
    assert whole[2]["value_base64"] == "/w==" and whole[0]["headers"] == {"colour": "green"}


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--reason", "TimeoutError"], ["lamp", "ship"]),
        (["--key", "orders/2"], ["desk"]),
        (["--older", "2h"], ["lamp", "\xff"]),
        (["--newer", "10m"], ["desk", "ship"]),
        (["--older", "2h", "--reason", "Timeout"], ["lamp"]),
        (["--reason", "nothing like it"], []),
    ],
)
def test_options_choose_letters(letters, tmp_path, options, found):
    answer = letters("drop", "letters.jsonl", "--yes", *options)
    assert answer.exit_code == 0 and answer.stderr == f"{len(found)} dropped\n"
    assert sorted([*left(tmp_path), *found]) == sorted(["lamp", "desk", "\xff", "ship"])


def test_an_id_names_a_letter(letters, tmp_path):
    letter_id = letters("list", "letters.jsonl", "--key", "orders/2").stdout.split()[0]
    shown = letters("show", "letters.jsonl", letter_id)
    assert json.loads(shown.stdout)["reason"] == "failed: LookupError: no desk"
    answer = letters("retry", "letters.jsonl", letter_id, "0123456789ab", "--to", "shop:elsewhere")
    assert answer.stderr == "1 published again, and dropped\nno such letter: 0123456789ab\n"
    assert [each.value for each in sys.modules["shop"].elsewhere.published] == [b"desk"]
    assert left(tmp_path) == ["lamp", "\xff", "ship"]


@pytest.mark.parametrize("words", [["shop:consumer"], ["letters.jsonl", "--to", "shop:consumer"]])
def test_letters_go_back_to_where_they_came_from(letters, tmp_path, words):
    answer = letters("retry", *words)
    assert answer.exit_code == 0, answer.output
    assert answer.stderr == "3 published again, and dropped\n1 letters of other sources are left alone\n"
    assert left(tmp_path) == ["ship"]
    assert sys.modules["shop"].broker.left() == 3


def test_what_is_not_confirmed_stays_with_exit_code_1(letters, tmp_path):
    answer = letters("retry", "letters.jsonl", "--key", "orders/1", "--to", "shop:refusing")
    assert answer.exit_code == 1
    assert "0 published again" in answer.stderr and "stays: refusing refuses the message" in answer.stderr
    assert len(left(tmp_path)) == 4


@pytest.mark.parametrize(("answered", "count"), [("y\n", 2), ("n\n", 4), ("", 4)])
def test_drop_asks(letters, tmp_path, invoke, answered, count):
    from click.testing import CliRunner

    from acker.cli.commands import cli

    words = ["letters", "drop", "letters.jsonl", "--reason", "TimeoutError"]
    answer = CliRunner().invoke(cli, words, input=answered)
    assert "Drop 2 letters for good?" in answer.output
    assert len(left(tmp_path)) == count


def test_what_a_terminal_would_obey_is_not_printed(letters, tmp_path):
    with DeadLetterFile(tmp_path / "bad.jsonl") as file:
        file.publish([made_letter("\x1b[2J\x9b2J".encode(), "\x1b[2Jfailed\x9b\n", "a\x1b]0;title\x07")])
    for command in ("list", "show"):
        text = letters(command, "bad.jsonl").stdout
        assert all(each.isprintable() or each == "\n" for each in text), text
    assert json.loads(text)["value"] == "\x1b[2J\x9b2J"


def test_most_limits_what_is_looked_at_and_says_so(letters):
    answer = letters("list", "letters.jsonl", "--most", "2")
    assert len(answer.stdout.splitlines()) == 2 and "there may be more: see --most" in answer.stderr


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["list", "a" * 300], 2, "File name too long"),
        (["list", "none.jsonl"], 2, "'none.jsonl' is no file here: expected a file of dead letters, or MODULE:NAME"),
        (
            ["list", "shop:nobody"],
            2,
            "shop:nobody is no Consumer or Publisher: there are shop:consumer,",
        ),
        (["list", "shop:plain"], 2, "dead_letters is None, and no publisher"),
        (["list", "shop:elsewhere"], 2, "its class has no reader()"),
        (["retry", "letters.jsonl"], 2, "letters.jsonl does not say where its letters go: write --to MODULE:PUBLISHER"),
        (["retry", "shop:refusing"], 2, "shop:refusing does not say where its letters go: write --to MODULE:PUBLISHER"),
        (["retry", "shop:consumer", "--to", "shop:source"], 2, "letters of shop:consumer go back to its own source"),
        (["list", "letters.jsonl", "--older", "soon"], 2, "expected a number and s, m, h or d"),
        (["list", "letters.jsonl", "--most", "0"], 2, "--most"),
    ],
)
def test_mistakes(letters, words, code, text):
    answer = letters(*words)
    assert (answer.exit_code, text in " ".join(answer.output.split())) == (code, True), answer.output


def test_a_place_that_cannot_be_read_is_exit_code_1(letters, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("fcntl.flock", refuse)
    answer = letters("list", "letters.jsonl")
    assert (answer.exit_code, answer.stderr) == (1, "acker: file letters.jsonl: Input/output error\n")


@pytest.mark.parametrize(("text", "secs"), [("90s", 90), ("1.5m", 90), ("2h", 7200), ("7d", 604800)])
def test_ages(text, secs):
    assert parse_age(text) == secs
