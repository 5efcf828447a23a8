# cython: boundscheck=False, wraparound=False, cdivision=True
"""The native core: owns the tables' memory, releases the GIL, turns return codes into exceptions."""

include "combiner.pxi"
