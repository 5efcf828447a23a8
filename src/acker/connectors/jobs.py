"""The jobs in other processes that the messages of a consumer wait for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Protocol, TypeVar

from acker.remote.jobs import Part, current, set_current, working_for
from acker.remote.replies import KeptOpen, RemoteTree, Replies

T = TypeVar("T")


class AwaitsJobs(Protocol):
    """The tree of a message."""

    lock: Lock
    remote: RemoteTree | None

    @property
    def alive(self) -> bool:
        """Whether its outcome still counts."""

    def forget_jobs(self) -> None:
        """Await no jobs any more."""


class Jobs:
    """Gives handles tokens, and lets code within their blocks find them.

    Parameters
    ----------
    replies : Replies
    """

    def __init__(self, replies: Replies) -> None:
        self._replies = replies

    def token(self, tree: AwaitsJobs, name: str, begin: Callable[[], KeptOpen]) -> str:
        """Return the token of a further job of a message; see `Handle.token`.

        Parameters
        ----------
        tree : AwaitsJobs
        name : str
        begin : callable
            Makes the child of the message that waits for all of its jobs.
        """
        remote = tree.remote
        if remote is None:
            made = self._replies.begin_tree()
            with tree.lock:
                remote = tree.remote = tree.remote or made
            if remote is not made:
                made.close()
            if not tree.alive:  # it ended meanwhile, and knew of no jobs to forget
                tree.forget_jobs()
        return remote.token(name, begin)

    @staticmethod
    def enter(part: Part) -> Part | None:
        """Let the code that follows work for a part; return what it worked for before."""
        before = current()
        set_current(part)
        return before

    @staticmethod
    def leave(before: Part | None) -> None:
        """Let the code that follows work for what it worked for before."""
        set_current(before)

    @staticmethod
    def bound(part: Part, work: Callable[..., T]) -> Callable[..., T]:
        """Return a function that works for a part in whatever thread it is called."""
        return partial(_work_for, part, work)


def _work_for(part: Part, work: Callable[..., T], /, *args: object, **kwargs: object) -> T:
    with working_for(part):
        return work(*args, **kwargs)
