"""Engines to learn from; ``docs/adapters.md`` goes through them.  No part of the package."""
