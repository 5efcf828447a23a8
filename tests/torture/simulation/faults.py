"""Faults that a simulation injects between two steps: hangs, late messages, lost ackers, jumps of the clock."""

from __future__ import annotations

import random
from typing import Any, Final

from acker.local import LocalRuntime
from acker.testing.clock import ManualClock
from acker.testing.scheduler import Scheduler
from tests.torture.simulation.components import World

# Up to how many seconds something hangs, messages are late, a step takes, or the clock jumps. Some of that is longer
# than some of the timeouts.
_HANG_SECS_MAX: Final = 3.0
_PREEMPTED_SECS_MAX: Final = 0.6
_DELAY_SECS_MAX: Final = 1.5
_SLOW_SECS_MAX: Final = 0.4
_JUMP_SECS_MAX: Final = 40.0
_SNAPSHOTS: Final = 0.1


class Injector:
    """Injects the faults of a plan.

    It throws its dice before each step, and has dice of its own: a plan without faults runs as if it were not there.
    """

    def __init__(self, world: World, runtime: LocalRuntime, scheduler: Scheduler, clock: ManualClock) -> None:
        self._world = world
        self._runtime = runtime
        self._scheduler = scheduler
        self._clock = clock
        self._rng = random.Random(~world.plan.seed)
        self._ackers = {acker.name for acker in runtime.ackers}
        self._snapshots: dict[str, bytes] = {}
        self._late: list[tuple[Any, Any]] = []  # an acker's inbox, and the batch for it
        faults = world.plan.faults
        kinds = (
            (faults.reorder, self._reorder),
            (faults.delay, self._delay),
            (faults.restore, self._restore),
            (_SNAPSHOTS if faults.restore else 0.0, self._take_snapshot),
            (faults.freeze, self._freeze),
            (faults.slow, self._slow_down),
            (faults.jump, self._jump),
        )
        self._kinds = [(chance, fault) for chance, fault in kinds if chance]
        self._while_running = (self._delay, self._jump)

    def inject(self) -> None:
        """Inject faults by chance, before the next step."""
        running = self._runtime.state == "running"
        for chance, fault in self._kinds:
            # What ends waits for some seconds for the rest; that nobody gets a turn within them is not to be tested.
            if self._rng.random() < chance and (running or fault not in self._while_running):
                fault()

    def stop(self, *, leave_frozen: bool) -> None:
        """Inject nothing more; deliver what is late."""
        self._kinds = []
        while self._late:
            self._deliver(self._late[0])
        if not leave_frozen:
            self._scheduler.thaw()
        for acker in self._runtime.ackers:  # runs no user code, so it never hangs for good
            self._scheduler.thaw(acker.name)

    def _letters(self) -> tuple[Any, Any] | None:
        """Return the inbox of some acker and the batches in it, if there are any."""
        inbox = self._rng.choice(self._runtime.ackers).inbox
        return (inbox, inbox._chunks) if inbox._chunks else None

    def _reorder(self) -> None:
        found = self._letters()
        if found is not None:
            self._rng.shuffle(found[1])

    def _delay(self) -> None:
        found = self._letters()
        if found is not None:
            inbox, batches = found
            batch = batches[self._rng.randrange(len(batches))]
            batches.remove(batch)
            late = (inbox, batch)
            self._late.append(late)
            self._scheduler.call_later(self._rng.uniform(0, _DELAY_SECS_MAX), lambda: self._deliver(late))
            self._world.tell(f"a batch of {len(batch)} messages will be late")

    def _deliver(self, late: tuple[Any, Any]) -> None:
        if late in self._late:
            self._late.remove(late)
            inbox, batch = late
            inbox._chunks.append(batch)
            inbox.signal.set()

    def _take_snapshot(self) -> None:
        acker = self._rng.choice(self._runtime.ackers)
        self._snapshots[acker.name] = acker.acker.snapshot()

    def _restore(self) -> None:
        acker = self._rng.choice(self._runtime.ackers)
        blob = self._snapshots.get(acker.name)
        if blob is not None and acker.crash is None:
            acker.restore(blob)
            self._world.tell(f"{acker.name} is lost and goes on from a snapshot")

    def _random_part(self) -> str | None:
        names = [one.name for one in self._runtime.steppables if one is not self._runtime.lifecycle]
        return self._rng.choice(names) if names else None

    def _freeze(self) -> None:
        name = self._random_part()
        if name is not None:
            # An acker runs nobody's code, so it does not hang for longer than a busy machine makes it.
            secs_max = _HANG_SECS_MAX if name not in self._ackers else _PREEMPTED_SECS_MAX
            self._scheduler.freeze(name)
            self._scheduler.call_later(self._rng.uniform(0, secs_max), lambda: self._thaw(name))
            self._world.tell(f"{name} hangs")

    def _thaw(self, name: str) -> None:
        if self._kinds:  # else who hangs now hangs for good
            self._scheduler.thaw(name)

    def _slow_down(self) -> None:
        name, seconds = self._random_part(), self._rng.choice((0, self._rng.uniform(0, _SLOW_SECS_MAX)))
        if name is not None:
            self._scheduler.slow_down(name, seconds)
            self._world.tell(f"{name} takes {seconds:.3f} s a step")

    def _jump(self) -> None:
        self._clock.advance(self._rng.uniform(0, _JUMP_SECS_MAX))
        self._world.tell("the clock has jumped")
