"""How what is optional is installed: the one place that knows (decision 0002)."""

from __future__ import annotations


def install_command(extra: str | None = None) -> str:
    """Return the command that installs KV Crucible from its checkout, with one extra or none; it is on no index."""
    return "pip install ." if extra is None else f"pip install '.[{extra}]'"


def install_remedy(extra: str) -> str:
    """Return in words how to get an extra."""
    return f"get it with `{install_command(extra)}` in the checkout of KV Crucible"
