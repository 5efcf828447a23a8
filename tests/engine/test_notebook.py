"""What notebooks show of the acker's values: small tables of HTML without scripts."""

from dataclasses import replace

import numpy as np

from acker import Acker, Completions, Outcome
from acker._engine.notebook import html_table


def test_text_is_escaped_and_numbers_have_separators():
    table = html_table("<script>", ["<b>"], [["<i>&", 1_234_567], [None, 0.5]])
    assert "<caption>&lt;script&gt;</caption>" in table and "<th>&lt;b&gt;</th>" in table
    assert "<td>&lt;i&gt;&amp;</td><td>1,234,567</td></tr><tr><td></td><td>0.5</td>" in table


def test_completions_are_counted_by_outcome_and_the_first_are_shown():
    rows = [(-(2**63), 7, 3, Outcome.TIMED_OUT, 1_234), *((n, n, 1, Outcome.ACKED, n) for n in range(2_000))]
    table = Completions.from_rows(rows)._repr_html_()
    assert "<caption>Completions: 2,001 (2,000 ACKED, 1 TIMED_OUT); the first 10</caption>" in table
    assert "<td>-9223372036854775808</td><td>7</td><td>3</td><td>TIMED_OUT</td><td>1,234</td>" in table
    assert table.count("<tr>") == 11 and len(table) < 2_000
    assert "<caption>Completions: 0</caption>" in Completions.empty()._repr_html_()
    one = Completions.from_rows(rows[:1])
    assert "<caption>Completions: 1 (1 TIMED_OUT)</caption>" in one._repr_html_()
    assert one.outcome.dtype == np.int8


def test_stats_are_one_row():
    stats = replace(Acker().stats(), tracked=1_234)
    table = stats._repr_html_()
    assert "<tr><th>tracked</th>" in table and "<tbody><tr><td>1,234</td><td>0</td>" in table
