"""Durations and rates as text."""

from __future__ import annotations


def format_duration(ms: float) -> str:
    """Return a duration as text: 250 ms, 30.2 s, 5 min 3 s."""
    if ms < 1_000:
        return f"{ms:.0f} ms"
    if ms < 120_000:
        return f"{ms / 1_000:.1f} s"
    return f"{ms // 60_000:.0f} min {ms % 60_000 // 1_000:.0f} s"


def format_ns(ns: float | None) -> str:
    """Return a time as text with about two significant digits: 2.5 s, 14 ms, 72 \N{MICRO SIGN}s; nothing for None."""
    if ns is None:
        return ""
    for unit, scale in (("s", 1e9), ("ms", 1e6), ("\N{MICRO SIGN}s", 1e3)):
        if ns >= scale:
            return f"{ns / scale:.{1 if ns < 10 * scale else 0}f} {unit}"
    return f"{ns:.0f} ns"


def format_latency(ms: float) -> str:
    """Return a latency as text, with three significant digits below a second."""
    return format_duration(ms) if ms >= 1_000 else f"{ms:.3g} ms"


def format_rate(a_second: float) -> str:
    """Return a rate as text, with three significant digits below a hundred."""
    return f"{a_second:,.0f}" if a_second >= 100 else f"{a_second:.3g}"
