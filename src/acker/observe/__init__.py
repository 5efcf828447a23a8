"""Figures, reasons and failures of whatever runs: what consumers, topologies and Spark tell in the same way."""
