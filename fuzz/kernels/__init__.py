"""Fuzzing of the kernels by themselves: ragged batches over poisoned pools against the oracle, on every back-end."""
