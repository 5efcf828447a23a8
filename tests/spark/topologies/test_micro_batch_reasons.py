"""The reasons of trees that a micro-batch leaves open."""

from __future__ import annotations

from acker.observe.reasons import ReasonKind
from acker.spark.topologies.micro_batch_job import _why_open
from tests.spark.topologies.faulty import Charge, Shop


def test_a_bolt_that_forgot_tuples_is_named_with_the_line_of_its_method() -> None:
    reason = _why_open([{"task": 2, "executed": 9, "acked": 6, "failed": 1}], Shop.graph())
    assert (reason.kind, reason.component) == (ReasonKind.TIMED_OUT, "charge")
    assert reason.exception.endswith(": charge neither acked nor failed 2 tuples")
    assert reason.line == f"faulty.py:{Charge.process.__code__.co_firstlineno} in Charge.process"


def test_trees_that_no_bolt_has_kept_name_none() -> None:
    reason = _why_open([{"task": 2, "executed": 9, "acked": 8, "failed": 1}], Shop.graph())
    assert (reason.component, reason.line) == (None, None)
