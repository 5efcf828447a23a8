"""Runs a topology in this process: executors, queues, ackers, supervision."""
