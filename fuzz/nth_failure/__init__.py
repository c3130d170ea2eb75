"""The n-th failure: every grant, copy and publication of an operation fails, one after the other (decision 0028)."""
