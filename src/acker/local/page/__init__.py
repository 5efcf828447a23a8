"""The live page of a topology in this process, and the report of its run as the same page."""
