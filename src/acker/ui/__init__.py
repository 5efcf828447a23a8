"""The HTML pages of reports."""
