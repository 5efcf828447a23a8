"""The live page, and the HTML pages of reports. Knows no runtime: those who have figures show them here."""

from acker.ui.options import LivePage

__all__ = ["LivePage"]
