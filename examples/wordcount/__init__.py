"""A word count on Spark, in batches and as a stream: each line is tracked, and injected faults are replayed."""
