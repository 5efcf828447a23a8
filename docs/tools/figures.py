"""The drawings of README.md and docs/how-it-works.md, made from the state of a real acker after each message.

Ack vals, ages and outcomes are read from an `acker.Acker`: from its snapshot, whose format docs/snapshot.md describes,
and from the completions that it returns. Only the ids and the story are chosen here.
"""

from __future__ import annotations

import struct
from html import escape
from typing import Final, NamedTuple

from acker import Acker, Completions, Kind, Outcome
from benchmarks.plots import DRAWING_STYLE

BITS: Final = 9  # enough for the ids below
FONT: Final = "font-family='system-ui,-apple-system,Segoe UI,sans-serif'"
MONO: Final = "font-family='ui-monospace,SFMono-Regular,Consolas,monospace'"

# A card of its own, so that it can be read on any page; colours after the system, and in the site after its theme.
STYLE: Final = DRAWING_STYLE.replace(
    "</style>",
    """.acker-drawing .card{fill:var(--card);stroke:var(--rim)}.acker-drawing text{fill:var(--ink)}
.acker-drawing .dim{fill:var(--dim)}.acker-drawing .bad{fill:var(--bad)}.acker-drawing .good{fill:var(--on)}
.acker-drawing .open{fill:var(--on)}.acker-drawing .on-open{fill:var(--seen)}
.acker-drawing .done{fill:none;stroke:var(--dim);stroke-dasharray:3 3}.acker-drawing .off{fill:var(--off)}
.acker-drawing .edge{stroke:var(--dim);stroke-width:1.5;fill:none}.acker-drawing .box{fill:none;stroke:var(--rim)}
</style>""",
)


class Step(NamedTuple):
    """One message of the story, and the state of the acker after it."""

    title: str
    kind: Kind
    ids: tuple[int, ...]  # their xor is the message's value
    open: tuple[int, ...]
    done: tuple[int, ...]
    before: int
    after: int
    outcome: str | None

    @property
    def value(self) -> int:
        """Return the value of the message."""
        value = 0
        for each in self.ids:
            value ^= each
        return value

    @property
    def message(self) -> str:
        """Return the message as it is written: its kind and the ids that are xored."""
        return f"{self.kind.name} {' ^ '.join(map(str, self.ids))}"


_STORY: Final = (
    ("The spout emits the line as tuple 100", Kind.TRACK, (100,), (100,), ()),
    ("split emits two words as tuples 200 and 300, and is done with 100", Kind.OK, (100, 200, 300), (200, 300), (100,)),
    ("count is done with 300", Kind.OK, (300,), (200,), (100, 300)),
    ("count is done with 200: nothing is left", Kind.OK, (200,), (), (100, 200, 300)),
)


def entries_of(acker: Acker) -> dict[int, tuple[int, int]]:
    """Return ack val and age by root id, from a snapshot of at most one block."""
    blob = acker.snapshot()
    (count,) = struct.unpack_from("<Q", blob, 112)
    columns = 128
    roots = struct.unpack_from(f"<{count}q", blob, columns)
    vals = struct.unpack_from(f"<{count}q", blob, columns + 8 * count)
    ages = struct.unpack_from(f"<{count}B", blob, columns + 33 * count)
    return {root: (val, age) for root, val, age in zip(roots, vals, ages, strict=True)}


def steps() -> list[Step]:
    """Run the story of a line of two words through an acker."""
    acker, shown = Acker(seed=1), []
    before = 0
    for title, kind, ids, still_open, done in _STORY:
        step = Step(title, kind, ids, still_open, done, before, 0, None)
        completions = acker.ingest([kind], [7], [step.value], [0], [42])
        after = entries_of(acker).get(7, (0, 0))[0]
        ended = [Outcome(outcome).name for outcome in completions.outcome.tolist()]
        shown.append(step._replace(after=after, outcome=ended[0] if ended else None))
        before = after
    return shown


def drawings() -> dict[str, str]:
    """Return each drawing under the name of its file."""
    made = {f"xor-{number}.svg": _xor(number, step) for number, step in enumerate(steps(), 1)}
    return {**made, "tree.svg": _tree(steps()), "buckets.svg": _buckets(moments())}


def steps_page() -> str:
    """Return the steps as Markdown: a picture for each, whose alternative text says the same."""
    pictures = [f"![{_alternative(step)}](figures/xor-{number}.svg)" for number, step in enumerate(steps(), 1)]
    return "\n\n".join(pictures)


