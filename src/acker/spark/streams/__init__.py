"""The acker on Structured Streaming: the plan of a query, its stateful operator, and what they report."""
