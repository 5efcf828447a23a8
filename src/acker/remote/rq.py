"""RQ: jobs that a message or another job enqueues carry tokens, and report when they have ended for good."""

from __future__ import annotations

from typing import Any, ClassVar, Final, cast

from acker.errors import ArgumentTypeError
from acker.remote.jobs import Part
from acker.remote.replies import Replies
from acker.remote.runs import Runs, sending

try:
    import rq.job
except ImportError as error:
    raise ImportError("acker.remote.rq needs RQ: pip install 'acker[rq]'") from error

__all__ = ["Job"]

_META: Final = "acker"


class Job(rq.job.Job):
    """A job of RQ that the message of a consumer awaits, and what it enqueues as well.

    Derive from it, say where to report, and give the class to queues, where messages are consumed and in jobs, and to
    workers (``rq worker --job-class shop.Job``).

    Attributes
    ----------
    replies : Replies
        To the same server everywhere.
    unattributed : {"raise", "ignore"}
        What a worker does when a thread enqueues a job of which nothing says for which running job it does so: raise
        `UnattributedError`, or enqueue it, and nobody awaits it.

    Examples
    --------
    >>> class Job(acker.remote.rq.Job):                      # doctest: +SKIP
    ...     replies = RedisReplies("redis://...")
    >>> queue = Queue(connection=redis, job_class=Job)       # doctest: +SKIP
    """

    meta: dict[str, Any]
    replies: ClassVar[Replies]
    unattributed: ClassVar[str] = "raise"
    _runs: ClassVar[Runs]
    _sent_by: Part | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not hasattr(cls, "replies"):
            raise ArgumentTypeError(f"{cls.__name__} has no replies, such as RedisReplies(url)")
        cls._runs = Runs(cls.replies, "rq.", cls.unattributed)

    @classmethod
    def create(cls, *args: Any, **options: Any) -> Job:
        """Make a job, with a token if somebody awaits it."""
        if not hasattr(cls, "replies"):
            raise ArgumentTypeError("acker.remote.rq.Job has no replies: derive a class from it that has")
        made = cast("Job", super().create(*args, **options))
        name = made.func_name or "a job"
        old = made._token
        made._sent_by = cls._runs.sender(name, is_awaited=old is not None)
        token = cls._runs.token(made._sent_by, old, name)
        made._set_token(token)
        return made

    def to_dict(self, *args: Any, **options: Any) -> Any:
        """Return what RQ stores; if that cannot be stored, the tree fails."""
        if self._sent_by is None:  # it comes from Redis, and its name may be one that cannot be read
            return super().to_dict(*args, **options)
        with sending(self._sent_by, str(self.func_name)):
            return super().to_dict(*args, **options)

    def perform(self) -> Any:
        """Run the job; what it enqueues is awaited, up to the end of its callbacks."""
        run = self._runs.begin(id(self), self._token, self.func_name or "a job")
        return None if run.is_skipped else super().perform()

    # RQ stores the end of a job after each of these, so a job whose worker is killed between the two is abandoned, and
    # its second report changes nothing.

    def _handle_success(self, *args: Any, **options: Any) -> Any:
        run = self._runs.end(id(self))
        if run is not None and run.job is not None:
            run.job.finish()
        return super()._handle_success(*args, **options)

    def _handle_failure(self, exc_string: str, *args: Any, **options: Any) -> Any:
        lines = exc_string.strip().splitlines() or ["it failed"]
        run = self._runs.end(id(self))
        if run is None:
            self._runs.fail(self._token, self.func_name or "a job", lines[-1])  # of a process that is gone
        elif run.job is not None:
            run.job.finish(lines[-1])
        return super()._handle_failure(exc_string, *args, **options)

    def _handle_retry_result(self, *args: Any, **options: Any) -> Any:
        self._hand_on()
        return super()._handle_retry_result(*args, **options)

    def retry(self, *args: Any, **options: Any) -> Any:
        """Enqueue the job once more; this is a job that the run has made, unless the run was killed."""
        self._hand_on()
        return super().retry(*args, **options)

    def cancel(self, *args: Any, **options: Any) -> Any:
        """Cancel the job, which fails its tree."""
        found = super().cancel(*args, **options)
        self._runs.fail(self._token, self.func_name or "a job", "it was cancelled")
        return found

    def _hand_on(self) -> None:
        run = self._runs.end(id(self))
        if run is not None and run.job is not None:
            self._set_token(self._runs.token(run.job, self._token, self.func_name or "a job"))
            run.job.finish()

    @property
    def _token(self) -> str | None:
        found = (self.meta or {}).get(_META)
        return None if found is None else str(found)

    def _set_token(self, token: str | None) -> None:
        # A copy, as several jobs may have been made with one dictionary.
        self.meta = {name: value for name, value in (self.meta or {}).items() if name != _META}
        if token is not None:
            self.meta[_META] = token
