"""Tracked pipelines: spouts and bolts over DataFrames, and the messages that they send to the acker."""
