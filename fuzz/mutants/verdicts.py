"""What may become of a mutant."""

from __future__ import annotations

from enum import StrEnum

#: The note of a mutant that used up its memory: it collects without end, which is a kind of hanging.
OUT_OF_MEMORY = "the child used up its memory"


class MutantVerdict(StrEnum):
    """What became of a mutant.

    ``killed`` alone counts as noticed.  ``hung``: a seed did not end, or used up its memory.  ``lost``: the judge
    fell over.  ``stillborn``: the engine cannot be imported, so that nothing could be judged.
    """

    KILLED = "killed"
    SURVIVED = "survived"
    HUNG = "hung"
    LOST = "lost"
    STILLBORN = "stillborn"
