"""Passwords and tokens, which no error and no log may show."""

from __future__ import annotations

from collections.abc import Iterable


class Secrets:
    """Texts that no error and no log may show.

    Parameters
    ----------
    values : iterable
        Empty ones and None do not count.
    """

    def __init__(self, values: Iterable[object]) -> None:
        self._texts = [str(value) for value in values if value]

    def hide(self, text: object) -> str:
        """Return a text without the secrets."""
        shown = str(text)
        for secret in self._texts:
            shown = shown.replace(secret, "***")
        return shown
