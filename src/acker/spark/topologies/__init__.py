"""Topologies on Spark: the bolts of a topology run on executors, its spouts on the driver or as DataFrames."""
