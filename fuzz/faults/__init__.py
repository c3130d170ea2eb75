"""Seeded faults that a campaign must find."""
