"""Combiner: the messages of each root taken as a set."""
