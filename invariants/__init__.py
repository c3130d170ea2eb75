"""The catalogue of named invariants and their checkers."""
