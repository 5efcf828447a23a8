"""The text files of the word count: which files, which lines, which words."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from examples.wordcount.corpus import default_input, expected_counts, find, read_lines


def write(folder: Path, **files: bytes) -> Path:
    for name, content in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a", ["a"]),
        (b"a\n", ["a"]),
        (b"a\n\n", ["a", ""]),
        (b"a\r\nb\x0cc\rd\n", ["a\r", "b\x0cc\rd"]),
        (b"\xff\xfe b\n\xe2\x98", ["\ufffd\ufffd b", "\ufffd"]),
        ("\u2028x\x85y\n".encode(), ["\u2028x\x85y"]),
    ],
)
def test_lines_end_at_newline_bytes_only(tmp_path, content, lines) -> None:
    corpus = find(write(tmp_path, file=content, other=b"z"))
    assert read_lines(corpus.path(0)) == lines
    expected, count = expected_counts(corpus, [])
    assert count == len(lines) + 1
    assert expected == Counter(word for line in [*lines, "z"] for word in line.split())


def test_dead_lines_are_taken_off_and_no_zero_stays(tmp_path) -> None:
    corpus = find(write(tmp_path, file=b"a b\nb c\n"))
    counts, lines = expected_counts(corpus, ["a b"])
    assert dict(counts) == {"b": 1, "c": 1} and lines == 2


def test_text_files_are_found_in_order(tmp_path) -> None:
    write(
        tmp_path,
        b=b"x",
        a__z=b"xx",
        a__empty=b"",
        binary=b"text\0text",
        late_zero=b"t" * 9000 + b"\0",
        **{"site-packages__p.py": b"no", "a__.git__config": b"no"},
    )
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "m.txt").write_bytes(b"no")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    (tmp_path / "again").symlink_to(tmp_path / "a")
    corpus = find(tmp_path)
    assert corpus.paths == ("a/empty", "a/z", "b", "late_zero") and corpus.sizes == (0, 2, 1, 9001)
    assert corpus.binary == 1 and corpus.root == str(tmp_path.resolve())
    with pytest.raises(FileNotFoundError, match="no text file under"):
        find(write(tmp_path / "blobs", blob=b"\0"))
    with pytest.raises(NotADirectoryError, match="is not a folder"):
        find(tmp_path / "b")


def test_the_default_folder_has_text() -> None:
    assert (default_input() / "os.py").is_file()


@pytest.mark.parametrize("count", [1, 2, 3, 100])
def test_chunks_hold_each_file_once_and_weigh_alike(tmp_path, count) -> None:
    corpus = find(write(tmp_path, **{f"f{number:02}": b"x" * (number * 100) for number in range(20)}))
    chunks = corpus.chunks(count)
    assert sorted(file for chunk in chunks for file in chunk) == list(range(20))
    assert len(chunks) == min(count, 20) and all(chunk == sorted(chunk) for chunk in chunks)
    weights = [sum(corpus.sizes[file] for file in chunk) for chunk in chunks]
    assert max(weights) - min(weights) <= max(corpus.sizes)
