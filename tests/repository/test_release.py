"""The check of a release: what has to agree, and how steps that fail are told."""

import shutil
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.repository

ROOT = Path(__file__).resolve().parents[2]
FILES = ("CHANGELOG.md", "CITATION.cff", "src/acker/__init__.py")


@pytest.fixture
def release(monkeypatch, tmp_path):
    """The script, told that a copy of the checkout's facts is the checkout."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import release as module

    monkeypatch.setattr(module, "ROOT", tmp_path)
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return module


def contradictions(release, tag=None):
    """Return what contradicts, but that something came after the release: that is wrong only when there is the next."""
    return [sentence for sentence in release.contradictions(release.ROOT, tag) if "is not empty" not in sentence]


def test_the_files_of_this_checkout_agree(release):
    assert contradictions(release) == []
    assert contradictions(release, f"v{release.version(ROOT)}") == []
    assert len(release.notes(ROOT)) > 100


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        ("src/acker/__init__.py", '__version__ = "', '__version__ = "9', "no section [9"),
        ("CITATION.cff", 'version: "', 'version: "9', "CITATION.cff: version is 9"),
        ("CITATION.cff", 'date-released: "2', 'date-released: "3', "CITATION.cff: date-released is 3"),
        ("CHANGELOG.md", "] - 2", "] - soon-2", "has no date"),
        ("CHANGELOG.md", "## [Unreleased]\n", "## [Unreleased]\n\n- Something.\n", "[Unreleased] is not empty"),
    ],
)
def test_what_contradicts_is_named(release, file, old, new, words):
    path = release.ROOT / file
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    assert any(words in sentence for sentence in release.contradictions(release.ROOT))


def test_the_tag_has_to_be_that_of_the_version(release):
    (sentence,) = contradictions(release, "v0.0.1")
    assert sentence == f"the tag is v0.0.1, expected v{release.version(release.ROOT)}"


def test_steps_go_on_after_one_that_failed(release, capsys):
    log = release.ROOT / "logs/step.log"
    bad = release.step("bad", [sys.executable, "-c", "print('so far'); raise SystemExit(3)"], log)
    assert (bad.passed, bad.remark) == (False, f"exit code 3: {log}")
    assert release.last_lines(log) == "so far"
    good = release.step("good", [sys.executable, "-c", "print('all fine'); print()"], log)
    assert (good.passed, good.remark) == (True, "all fine")
    assert [line[:9] for line in release.table([bad, good]).splitlines()] == ["NO  bad  ", "ok  good "]


def test_a_step_that_takes_long_says_how_far_it_is(release, monkeypatch, capsys):
    import follow

    log, seen = release.ROOT / "step.log", release.ROOT / "seen"
    # Ends only once something was said of it.
    code = f"import pathlib, sys; print('half way', flush=True)\nwhile not pathlib.Path({str(seen)!r}).exists(): pass"
    last_lines = follow.last_lines

    def told(path):
        line = last_lines(path)
        if line == "half way":
            seen.touch()
        return line

    monkeypatch.setattr(follow, "last_lines", told)
    assert release.step("long", [sys.executable, "-c", code], log, show_every_s=0.05).passed
    assert "half way" in capsys.readouterr().out
