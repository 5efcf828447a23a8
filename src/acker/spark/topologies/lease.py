"""The lease of a checkpoint: one run has it and renews it, and a run that has lost it writes no more.

Each lease has an epoch, one more than that of the lease before it, and a file that is named by it. One run makes the
file, and it alone renews it, by a number in it that grows. So nobody compares clocks: a run that finds the lease of
another one looks whether it changes, and for how long it does not, by a clock that is never set.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import re
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from pyarrow import fs

from acker._engine import storage
from acker.errors import CheckpointError
from acker.spark.checksums import seal, unseal
from acker.spark.topologies.bolt_state import make_folder, telling

LEASE_SECS: Final = 30.0
# How often a lease is renewed while it lasts, and how often another run looks meanwhile.
_RENEWALS: Final = 10
_LOOKS: Final = 100
# Of a run: its epoch; and, where a file cannot be made unless there is none, its owner.
_NAME: Final = re.compile(r"(\d+)(?:-[0-9a-f]+)?")
_PROC: Final = Path("/proc")
_SEALED_AS: Final = "lease"

logger = logging.getLogger("acker.spark")


class ProcessId(NamedTuple):
    """A process of a machine, distinguished from all others as far as the system says.

    Attributes
    ----------
    pid : int
    started : int
        When it started, in ticks since the machine did.
    boot : str
        A random id of this start of the machine.
    namespaces : str
        In which the pid and the ticks count: each container has its own.
    """

    pid: int
    started: int
    boot: str
    namespaces: str


@dataclass(frozen=True)
class LeaseOwner:
    """The holder of a lease.

    Attributes
    ----------
    id : str
        Random: host names and pids of containers repeat.
    host : str
    pid : int
    since : float
        By its clock, in seconds since the epoch.
    lease_secs : float
    process : ProcessId or None
    renewals : int
    has_ended : bool
    """

    id: str
    host: str
    pid: int
    since: float
    lease_secs: float
    process: ProcessId | None = None
    renewals: int = 0
    has_ended: bool = False

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since, UTC)
        return f"process {self.pid} on {self.host}, which began at {since:%Y-%m-%d %H:%M:%S} UTC"

    def dumps(self) -> bytes:
        """Return what the file holds."""
        return seal(json.dumps(asdict(self)).encode(), _SEALED_AS)

    @classmethod
    def loads(cls, content: bytes) -> LeaseOwner | None:
        """Read what a file holds; None if it is damaged."""
        try:
            fields = json.loads(unseal(content, _SEALED_AS))
        except (EOFError, ValueError):
            return None
        process = fields.pop("process")
        return cls(**fields, process=None if process is None else ProcessId(*process))


class Lease:
    """The lease of a checkpoint, for one run.

    Parameters
    ----------
    filesystem : FileSystem
    folder : str
        On it, for the files of leases.
    root : str
        The checkpoint, for errors.
    secs : float
        After so long without a renewal another run may take the lease.
    monotonic, sleep : callable
        The clock by which this run waits.

    Attributes
    ----------
    epoch : int
        0 without a lease.
    lost : CheckpointError or None
        Why this run has lost the lease, once the thread that renews it knows.
    """

    def __init__(
        self,
        filesystem: fs.FileSystem,
        folder: str,
        root: str,
        *,
        secs: float = LEASE_SECS,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._filesystem = filesystem
        self._folder = folder
        self._root = root
        self._monotonic, self._sleep = monotonic, sleep
        self._owner = LeaseOwner(uuid.uuid4().hex, socket.gethostname(), os.getpid(), time.time(), secs, this_process())
        self.epoch = 0
        self._name = ""
        self.lost: CheckpointError | None = None
        self._lock = threading.Lock()
        self._stops = threading.Event()

    def acquire(self) -> int:
        """Take the lease, and return its epoch; wait while another run has it that may have died.

        Raises
        ------
        CheckpointError
            Another run renews it; or it cannot be written.
        """
        make_folder(self._filesystem, self._folder)
        watched: dict[str, bytes] = {}
        since = self._monotonic()
        while True:
            now = self._monotonic()  # before the look: this run may stand still after it, while the other one renews
            last, files = self._newest()
            held = {name: content for name, content in files.items() if not _is_over(LeaseOwner.loads(content))}
            secs = max((_secs_of(content) for content in held.values()), default=0.0)
            if not held or (held == watched and now - since >= secs):
                if self._create(last + 1):
                    for content in held.values():
                        logger.warning("%s: the lease of %s has ended; this run goes on", self._root, _who(content))
                    return self.epoch
                # Another one was quicker; so that two do not give way to each other again and again:
                self._sleep(random.uniform(0, self._owner.lease_secs / _LOOKS))
            elif held.keys() != watched.keys():
                watched, since = held, self._monotonic()
                self._tell_of_wait(held, secs)
            elif held != watched:
                raise CheckpointError(self._refusal(next(held[name] for name in held if held[name] != watched[name])))
            else:
                self._sleep(secs / _LOOKS)

    def keep(self) -> None:
        """Renew the lease from now on, on a thread of its own, until it is released or lost."""
        threading.Thread(target=self._keep, name="acker-lease", daemon=True).start()

    def check(self) -> None:
        """Check that this run has the lease.

        Raises
        ------
        CheckpointError
            Another run has it.
        """
        with self._lock:
            self._check()

    def renew(self) -> None:
        """Renew the lease; see `check` for the error."""
        with self._lock:
            self._check()
            self._owner = replace(self._owner, renewals=self._owner.renewals + 1)
            self._put(self._name, self._owner.dumps())

    def release(self) -> None:
        """Give the lease back, so that the next run need not wait. An error is logged: it costs that run a wait."""
        self._stops.set()
        with self._lock:
            if not self.epoch:
                return
            try:
                self._check()
                self._put(self._name, replace(self._owner, has_ended=True).dumps())
            except (CheckpointError, OSError) as error:
                if self.lost is None:
                    logger.warning("%s: the lease was not given back: %s", self._root, error)
            finally:
                self.epoch = 0

    # ---- another run -------------------------------------------------------------------------------------------------

    def _tell_of_wait(self, held: Mapping[str, bytes], secs: float) -> None:
        for content in held.values():
            logger.warning(
                "%s: %s has the lease of this checkpoint, and it cannot be told from here whether it still runs;"
                " waiting %g s for its lease to end: if it renews it, this run is refused, else this run goes on",
                self._root,
                _who(content),
                secs,
            )

    def _refusal(self, content: bytes) -> str:
        return (
            f"{self._root}: another run uses this checkpoint: {_who(content)}. It has renewed its lease just now, so it"
            " is alive; stop it, and start this run again, or give this run a checkpoint of its own"
        )

    def _check(self) -> None:
        if not self.epoch:
            raise CheckpointError(f"{self._root}: this run has given the checkpoint back, so it writes no more")
        last, files = self._newest()
        if last < self.epoch or not files:
            raise CheckpointError(
                f"{self._root}: the lease of this run is gone, so this run ends: somebody has removed"
                f" {self._folder}/{self._name}; remove a checkpoint when no run uses it"
            )
        owner = LeaseOwner.loads(files.get(self._name, b""))
        # A file that is damaged is still this run's: its next renewal mends it.
        if last > self.epoch or self._name not in files or (owner is not None and owner.id != self._owner.id):
            new = next(iter(files.values()))
            raise CheckpointError(
                f"{self._root}: this run has lost the checkpoint to another one, and ends; it commits nothing more. It"
                f" had not renewed its lease for {self._owner.lease_secs:g} s, and then another one took it over:"
                f" {_who(new)}. Let one run use it"
            )

    def _keep(self) -> None:
        """Renew again and again. A disk that is full is no loss: nobody else can write there either."""
        while not self._stops.wait(self._owner.lease_secs / _RENEWALS):
            try:
                self.check()
            except CheckpointError as error:
                self.lost = None if self._stops.is_set() else error
                return
            except OSError as error:
                logger.warning("%s: the lease cannot be read: %s", self._root, error)
                continue
            try:
                self.renew()
            except (CheckpointError, OSError) as error:
                logger.warning("%s: the lease was not renewed: %s", self._root, error)

    # ---- files -------------------------------------------------------------------------------------------------------

    def _names(self) -> dict[str, int]:
        """Return the files of leases, and their epochs."""
        selector = fs.FileSelector(self._folder, allow_not_found=True)
        found = (_NAME.fullmatch(each.base_name) for each in self._filesystem.get_file_info(selector))
        return {match[0]: int(match[1]) for match in found if match is not None}

    def _newest(self) -> tuple[int, dict[str, bytes]]:
        """Return the last epoch, and what its files hold: where two are made at once, there are two for a moment."""
        names = self._names()
        last = max(names.values(), default=0)
        files = {}
        for name, epoch in names.items():
            if epoch == last:
                with contextlib.suppress(FileNotFoundError):
                    files[name] = self._get(name)
        return last, files

    def _get(self, name: str) -> bytes:
        with self._filesystem.open_input_stream(f"{self._folder}/{name}") as stream:
            return stream.read()

    def _put(self, name: str, content: bytes) -> None:
        path = f"{self._folder}/{name}"
        with telling(path):
            if isinstance(self._filesystem, fs.LocalFileSystem):
                storage.write(path, [content])
                return
            # In place: where a move is not atomic, there would be no lease for a moment.
            with self._filesystem.open_output_stream(path) as stream:
                stream.write(content)

    def _create(self, epoch: int) -> bool:
        """Make the file of a lease, if nobody has; return whether it is this run's. Older ones are removed then."""
        self._owner = replace(self._owner, since=time.time())
        if isinstance(self._filesystem, fs.LocalFileSystem):
            self._name = str(epoch)
            is_new = self._create_local()
        else:
            # Nothing can be made on condition that it is new. So each makes a file of its own, and looks: of two, the
            # later one, at least, sees the other's.
            self._name = f"{epoch}-{self._owner.id}"
            self._put(self._name, self._owner.dumps())
            is_new = all(other == self._name or older < epoch for other, older in self._names().items())
            if not is_new:
                self._filesystem.delete_file(f"{self._folder}/{self._name}")
        if is_new:
            self.epoch = epoch
            for name, older in self._names().items():
                if older < epoch:
                    with contextlib.suppress(FileNotFoundError):
                        self._filesystem.delete_file(f"{self._folder}/{name}")
        return is_new

    def _create_local(self) -> bool:
        """Make a file by `O_EXCL`, which is atomic on network file systems, too."""
        path = Path(self._folder, self._name)
        with telling(str(path)):
            try:
                file = path.open("xb", buffering=0)
            except FileExistsError:
                return False
            try:
                with file:
                    file.write(self._owner.dumps())
                    os.fsync(file.fileno())
            except BaseException:
                path.unlink(missing_ok=True)
                raise
        return True


