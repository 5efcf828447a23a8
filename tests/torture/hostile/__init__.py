"""User code at its worst, which may get exceptions but must never crash the interpreter.

`calls` calls all that the native half of topologies (`acker._flow`) has, on objects of any kind and state. `graphs`
runs random topologies with threads, whose values run code when they are compared, hashed and dropped, and closes them
in the middle. A crash ends the process, so `python -m tests.torture.hostile` runs the seeds in a process of its own.
"""
