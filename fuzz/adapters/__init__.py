"""Engines under test behind one protocol."""
