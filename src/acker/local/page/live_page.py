"""The live page of a runtime, from its start to its end. Without a page nothing of it is imported."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from acker.local.calls import running_calls
from acker.local.tracing import Sampler
from acker.observe.calls import UserCall
from acker.observe.failures import FailureLog
from acker.ui.opening import open_page
from acker.ui.options import PageChoice, live_page_of
from acker.ui.recorder import Recorder

if TYPE_CHECKING:
    from acker.local.page.actions import Observed
    from acker.local.wiring import ExecutorSet
    from acker.observe.headline import RunningJob
    from acker.observe.holders import Holder
    from acker.ui.server import LiveServer


class RuntimePage:
    """The live page that a runtime may have.

    Parameters
    ----------
    ui : LivePage, bool, int, str or None
        As for `LocalRuntime`.

    Attributes
    ----------
    failures : FailureLog or None
        Recorded by the spouts for the page; None without one.
    server : LiveServer or None
        Between `open` and the end of the program.
    """

    def __init__(self, ui: PageChoice) -> None:
        self._options = live_page_of(ui)
        self.failures = None if self._options is None else FailureLog()
        self.server: LiveServer | None = None
        self._recorder: Recorder | None = None

    def open(self, runtime: Observed, sampler: Sampler | None) -> None:
        """Listen, and print the URL; without a page do nothing.

        Raises
        ------
        PageError
            The address cannot be had.
        """
        if self._options is None or self.failures is None:
            return
        from acker.local.page.live_view import RuntimeView

        view = RuntimeView(runtime, self.failures, sampler, values=self._options.values)
        if self._options.serve:
            self.server = open_page(view, self._options)
        else:
            self._recorder = Recorder(view, self._options.interval_secs)

    def close(self) -> None:
        """Show the end, and stop listening."""
        for each in (self.server, self._recorder):
            if each is not None:
                each.close()

    def recorded(self) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """Return the last reading, empty if there is none, and the history of the charts, once it is closed."""
        if self._recorder is not None:
            return self._recorder.latest, self._recorder.history()
        return ({}, None) if self.server is None else self.server.recorded()


class HasPage:
    """A runtime that may have a live page.

    Attributes
    ----------
    live : RuntimePage
    """

    live: RuntimePage

    def find_holders(
        self, executors: ExecutorSet, roots: Collection[int], calls: Mapping[int, UserCall], now_ns: int
    ) -> dict[int, list[Holder]]:
        """Return who holds the tuples of open trees, by their root ids. Any thread may call it."""
        from acker.local.page.holders import find_holders

        return find_holders(executors, roots, calls, now_ns)

    def find_calls(self, executors: ExecutorSet, now_ns: int) -> Mapping[int, UserCall]:
        """Return the calls of user code that run now, by task. Any thread may call it."""
        return running_calls(executors, now_ns)

    def find_job(self, now_ns: int) -> RunningJob | None:  # noqa: ARG002
        """Return None: nothing runs on Spark."""
        return None

    def more_tables(self) -> list[dict[str, Any]]:
        """Return nothing: the page has all in its own parts."""
        return []

    @property
    def page(self) -> LiveServer | None:
        """The live page from the start on, if `ui` asked for one."""
        return self.live.server
