"""The paged KV engine."""
