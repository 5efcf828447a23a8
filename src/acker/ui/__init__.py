"""Pages to look at: what HTML reports have in common."""
