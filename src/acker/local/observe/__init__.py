"""Observation of a running topology: hooks, figures, traces of trees, and warnings of a stall."""
