"""KV Crucible: a correctness and performance crucible for paged KV caches."""

__version__ = "0.1.0"
