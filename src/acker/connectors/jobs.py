"""The jobs in other processes that the messages of a consumer wait for, and those that messages are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar

from acker.connectors.attempts import Attempt
from acker.connectors.reports import Reporter
from acker.errors import RuntimeStateError, TupleStateError
from acker.remote.jobs import Part, current, set_current, working_for
from acker.remote.replies import KeptOpen, RemoteTree, Replies

T = TypeVar("T")


class AwaitsJobs(Protocol):
    """The tree of a message."""

    attempt: Attempt
    remote: RemoteTree | None

    @property
    def owner(self) -> Any:
        """The consumer, whose `lock` is held while `remote` is set."""

    @property
    def alive(self) -> bool:
        """Whether its outcome still counts."""

    def forget_jobs(self) -> None:
        """Await no jobs any more."""


class Jobs:
    """Gives handles tokens, and lets code within their blocks find them.

    Parameters
    ----------
    replies : Replies, optional
        Where the jobs of messages report. Without, they are jobs of the tree that the message is a job of.
    reporter : Reporter, optional
        If messages are jobs of trees elsewhere.
    """

    def __init__(self, replies: Replies | None, reporter: Reporter | None) -> None:
        self._replies = replies
        self._reporter = reporter

    def token(self, tree: AwaitsJobs, name: str, begin: Callable[[], KeptOpen]) -> str:
        """Return the token of a further job of a message; see `Handle.token`.

        Parameters
        ----------
        tree : AwaitsJobs
        name : str
        begin : callable
            Makes the child of the message that waits for all of its jobs.
        """
        if self._replies is None:
            return self._token_elsewhere(tree, name)
        remote = tree.remote
        if remote is None:
            made = self._replies.begin_tree()
            with tree.owner.lock:
                remote = tree.remote = tree.remote or made
            if remote is not made:
                made.close()
            if not tree.alive:  # it ended meanwhile, and knew of no jobs to forget
                tree.forget_jobs()
        return remote.token(name, begin)

    @staticmethod
    def _token_elsewhere(tree: AwaitsJobs, name: str) -> str:
        job = tree.attempt.job
        if not tree.alive:
            raise TupleStateError(f"no token for {name or 'a job'}: its message is over")
        if job is None:
            raise RuntimeStateError(
                f"no token for {name or 'a job'}: its message has come without a token, so nobody waits for more. Give"
                " the Consumer replies=, such as RedisReplies(url)"
            )
        return job.token(name)

    def not_sent(self, tree: AwaitsJobs, reason: str) -> bool:
        """Fail what waits for a job that may not have been sent; return whether the message itself has to fail."""
        if tree.remote is not None:
            tree.remote.fail(reason)
        return tree.remote is None and self._replies is None and tree.attempt.job is not None

    def reset_timeout(self, tree: AwaitsJobs) -> None:
        """Give the tree its whole timeout again that a message is a job of."""
        if self._reporter is not None and tree.attempt.job is not None:
            self._reporter.reset_timeout(tree.attempt.job)

    def enter(self, part: Part, tree: AwaitsJobs) -> Part | None:
        """Let the code that follows work for a part, if it can have jobs; return what it worked for before."""
        before = current()
        set_current(self._awaited(part, tree))
        return before

    def _awaited(self, part: Part, tree: AwaitsJobs) -> Part | None:
        return part if self._replies is not None or tree.attempt.job is not None else None

    @staticmethod
    def leave(before: Part | None) -> None:
        """Let the code that follows work for what it worked for before."""
        set_current(before)

    def bound(self, part: Part, tree: AwaitsJobs, work: Callable[..., T]) -> Callable[..., T]:
        """Return a function that works for a part in whatever thread it is called."""
        return partial(_work_for, self._awaited(part, tree), work)


def _work_for(part: Part | None, work: Callable[..., T], /, *args: object, **kwargs: object) -> T:
    with working_for(part):
        return work(*args, **kwargs)
