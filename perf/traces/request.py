"""What every trace format comes down to: one request."""

from __future__ import annotations

from dataclasses import dataclass

#: Name of a request in its trace: as written there, or its ordinal from 0 where the format has none.
RequestId = int | str


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One recorded request.

    ``arrival_s`` counts seconds from the start of the trace and is finite and at least 0; traces need not be sorted by
    it. ``prompt_tokens`` is at least 1, ``output_tokens`` at least 0.  ``block_ids`` names the blocks of
    ``block_size`` tokens that the prompt consists of, in order: equal ids mean equal token prefixes up to and
    including that block.  A partial block at the end may have an id or not, so there are floor or ceil(prompt / block
    size) of them.  Both are None where the trace does not say.  ``parent`` is the request that this one continues.
    Readers keep no list of what went before: that ids are unique and parents exist is not checked.
    """

    id: RequestId
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...] | None
    block_size: int | None
    parent: RequestId | None
