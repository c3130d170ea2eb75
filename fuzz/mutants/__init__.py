"""Automatic mutants: small changes of the engine's source, each of which a campaign has to notice (decision 0029)."""
