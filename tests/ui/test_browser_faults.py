"""Faults of consumers and of topologies in this process: the headline of the page alone names each, in a browser."""

from __future__ import annotations

import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.ui.shop import consumer, local

expect.set_options(timeout=120_000)


SLOW = pytest.mark.slow
LINE = r"shop\.py:\d+ in charge"


@pytest.mark.parametrize(
    ("run", "kind", "text"),
    [
        pytest.param(
            local,
            "hung",
            rf"pay\[2\] hangs: it has been in one call with a tuple of orders .message order-7. at {LINE} for",
            marks=SLOW,
        ),
        pytest.param(local, "slow", r"At its limit: \d of 8 trees are pending; .pay. is the slowest, busy", marks=SLOW),
        (local, "failing", rf"Failing: .*: in pay: LookupError: no sofa is left, {LINE}"),
        pytest.param(
            local,
            "forgotten",
            r"(stuck|timed out).* at .pay., shop\.py:\d+ in Pay\.process, .*which neither acked nor failed",
            marks=SLOW,
        ),
        pytest.param(consumer, "hung", rf"packer_\d has been in one call with memory/\d+ at {LINE} for", marks=SLOW),
        pytest.param(
            consumer,
            "slow",
            rf"At its limit: .*all 2 threads of the pool are busy; most calls take \S+ ms, at {LINE}; \d+ parts wait",
            marks=SLOW,
        ),
        pytest.param(consumer, "failing", rf"Failing: .*: LookupError: no sofa is left, {LINE}", marks=SLOW),
        (
            consumer,
            "forgotten",
            r"(stuck|timed out).* at .your code., shop\.py:\d+ in .*work,.* and no call works on (it|them)",
        ),
    ],
)
def test_the_headline_names_the_fault(visit, run, kind, text) -> None:
    # Hung and forgotten are told after half of the timeout.
    with run(kind, 4 if kind in ("hung", "forgotten") else 60) as page:
        shown = visit(page.url)
        expect(shown.locator("#headline")).to_have_text(re.compile(text))


def test_one_click_shows_the_stack_of_a_call_that_runs_long(visit) -> None:
    with local("hung", 4) as page:
        shown = visit(page.url)
        expect(shown.locator("#headline")).to_have_text(
            re.compile(rf"pay\[2\] hangs: .* a tuple of orders .message order-7. at {LINE} for")
        )
        call = shown.locator("#calls details")
        expect(call.locator("summary")).to_have_text(
            re.compile(rf"pay\[2\] with a tuple of orders .message order-7., for .*, at {LINE}")
        )
        expect(call.locator("pre")).to_be_hidden()
        call.locator("summary").press("Enter")
        expect(call.locator("pre")).to_have_text(
            re.compile(r"in Pay\.process\n.*in charge\n.*in Event\.wait", re.DOTALL)
        )
        assert Axe().run(shown).response["violations"] == []
