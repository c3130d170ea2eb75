"""The regression gate."""
