"""Private: files of messages, their reader, and their completions without Spark."""
