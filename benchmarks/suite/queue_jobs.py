"""The apps of the task queues that `task_queues.py` times, and of their workers: jobs that do nothing.

A worker imports this file with `ACKER_JOBS_URL` and `ACKER_JOBS_SIDE` set, and finds its app as `app`.
"""

from __future__ import annotations

import os
from typing import Any, Final

from acker.remote.redis import RedisReplies

PLAIN, TOKENS, CHORD = "plain", "tokens", "chord"


class CeleryJobs:
    """An app of Celery.

    Parameters
    ----------
    url : str
        Of a database of Redis, which no other app uses.
    side : {"plain", "tokens", "chord"}
        Without acker, with it, or without it and with results, as chords need.
    """

    def __init__(self, url: str, side: str) -> None:
        from celery import Celery

        self._has_results = side == CHORD
        self.app: Any = Celery("jobs", broker=url, backend=url if self._has_results else None, set_as_current=False)
        self.app.conf.update(
            broker_connection_retry_on_startup=True, task_acks_late=True, task_ignore_result=not self._has_results
        )
        self.replies = RedisReplies(url) if side == TOKENS else None
        if self.replies is not None:
            import acker.remote.celery

            acker.remote.celery.install(self.app, self.replies)
        self.job: Any = self.app.task(name="job", shared=False)(_do_nothing)
        self.body: Any = self.app.task(name="body", shared=False)(_count)

    def close(self) -> None:
        """Disconnect."""
        if self.replies is not None:
            self.replies.close()
        if self._has_results:  # whose connections an app does not close
            consumer = self.app.backend.result_consumer
            consumer.stop()
            consumer.subscribed_to.clear()  # else a result that is collected later would connect again
            self.app.backend.client.close()
        self.app.close()


class DramatiqJobs:
    """A broker of Dramatiq; see `CeleryJobs`."""

    def __init__(self, url: str, side: str) -> None:
        import dramatiq
        from dramatiq.brokers.redis import RedisBroker

        make_broker: Any = RedisBroker  # its types are not complete
        actor: Any = dramatiq.actor
        self.app: Any = make_broker(url=url)
        self.replies = RedisReplies(url) if side == TOKENS else None
        if self.replies is not None:
            import acker.remote.dramatiq

            acker.remote.dramatiq.install(self.app, self.replies)
        self.job: Any = actor(_do_nothing, actor_name="job", broker=self.app)

    def close(self) -> None:
        """Disconnect."""
        if self.replies is not None:
            self.replies.close()
        self.app.close()


def _do_nothing(number: int) -> None:
    """Stand for the work of a job."""


def _count(results: list[None]) -> int:
    """Stand for the work of a chord's body."""
    return len(results)


QUEUES: Final[dict[str, Any]] = {"celery": CeleryJobs, "dramatiq": DramatiqJobs}

if "ACKER_JOBS_URL" in os.environ:
    app = QUEUES[os.environ["ACKER_JOBS_QUEUE"]](os.environ["ACKER_JOBS_URL"], os.environ["ACKER_JOBS_SIDE"]).app
