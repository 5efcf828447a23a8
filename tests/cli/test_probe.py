"""The look of a process at its own acker."""

from __future__ import annotations

from acker import ReferenceAcker
from acker.cli.probe import prober


def test_the_doctor_notices_a_native_module_that_counts_wrong(monkeypatch) -> None:
    look = prober()
    assert look()["error"] is None
    real = ReferenceAcker.ingest
    monkeypatch.setattr(
        ReferenceAcker,
        "ingest",
        lambda self, kind, root_id, value, *rest, **now: real(self, kind, root_id, value ^ 1, *rest, **now),
    )
    assert look()["error"] == "its results are not those of the reference"
