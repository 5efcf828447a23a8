"""Executors: the threads that run the tasks of spouts, bolts and ackers, a step at a time."""
