"""Tokens and reports as bytes; the vectors of docs/remote.md."""

import re
from pathlib import Path

import pytest

from acker import ArgumentValueError, TokenError
from acker.remote.wire import NAMES_MAX, TEXT_MAX, Report, ReportKind, Token, read_report, read_token, write_report

PAGE = Path(__file__).resolve().parents[2] / "docs/remote.md"
TOKEN = Token(bytes(range(13)), 0x0102030405060708, 0xF0E0D0C0B0A09080, 3)
OK = Report(TOKEN.tree, TOKEN.maker, TOKEN.place, 0x1122334455667788, 2, ReportKind.OK)


def test_a_token_has_47_characters_that_need_no_escape():
    assert len(TOKEN.text) == 47
    assert re.fullmatch(r"a1\.[A-Za-z0-9_-]{44}", TOKEN.text)
    assert read_token(TOKEN.text) == TOKEN


@pytest.mark.parametrize(
    "text",
    ["", "a1.", TOKEN.text[:-1], TOKEN.text + "A", TOKEN.text.replace("a1.", "b1."), TOKEN.text[:-1] + "é", " " * 47],
)
def test_a_damaged_token_is_refused_and_not_shown(text):
    with pytest.raises(TokenError, match="this is no token") as caught:
        read_token(text)
    assert TOKEN.text[3:20] not in str(caught.value)


def test_bytes_are_no_token():
    with pytest.raises(TokenError, match="got bytes"):
        read_token(TOKEN.text.encode())


def test_a_token_of_another_version_says_so():
    with pytest.raises(TokenError, match="this token has version 2, and this acker reads version 1"):
        read_token(TOKEN.text.replace("a1.", "a2."))


def test_a_report_has_33_bytes_and_its_parts():
    assert len(write_report(OK)) == 33
    full = OK._replace(kind=ReportKind.FAIL, reason="ValueError: größe", names=("pack", ""))
    assert read_report(write_report(full)) == full


def test_long_texts_are_cut_and_unknown_parts_skipped():
    long = OK._replace(reason="é" * 2000, names=("n" * 2000,) * 300)
    found = read_report(write_report(long) + b"\x63\x00\x02hi")
    assert found.reason == "é" * TEXT_MAX
    assert found.names == ("n" * TEXT_MAX,) * NAMES_MAX


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(32),
        write_report(OK)[:-1] + b"\x09",
        write_report(OK) + b"\x01",
        write_report(OK) + b"\x01\x00\x05abc",
    ],
)
def test_what_is_no_report_is_refused(data):
    with pytest.raises(ArgumentValueError, match="a report"):
        read_report(data)


def test_the_vectors_of_the_page():
    page = PAGE.read_text(encoding="utf-8")
    assert TOKEN.text in page
    found = dict(re.findall(r"^(OK|FAIL|MORE_TIME) ([0-9a-f ]+)$", page, re.MULTILINE))
    reports = {
        "OK": OK._replace(names=("post", "bill")),
        "FAIL": OK._replace(kind=ReportKind.FAIL, jobs=0, reason="no lamp"),
        "MORE_TIME": OK._replace(kind=ReportKind.MORE_TIME, jobs=1),
    }
    for kind, report in reports.items():
        assert bytes.fromhex(found[kind]) == write_report(report), write_report(report).hex(" ", 4)
