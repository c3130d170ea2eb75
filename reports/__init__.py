"""Stored results turned into pages and tables."""
