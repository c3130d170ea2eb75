"""The naive reference: too simple to be wrong in the engine's way."""
