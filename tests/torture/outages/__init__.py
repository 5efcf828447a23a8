"""Outages under consumers of real brokers: processes are killed and paused, brokers restarted, connections cut.

Each message carries its number, and each leaf of its tree writes a line. Afterwards an independent count compares: no
message may be lost or acked early, and every doubled delivery is accounted for.
"""
