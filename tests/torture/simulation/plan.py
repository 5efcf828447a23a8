"""Plans: a seed's topology of random shape, the behaviour of its components, and the faults."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

# The keys that tuples carry, for fields groupings.
KEYS: Final = 5
# Bolts that need their ticks.
_NEVER_ARROW: Final = ("batching", "keeper")
# Hops that a tuple of a spout has left: a bolt emits only while there are some, so that loops come to an end.
HOPS_MAX: Final = 5

GROUPINGS: Final = ("shuffle", "fields", "all", "global_", "none", "local_or_shuffle", "custom")
SPOUT_KINDS: Final = ("untracked", "tracked", "tracked", "async", "retrying", "reliable", "reliable")
BOLT_KINDS: Final = ("auto", "auto", "async", "manual", "aggregate", "batching", "keeper")


@dataclass(frozen=True)
class SpoutPlan:
    """A spout.

    Attributes
    ----------
    kind : {"untracked", "tracked", "async", "retrying", "reliable", "batches", "reliable batches"}
        "async" is a tracked one whose `next_tuple` is a coroutine; "retrying" one that emits what failed in `fail`.
        "batches" is a tracked one that emits Arrow batches.
    tuples : int
        How many each task emits.
    burst : int
        How many `next_tuple` emits at most.
    eager : bool
        It never emits none.
    streams : tuple of str
        "direct" is a direct one.
    raises : float
        How often `next_tuple`, `ack` and `fail` raise, which restarts the topology.
    """

    name: str
    par: int
    executors: int
    kind: str
    tuples: int
    burst: int
    eager: bool
    streams: tuple[str, ...]
    raises: float


@dataclass(frozen=True)
class Input:
    """A subscription of a bolt."""

    source: str
    stream: str
    grouping: str


@dataclass(frozen=True)
class BoltPlan:
    """A bolt.

    Attributes
    ----------
    kind : {"auto", "async", "manual", "aggregate", "batching", "keeper", "arrow"}
        "auto" leaves anchors and acks to the runtime, "async" too, from a coroutine; "manual" does not; "aggregate"
        emits one tuple for several; "batching" is a BatchingBolt; a "keeper" holds tuples for some ticks and resets
        their timeouts meanwhile; "arrow" is an ArrowBolt.
    inputs : tuple of Input
    tick_share : float or None
        Time between ticks, as a share of the message timeout.
    together : int
        How many tuples an "aggregate" waits for, and for how many ticks a "keeper" holds one.
    raises, fails, holds, unanchored, escapes : float
        How often `process` raises, fails a tuple, never acks one, emits without anchors, raises what nobody catches.
    """

    name: str
    par: int
    executors: int
    kind: str
    streams: tuple[str, ...]
    inputs: tuple[Input, ...]
    tick_share: float | None
    together: int
    raises: float
    fails: float
    holds: float
    unanchored: float
    escapes: float


@dataclass(frozen=True)
class Faults:
    """What befalls the runtime itself; each number is a chance before each step, unless it says otherwise.

    Attributes
    ----------
    slow : float
        That an executor or an acker becomes slow.
    freeze : float
        That one hangs, for a while.
    reorder, delay : float
        That messages which wait for an acker change places, or arrive later.
    restore : float
        That an acker is lost and goes on from its last snapshot.
    jump : float
        That the clock jumps on.
    crashes : int
        How many exceptions may escape from components.
    takes_ms : int
        How many milliseconds of the clock a call of a component takes at most. Meanwhile what was done has to leave.
    """

    slow: float = 0.0
    freeze: float = 0.0
    reorder: float = 0.0
    delay: float = 0.0
    restore: float = 0.0
    jump: float = 0.0
    crashes: int = 0
    takes_ms: int = 0


@dataclass(frozen=True)
class Risks:
    """What the faults of a run excuse.

    Attributes
    ----------
    times_out : bool
        A tree may time out although its work was done: its messages are late or lost.
    hears_late : frozenset of str
        The spouts that hear of an outcome late, since they wait for something: what was missing may be done by then.
    rejects : bool
        Ackers may reject trees.
    loses : bool
        Deliveries may get lost: with the queues of a restart, or in those of a task that hangs until the end.
    """

    times_out: bool
    hears_late: frozenset[str]
    rejects: bool
    loses: bool


@dataclass(frozen=True)
class Plan:
    """A whole run.

    Attributes
    ----------
    end : {"drained", "stop", "abort"}
    end_after : int
        After how many steps "stop" and "abort" come.
    """

    seed: int
    spouts: tuple[SpoutPlan, ...]
    bolts: tuple[BoltPlan, ...]
    conf: dict[str, Any]
    faults: Faults
    end: str
    end_after: int

    @property
    def risks(self) -> Risks:
        """What the faults excuse."""
        faults = self.faults
        late = faults.slow or faults.freeze or faults.delay or faults.restore or faults.jump or faults.takes_ms
        # Above its high-water mark an acker rejects trees, and drops messages of those that it has not heard of.
        crowded = self.conf["topology.acker.high_water"] is not None
        return Risks(
            times_out=bool(late) or crowded,
            hears_late=frozenset(spout.name for spout in self.spouts if spout.kind == "async"),
            rejects=crowded,
            loses=bool(faults.crashes) or self.end != "drained",
        )

    @property
    def has_batches(self) -> bool:
        """Whether some components may pass Arrow batches."""
        return "topology.arrow.batch.rows" in self.conf

    @property
    def timeout_ns(self) -> int:
        """The message timeout."""
        return int(self.conf["topology.message.timeout.secs"] * 1e9)

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {self.end} after {self.end_after} steps", f"  {self.faults}", f"  {self.conf}"]
        return "\n".join([*lines, *(f"  {one}" for one in (*self.spouts, *self.bolts))])


def plan_of(seed: int) -> Plan:
    """Return what a seed stands for."""
    rng = random.Random(seed)
    faults, conf = _faults(rng), _conf(rng)
    calm = rng.random() < 0.3  # nothing fails either, so every tree has to be acked
    spouts = tuple(_spout(rng, number, faults) for number in range(rng.choice((1, 1, 2, 3))))
    if rng.random() < 0.05:  # more than the queues hold
        spouts = (replace(spouts[0], par=1, executors=1, kind="untracked", tuples=200, eager=True), *spouts[1:])
    bolts = _bolts(rng, spouts, faults, calm=calm)
    end = rng.choices(("drained", "stop", "abort"), (8, 2, 1))[0]
    if seed % 4 == 3:
        faults = replace(faults, takes_ms=rng.choice((1, 3, 40)))
    return Plan(seed, spouts, bolts, conf, faults, end, rng.randrange(400))


def with_batches(plan: Plan) -> Plan:
    """Return the plan with Arrow batches in place of some tuples."""
    rng = random.Random(plan.seed)
    spouts = {"untracked": "batches", "tracked": "batches", "reliable": "reliable batches"}
    return replace(
        plan,
        spouts=tuple(
            replace(spout, kind=spouts[spout.kind]) if spout.kind in spouts and rng.random() < 0.6 else spout
            for spout in plan.spouts
        ),
        bolts=tuple(
            replace(bolt, kind="arrow") if bolt.kind not in _NEVER_ARROW and rng.random() < 0.6 else bolt
            for bolt in plan.bolts
        ),
        conf=plan.conf | {"topology.arrow.batch.rows": rng.choice((1, 3, 20, 8192))},
    )


def _some(rng: random.Random, chance: float, most: float) -> float:
    """Return 0, or with that chance a number up to the given one."""
    return rng.uniform(0, most) if rng.random() < chance else 0.0


def _faults(rng: random.Random) -> Faults:
    if rng.random() < 0.35:
        return Faults(reorder=_some(rng, 0.5, 0.3))
    return Faults(
        slow=_some(rng, 0.3, 0.02),
        freeze=_some(rng, 0.3, 0.02),
        reorder=_some(rng, 0.5, 0.3),
        delay=_some(rng, 0.3, 0.1),
        restore=_some(rng, 0.3, 0.03),
        jump=_some(rng, 0.2, 0.02),
        crashes=rng.choice((0, 0, 0, 1, 2, 7)),
    )


def _conf(rng: random.Random) -> dict[str, Any]:
    return {
        "topology.acker.tasks": rng.choice((1, 1, 2, 3)),
        "topology.acker.buckets": rng.choice((2, 3, 3, 4)),
        "topology.acker.high_water": rng.choice((1, 4)) if rng.random() < 0.1 else None,
        "topology.message.timeout.secs": rng.choice((0.75, 5, 30)),
        "topology.max.spout.pending": rng.choice((1, 2, 5, 20, None)),
        "topology.executor.receive.buffer.size": rng.choice((1, 2, 8, 64)),
        "topology.async.max.concurrency": rng.choice((1, 4, 20)),
        "topology.max.restarts": rng.choice((1, 5)),
    }


def _width(rng: random.Random) -> tuple[int, int]:
    par = rng.choice((1, 1, 2, 3, 4))
    return par, rng.randint(1, par)


def _streams(rng: random.Random) -> tuple[str, ...]:
    return ("default", *(name for name in ("side", "direct") if rng.random() < 0.25))


def _spout(rng: random.Random, number: int, faults: Faults) -> SpoutPlan:
    par, executors = _width(rng)
    return SpoutPlan(
        name=f"spout{number + 1}",
        par=par,
        executors=executors,
        kind=rng.choice(SPOUT_KINDS),
        tuples=rng.randint(1, 6),
        burst=rng.choice((1, 1, 2, 3)),
        eager=False,
        streams=_streams(rng),
        raises=_some(rng, 0.3, 0.05) if faults.crashes else 0.0,
    )


def _bolts(rng: random.Random, spouts: Sequence[SpoutPlan], faults: Faults, *, calm: bool) -> tuple[BoltPlan, ...]:
    names = [f"bolt{number + 1}" for number in range(rng.randint(1, 6))]
    streams = {name: _streams(rng) for name in names} | {spout.name: spout.streams for spout in spouts}
    bolts = []
    for place, name in enumerate(names):
        before = [spout.name for spout in spouts] + names[:place]
        sources = rng.sample(before, min(len(before), rng.choice((1, 1, 2, 3))))
        if rng.random() < 0.15:
            sources.append(rng.choice(names[place:]))  # a loop
        inputs = tuple(_input(rng, one, streams[one]) for one in sources)
        bolts.append(_bolt(rng, name, inputs, streams[name], faults, calm=calm))
    return tuple(bolts)


def _input(rng: random.Random, source: str, streams: tuple[str, ...]) -> Input:
    stream = rng.choice(streams)
    return Input(source, stream, "direct" if stream == "direct" else rng.choice(GROUPINGS))


def _bolt(
    rng: random.Random, name: str, inputs: tuple[Input, ...], streams: tuple[str, ...], faults: Faults, *, calm: bool
) -> BoltPlan:
    par, executors = _width(rng)
    kind = rng.choice(BOLT_KINDS)
    return BoltPlan(
        name=name,
        par=par,
        executors=executors,
        kind=kind,
        streams=streams,
        inputs=inputs,
        tick_share=rng.choice((0.25, 0.4)) if kind in {"batching", "keeper"} or rng.random() < 0.1 else None,
        together=rng.randint(1, 4),
        raises=0.0 if calm else _some(rng, 0.4, 0.15),
        fails=0.0 if calm or kind == "auto" else _some(rng, 0.4, 0.15),
        holds=0.0 if calm or kind != "manual" else _some(rng, 0.4, 0.1),
        unanchored=_some(rng, 0.3, 0.5),
        escapes=_some(rng, 0.5, 0.05) if faults.crashes and kind == "manual" else 0.0,
    )
