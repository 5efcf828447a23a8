"""The live page, and the same page frozen in a file. Knows no runtime: those who have figures show them here."""

from acker.ui.options import LivePage

__all__ = ["LivePage"]
