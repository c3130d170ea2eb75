"""Measurement, traces and the capacity study."""
