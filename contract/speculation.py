"""How far a round of speculation may go: the lead of DESIGN 4.14.3 (decision 0023)."""

from __future__ import annotations


def lead(drafted: int, remaining: int, room: int) -> int:
    """Return k' = min(k, remaining − 1, S − frontier), at least 0: positions that a round may write beyond its first.

    ``drafted``: k, how many the caller would draft.  ``remaining``: positions up to the sequence's limit; the round's
    own first position is one of them.  ``room``: S − frontier, positions up to the end of the context.
    """
    return max(0, min(drafted, remaining - 1, room))
