"""Operators over a non-owning view of pages and block-table rows."""