def _alternative(step: Step) -> str:
    end = f" The tree is {step.outcome}." if step.outcome else ""
    return (
        f"{step.title}. The message {step.message} makes the ack val {step.after}; "
        f"open tuples: {', '.join(map(str, step.open)) or 'none'}.{end}"
    )


def _bits(number: int) -> str:
    return f"{number:0{BITS}b}"


def _svg(width: int, height: int, alternative: str, parts: list[str]) -> str:
    size = f"viewBox='0 0 {width} {height}' width='{width}'"
    head = f"<svg xmlns='http://www.w3.org/2000/svg' {size} role='img' class='acker-drawing' {FONT}>"
    card = f"<rect class='card' x='0.5' y='0.5' width='{width - 1}' height='{height - 1}' rx='8'/>"
    return "\n".join([head, f"<title>{escape(alternative)}</title>", STYLE, card, *parts, "</svg>", ""])


def _text(x: float, y: float, text: str, *, size: int = 14, of: str = "", anchor: str = "start", more: str = "") -> str:
    name = f" class='{of}'" if of else ""
    return f"<text x='{x:g}' y='{y:g}' font-size='{size}' text-anchor='{anchor}'{name} {more}>{escape(text)}</text>"


def _xor(number: int, step: Step) -> str:
    """Draw a step: the tree on the left, the xor bit by bit on the right."""
    places = {100: (130, 88), 200: (75, 168), 300: (185, 168)}
    seen = {*step.open, *step.done}
    parts = [_text(20, 30, f"{number}. {step.title}", size=15, more="font-weight='600'")]
    for child in (200, 300):
        if child in seen:
            (x1, y1), (x2, y2) = places[100], places[child]
            parts.append(f"<path class='edge' d='M{x1},{y1 + 24} L{x2},{y2 - 24}'/>")
    for name, (x, y) in places.items():
        if name in seen:
            state = "open" if name in step.open else "done"
            parts.append(f"<circle class='{state}' cx='{x}' cy='{y}' r='24'/>")
            parts.append(_text(x, y + 5, str(name), anchor="middle", of="on-open" if state == "open" else "dim"))
    parts.append(_text(130, 214, "filled: open, dashed: done", size=12, of="dim", anchor="middle"))
    rows = (("ack val", step.before), (f"^ {step.message}", step.value), ("= ack val", step.after))
    for row, (label, value) in enumerate(rows):
        y = 66 + 44 * row + (8 if row == 2 else 0)
        parts += [
            _text(268, y + 19, label),
            *_cells(472, y, value),
            _text(734, y + 19, str(value), anchor="end", more=MONO),
        ]
    parts.append("<path class='edge' d='M268,152 H734'/>")
    if step.outcome:
        parts.append(
            _text(
                268,
                214,
                f"0: everything that was created is done. {step.outcome}.",
                of="good",
                more="font-weight='600'",
            )
        )
    else:
        left = " ^ ".join(map(str, step.open))
        text = f"What is left in it: {left}" + (f" = {step.after}" if len(step.open) > 1 else "")
        parts.append(_text(268, 214, text, of="dim"))
    return _svg(760, 236, _alternative(step), parts)


def _cells(x: int, y: int, value: int) -> list[str]:
    parts = []
    for place, bit in enumerate(_bits(value)):
        left = x + place * 24
        parts.append(
            f"<rect class='{'open' if bit == '1' else 'off'}' x='{left}' y='{y}' width='21' height='28' rx='3'/>"
        )
        parts.append(_text(left + 10.5, y + 19, bit, anchor="middle", of="on-open" if bit == "1" else "dim", more=MONO))
    return parts


_CAPTIONS: Final = ("A message arrives", "It becomes two tuples", "One is done", "All are done")


def _tree(shown: list[Step]) -> str:
    """Draw the whole story in one row: the tree after each message, and below it the number that acker keeps."""
    alternative = (
        "A message, the tuples that derive from it, and the one number that acker keeps of them: "
        + "; ".join(f"{caption.lower()}, {step.after}" for caption, step in zip(_CAPTIONS, shown, strict=True))
    )
    parts = []
    for panel, (caption, step) in enumerate(zip(_CAPTIONS, shown, strict=True)):
        middle = 100 + 187 * panel
        places = {100: (middle, 76), 200: (middle - 38, 142), 300: (middle + 38, 142)}
        seen = {*step.open, *step.done}
        parts.append(_text(middle, 32, caption, anchor="middle", more="font-weight='600'"))
        for child in sorted(seen - {100}):
            (x1, y1), (x2, y2) = places[100], places[child]
            parts.append(f"<path class='edge' d='M{x1},{y1 + 20} L{x2},{y2 - 20}'/>")
        for name in sorted(seen):
            x, y = places[name]
            state = "open" if name in step.open else "done"
            parts.append(f"<circle class='{state}' cx='{x}' cy='{y}' r='20'/>")
            parts.append(
                _text(x, y + 5, str(name), size=13, anchor="middle", of="on-open" if state == "open" else "dim")
            )
        parts.append(f"<rect class='box' x='{middle - 74}' y='180' width='148' height='54' rx='6'/>")
        parts.append(_text(middle, 203, f"acker keeps {step.after}", anchor="middle"))
        left = " ^ ".join(map(str, step.open)) if len(step.open) > 1 else "not done"
        below = "ack the message" if step.outcome else left
        parts.append(_text(middle, 223, below, size=13, anchor="middle", of="good" if step.outcome else "dim"))
        if panel:
            left_end = middle - 187 + 78
            parts.append(f"<path class='edge' d='M{left_end},207 h24 m-6,-5 l6,5 l-6,5'/>")
    return _svg(760, 250, alternative, parts)


