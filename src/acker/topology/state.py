"""KeyValueState, the state of one task of a bolt, and the changes that a runtime writes of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol, Self

from acker._flow import RecordingDict

__all__ = ["KeyValueState", "StateChanges", "StateView"]

_ABSENT: Final = object()


class StateChanges(NamedTuple):
    """The changes of a state.

    Attributes
    ----------
    values : dict
        The keys that were set, with their present values.
    removed : set
        The keys that were removed.
    """

    values: dict[Any, Any]
    removed: set[Any]


class StateView(Protocol):
    """An index that a bolt has made from its whole state, and that follows its changes."""

    def follow(self, changes: StateChanges) -> None:
        """Take over what another worker has changed; the state has it already."""

    def agrees_with(self, changes: StateChanges) -> bool:
        """Return whether this says the same as the state about the keys that have changed."""


class KeyValueState(RecordingDict):
    """The state of one task of a bolt: a dict whose changes a runtime can write. Storm's KeyValueState.

    Keys are hashable, and keys and values can be pickled. A runtime that writes changes records the keys that were set
    or removed, and also those whose values were read and could be changed in place: all but numbers, str, bytes, None
    and tuples of these. So ``state[key].append(x)`` is noticed. A reference that a bolt keeps is not: it reads the
    value again, or sets it, for each tuple by which it changes.

    Parameters
    ----------
    values : mapping
        The content at first, which counts as unchanged.
    records : bool
        Whether changes are recorded.

    Attributes
    ----------
    view : StateView or None
        For bolts that would otherwise read the whole state whenever they get it. It stays as long as it agrees.
    """

    def __init__(self, values: Mapping[Any, Any] | None = None, *, records: bool = True) -> None:
        super().__init__(() if values is None else values)
        self.view: StateView | None = None
        self.changed = set() if records else None

    # Storm's names.

    def put(self, key: Any, value: Any) -> None:
        """Set a value: ``state[key] = value``."""
        self[key] = value

    def delete(self, key: Any) -> Any:
        """Remove a key, if it is there; return its value or None."""
        return self.pop(key, None)

    def peek(self, key: Any, default: Any = None) -> Any:
        """Return a value as `get` does. The caller does not change it, so the key does not count as changed."""
        return dict.get(self, key, default)

    # For runtimes.

    def changes(self) -> StateChanges:
        """Return what may have changed since the last `take_changes`, `restore` or the beginning.

        Without ``records``, nothing.
        """
        values, removed = {}, set()
        for key in self.changed or ():
            value = dict.get(self, key, _ABSENT)
            if value is _ABSENT:
                removed.add(key)
            else:
                values[key] = value
        return StateChanges(values, removed)

    def take_changes(self) -> StateChanges:
        """Return the `changes`, and count everything as unchanged from now on."""
        taken = self.changes()
        if self.changed is not None:
            self.changed.clear()
        # A bolt may have changed what its base class keeps here.
        if self.view is not None and not self.view.agrees_with(taken):
            self.view = None
        return taken

    def follow(self, changes: StateChanges) -> None:
        """Take over what another worker has changed; it counts as unchanged."""
        dict.update(self, changes.values)
        for key in changes.removed:
            dict.pop(self, key, None)
        if self.view is not None:
            self.view.follow(changes)

    def snapshot(self) -> dict[Any, Any]:
        """Return a plain dict of all keys and values. The values themselves are not copied."""
        return dict.copy(self)

    def restore(self, values: Mapping[Any, Any]) -> None:
        """Replace the whole content, which then counts as unchanged."""
        dict.clear(self)
        dict.update(self, values)
        self.view = None
        if self.changed is not None:
            self.changed.clear()

    # The methods of a dict that read or change several keys, or only sometimes.

    def _record(self, keys: Iterable[Any]) -> None:
        if self.changed is not None:
            self.changed.update(keys)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """Return a value; set it first if the key is missing."""
        if key not in self:
            self[key] = default
        return self[key]

    def pop(self, key: Any, *default: Any) -> Any:
        """Remove a key and return its value; if it is missing, the default or KeyError."""
        if key in self:
            self._record((key,))
        return super().pop(key, *default)

    def popitem(self) -> tuple[Any, Any]:
        """Remove the key that was added last; return it with its value."""
        key, value = super().popitem()
        self._record((key,))
        return key, value

    def clear(self) -> None:
        """Remove all keys."""
        self._record(self)
        super().clear()

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Set several values, as `dict.update` does."""
        values = dict(*args, **kwargs)
        super().update(values)
        self._record(values)

    def __ior__(self, values: Any) -> Self:  # type: ignore[misc]
        self.update(values)
        return self

    def values(self) -> Any:
        """Return a view of the values."""
        self.record_read()
        return super().values()

    def items(self) -> Any:
        """Return a view of the keys and values."""
        self.record_read()
        return super().items()

    def copy(self) -> dict[Any, Any]:
        """Return a plain dict of all keys and values."""
        self.record_read()
        return self.snapshot()

    def __reduce__(self) -> Any:
        """Copy or pickle the content, without the record of changes."""
        return type(self), (self.snapshot(),)
