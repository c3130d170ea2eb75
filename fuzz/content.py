"""Content that cannot lie (DESIGN 7): rows that are a function of the whole token prefix, the pool and the plane.

The state after position p is a hash of the state before it and of the token at p.  A row is drawn from bytes of a hash
of that state and the plane's name, in such a way that the storage profile holds it exactly (``reference.exact``), and
all its elements carry the hash, so a row of another sequence, page, epoch, layer or past is never accidentally right.
What is written under a quantised profile lies a little beside such a row and is stored as it.
"""

from __future__ import annotations

from hashlib import blake2b, shake_128

import numpy as np
from numpy.typing import NDArray

from kvcrucible.contract.profiles import PROFILES, Geometry, Side, StorageProfile
from kvcrucible.contract.tokens import Token, Tokens, expand
from kvcrucible.reference.exact import drawn_bytes, exact_rows, nearby

Rows = NDArray[np.float64]

_STATE_BYTES = 16


class Content:
    """Rows for a geometry and a profile; remembers the prefix states and rows that it has computed.

    Raises ``BadArgument`` where the profile's groups do not divide the head dimension.
    """

    def __init__(self, geometry: Geometry, pool: int = 0, profile: StorageProfile = PROFILES["FP32"]) -> None:
        profile.check_head_dim(geometry.head_dim)
        self.geometry, self.profile, self._pool = geometry, profile, pool
        self._next: dict[tuple[bytes, Token], bytes] = {}
        self._rows: dict[tuple[bytes, int, Side], Rows] = {}

    def rows(self, tokens: Tokens, start: int, stop: int, layer: int) -> tuple[Rows, Rows]:
        """Return K and V ``[stop - start, Hkv, D]`` for positions of a sequence that begins with ``tokens``.

        ``tokens`` holds at least ``stop`` tokens.
        """
        states = self._states(tokens, stop)[start:stop]
        assert len(states) == stop - start, f"{len(states)} tokens for positions [{start}, {stop})"
        return self._side(states, layer, Side.KEY), self._side(states, layer, Side.VALUE)

    def _states(self, tokens: Tokens, stop: int) -> list[bytes]:
        state = b"\0" * _STATE_BYTES
        states: list[bytes] = []
        for token in expand(tokens):
            if len(states) == stop:
                break
            following = self._next.get((state, token))
            if following is None:
                source, value = token
                text = f"{source}:{value}".encode()
                following = self._next[state, token] = blake2b(
                    state + text, digest_size=_STATE_BYTES
                ).digest()
            state = following
            states.append(state)
        return states

    def _side(self, states: list[bytes], layer: int, side: Side) -> Rows:
        heads, dim = self.geometry.kv_heads, self.geometry.head_dim
        missing = [state for state in states if (state, layer, side) not in self._rows]
        if missing:
            count = drawn_bytes(self.profile, side, dim)
            name = b"%d/%d/%s" % (self._pool, layer, side.encode())
            drawn = b"".join(shake_128(state + name).digest(heads * count) for state in missing)
            shaped = np.frombuffer(drawn, dtype=np.uint8).reshape(len(missing), heads, count)
            exact = exact_rows(self.profile, side, dim, shaped)
            for state, row in zip(missing, nearby(self.profile, side, exact), strict=True):
                self._rows[state, layer, side] = row
        if not states:
            return np.zeros((0, heads, dim))
        return np.stack([self._rows[state, layer, side] for state in states])