class Moment(NamedTuple):
    """The contents of the buckets at one time."""

    seconds: int
    what: str
    buckets: list[list[str]]  # from the nursery to death row
    ended: str


def moments() -> list[Moment]:
    """Run three trees through an acker of three buckets that is rotated every 30 seconds."""
    acker, names = Acker(buckets=3, seed=1), {1: "A", 2: "B", 3: "C"}
    shown: list[Moment] = []

    def note(seconds: int, what: str, done: Completions) -> None:
        buckets: list[list[str]] = [[], [], []]
        for root, (_, age) in entries_of(acker).items():
            buckets[age].append(names[root])
        ended = [
            f"{names[root]} {Outcome(outcome).name}, {elapsed // 1000} s old"
            for root, outcome, elapsed in zip(
                done.root_id.tolist(), done.outcome.tolist(), done.elapsed_ms.tolist(), strict=True
            )
        ]
        shown.append(Moment(seconds, what, [sorted(bucket) for bucket in buckets], ", ".join(ended)))

    def track(seconds: int, *roots: int) -> None:
        done = acker.ingest(
            Kind.TRACK, list(roots), [10 * root for root in roots], [0] * len(roots), roots, now_ms=1000 * seconds
        )
        note(seconds, f"TRACK of {' and '.join(names[root] for root in roots)}", done)

    def rotate(seconds: int) -> None:
        note(seconds, "rotate", acker.rotate(now_ms=1000 * seconds))

    track(10, 1, 2)
    rotate(30)
    track(40, 3)
    note(50, "RESET_TIMEOUT of B", acker.ingest(Kind.RESET_TIMEOUT, [2], [0], now_ms=50_000))
    rotate(60)
    note(70, "OK of C, its last", acker.ingest(Kind.OK, [3], [30], now_ms=70_000))
    rotate(90)
    rotate(120)
    return shown


def buckets_page() -> str:
    """Return the buckets as Markdown: a picture, whose alternative text says the same."""
    return f"![{_buckets_alternative(moments())}](figures/buckets.svg)"


def _buckets_alternative(shown: list[Moment]) -> str:
    rows = (f"{each.seconds} s: {each.what}{f', {each.ended}' if each.ended else ''}." for each in shown)
    return "Three trees in nursery, middle and death row. " + " ".join(rows)


def _buckets(shown: list[Moment]) -> str:
    """Draw the buckets as columns, and the moments as rows from top to bottom."""
    lefts = (236, 346, 456)
    parts = [_text(20, 30, "time", size=13, of="dim"), _text(76, 30, "what happens", size=13, of="dim")]
    parts += [
        _text(left + 48, 30, name, size=13, of="dim", anchor="middle")
        for left, name in zip(lefts, ("nursery", "middle", "death row"), strict=True)
    ]
    for row, each in enumerate(shown):
        y = 44 + 44 * row
        parts += [_text(20, y + 23, f"{each.seconds} s", more=MONO), _text(76, y + 23, each.what)]
        for left, bucket in zip(lefts, each.buckets, strict=True):
            parts.append(f"<rect class='box' x='{left}' y='{y}' width='96' height='36' rx='4'/>")
            for place, name in enumerate(bucket):
                x = left + 22 + 27 * place
                parts.append(f"<circle class='open' cx='{x}' cy='{y + 18}' r='12'/>")
                parts.append(_text(x, y + 23, name, anchor="middle", of="on-open"))
        if each.ended:
            parts.append(_text(566, y + 23, each.ended, of="bad" if "TIMED" in each.ended else "good"))
    return _svg(760, 60 + 44 * len(shown), _buckets_alternative(shown), parts)
