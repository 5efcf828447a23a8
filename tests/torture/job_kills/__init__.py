"""Kills under trees across processes: owners, workers, followers, brokers and servers of replies, with Celery.

Each execution of a job writes a line at its end, with the jobs that it made; they have names of their own here, so no
token and no report enters this account of the truth. Each ack is compared with it before the broker is told.
"""
