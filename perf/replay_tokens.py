"""Symbolic tokens for the requests of a trace, and what an infinite cache would have found (DESIGN 4.14.16).

A trace names no text, only blocks of it.  What it says becomes runs, what it leaves open becomes text of its own:

    prompt, block i with id b   → ``(b, 0, width)``; the last block may be narrower than the others
    prompt beyond its blocks    → one run of a source that no other request has
    generated tokens            → one run of a source that no other request has

So two requests share exactly the prefix that their block ids share.  ``parent`` adds nothing to it: the recorded traces
that name parents give the blocks of a child's prompt new ids where the parent's own tail and its generated text would
stand, so they do not say that this text is the parent's, and nothing is invented here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcrucible.contract.tokens import LITERAL, Tokens, canonical, run

if TYPE_CHECKING:
    from kvcrucible.perf.traces.request import TraceRequest

#: Highest source of private text; below it every request takes two.  Block ids are at least 0.
_FIRST_PRIVATE_SOURCE = LITERAL - 1


def prompt_of(request: TraceRequest, ordinal: int) -> Tokens:
    """Return the prompt of the ``ordinal``-th request of a replay."""
    runs = [(block, 0, width) for block, width in named_blocks(request)]
    rest = request.prompt_tokens - sum(width for _, _, width in runs)
    runs.append((_FIRST_PRIVATE_SOURCE - 2 * ordinal, 0, rest))
    return canonical(runs)


def output_of(ordinal: int, first: int, length: int) -> Tokens:
    """Return ``length`` generated tokens of the ``ordinal``-th request from its ``first`` on."""
    return run(_FIRST_PRIVATE_SOURCE - 2 * ordinal - 1, first, length)


def named_blocks(request: TraceRequest) -> list[tuple[int, int]]:
    """Return (block id, width in tokens) for every block of the prompt that the trace names, in order."""
    if request.block_ids is None or request.block_size is None:
        return []
    size = request.block_size
    starts = range(0, request.prompt_tokens, size)
    return [
        (block, min(size, request.prompt_tokens - start))
        for block, start in zip(request.block_ids, starts, strict=False)
    ]


@dataclass(frozen=True, slots=True)
class IdealHit:
    """What an infinite cache has of one prompt, in tokens.

    ``blocks``: by whole blocks, a full hit counted as such.  ``tokens``: by the engine's rule, token for token and at
    most all but the last, which takes off ``last`` (0 or 1).
    """

    blocks: int
    tokens: int
    last: int = 0


class InfiniteCache:
    """Every prompt so far as a tree of blocks; exact, in one pass, a few words per distinct block.

    It knows nothing of the engine or its prefix index, so that a hit beyond what it finds is a false one.
    """

    def __init__(self) -> None:
        self._children: dict[tuple[int, int], int] = {}
        self._widths: list[int] = [0]

    def add(self, request: TraceRequest) -> IdealHit:
        """Return what the prompts so far have of this one, and add it."""
        return self._walk(request, adds=True)

    def find(self, request: TraceRequest) -> IdealHit:
        """Return what the prompts so far have of this one.  Changes nothing."""
        return self._walk(request, adds=False)

    def _walk(self, request: TraceRequest, adds: bool) -> IdealHit:
        node = by_blocks = by_tokens = 0
        whole = exact = True
        for block, width in named_blocks(request):
            child = self._children.get((node, block))
            if child is None:
                if not adds:
                    break
                whole = exact = False
                child = len(self._widths)
                self._children[node, block] = child
                self._widths.append(width)
            known = self._widths[child]
            if whole:
                by_blocks += width
            if exact:
                by_tokens += min(width, known)
                exact = width == known
            if adds:
                self._widths[child] = max(width, known)
            node = child
        last = int(by_tokens == request.prompt_tokens)
        return IdealHit(by_blocks, by_tokens - last, last)
