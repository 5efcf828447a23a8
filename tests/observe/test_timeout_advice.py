"""Advice on timeouts."""

import pytest

from acker.observe.timeout_advice import TimeoutAdvice


def test_no_advice_without_timeouts():
    advice = TimeoutAdvice(10)
    assert [advice.look(now, 0, 1000, 0) for now in (0, 5, 10, 20, 40)] == [None] * 5


def test_advice_where_open_messages_need_longer_than_the_timeout():
    advice = TimeoutAdvice(3)
    assert advice.look(0, 0, 50, 0) is None
    assert advice.look(1, 10, 50, 20) is None  # too early for a rate
    text = advice.look(4, 40, 50, 30)
    assert text == (
        "50 messages timed out in 4.0 s: 50 are pending, 10 are acked a second, so each takes 5.0 s at that"
        " rate, and timeout_secs is 3. Choose an open_max of at most 15, or a longer timeout"
    )


def test_no_advice_where_the_rate_suffices():
    advice = TimeoutAdvice(3)
    advice.look(0, 0, 50, 0)
    assert advice.look(4, 400, 50, 1) is None


def test_no_advice_to_have_fewer_open_where_none_waits_for_its_turn():
    advice = TimeoutAdvice(4)
    advice.look(0, 0, 1, 0, lambda: False)
    assert advice.look(10, 2, 1, 2, lambda: False) is None  # one hangs, and few come
    assert advice.look(20, 4, 1, 2) == (
        "2 messages timed out in 10.0 s: 1 is pending, 0.2 are acked a second, so each takes 5.0 s at that rate, and"
        " timeout_secs is 4. Choose an open_max of at most 1, or a longer timeout"
    )
    assert "none was acked" in (advice.look(30, 4, 1, 4, lambda: False) or "")


@pytest.mark.parametrize(
    ("pending", "options"), [(1, "a longer timeout"), (50, "a smaller open_max or a longer timeout")]
)
def test_where_nothing_is_acked_no_number_of_open_messages_is_advised(pending: int, options: str) -> None:
    advice = TimeoutAdvice(3)
    advice.look(0, 0, pending, 0)
    assert advice.look(4, 0, pending, 1) == (
        "1 message timed out in 4.0 s and none was acked, and timeout_secs is 3. Find what they wait for; if it is only"
        f" slow, choose {options}"
    )


def test_advice_comes_again_when_the_number_has_doubled():
    advice = TimeoutAdvice(1)
    advice.look(0, 0, 50, 0)
    said = [advice.look(now, 0, 50, ended) is not None for now, ended in ((1, 4), (2, 4), (3, 7), (4, 8), (5, 9))]
    assert said == [True, False, False, True, False]
    assert advice.look(6, 5000, 50, 1) is None
    assert advice.look(7, 5000, 50, 1) is not None
