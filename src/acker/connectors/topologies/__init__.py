"""Spouts and bolts over connectors: the only part of connectors that knows topologies."""