def _who(content: bytes) -> str:
    owner = LeaseOwner.loads(content)
    return "a run that its damaged lease does not name" if owner is None else str(owner)


def _secs_of(content: bytes) -> float:
    owner = LeaseOwner.loads(content)
    return LEASE_SECS if owner is None else owner.lease_secs


def _is_over(owner: LeaseOwner | None) -> bool:
    """Return whether a lease has ended for certain."""
    if owner is None:
        return False
    return owner.has_ended or (owner.process is not None and has_died(owner.process))


# ---- processes -------------------------------------------------------------------------------------------------------


def this_process() -> ProcessId | None:
    """Return what distinguishes this process; None where the system does not tell."""
    if sys.platform != "linux":
        return None
    try:
        # Where /proc is that of another container, its numbers are of other processes.
        if str((_PROC / "self").readlink()) != str(os.getpid()):
            return None
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        namespaces = [
            str(path.readlink()) for name in ("pid", "time") if (path := _PROC / f"self/ns/{name}").is_symlink()
        ]
    except OSError:
        return None
    started = _started(os.getpid())
    return None if not started or not boot else ProcessId(os.getpid(), started, boot, " ".join(namespaces))


def has_died(process: ProcessId) -> bool:
    """Return whether a process has died for certain: one of this start of this machine, and of this container."""
    here = this_process()
    if here is None or (process.boot, process.namespaces) != (here.boot, here.namespaces):
        return False
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # it is another user's
        pass
    started = _started(process.pid)
    return started is not None and started != process.started


def _started(pid: int) -> int | None:
    """Return when a process started, 0 if it has ended and its parent has not asked how; None if that is hidden."""
    try:
        stat = (_PROC / f"{pid}/stat").read_bytes()
    except OSError:
        return None
    state, *fields = stat.rpartition(b")")[2].split()
    return 0 if state in (b"Z", b"X") else int(fields[18])
