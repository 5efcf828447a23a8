"""The end of an exporter: by `close`, or with its block."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager
from types import TracebackType


class Exporter(AbstractContextManager["Exporter"]):
    """Shows figures until `close`, or the end of its ``with`` block."""

    @abstractmethod
    def close(self) -> None:
        """Show nothing from now on."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
