"""Content that cannot lie (DESIGN 7): rows that are a function of the whole token prefix, the pool and the plane.

The state after position p is a hash of the state before it and of the token at p.  A row's elements are bytes of a
hash of that state and the plane's name, as integers in [-128, 127]: every storage profile here holds them exactly,
and several elements carry the hash, so a row of another sequence, page, epoch, layer or past is never accidentally
right.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from kvcrucible.contract.profiles import Geometry
from kvcrucible.contract.tokens import Token, Tokens, expand

Rows = NDArray[np.float64]

_STATE_BYTES = 16


class Content:
    """Rows for a geometry; remembers the prefix states that it has computed."""

    def __init__(self, geometry: Geometry, pool: int = 0) -> None:
        self.geometry, self._pool = geometry, pool
        self._next: dict[tuple[bytes, Token], bytes] = {}
        self._row_cache: dict[tuple[bytes, int], tuple[Rows, Rows]] = {}

    def rows(self, tokens: Tokens, start: int, stop: int, layer: int) -> tuple[Rows, Rows]:
        """Return K and V ``[stop - start, Hkv, D]`` for positions of a sequence that begins with ``tokens``.

        ``tokens`` holds at least ``stop`` tokens.
        """
        states = self._states(tokens, stop)[start:stop]
        assert len(states) == stop - start, f"{len(states)} tokens for positions [{start}, {stop})"
        pairs = [self._row(state, layer) for state in states]
        shape = (0, self.geometry.kv_heads, self.geometry.head_dim)
        if not pairs:
            return np.zeros(shape), np.zeros(shape)
        return np.stack([key for key, _ in pairs]), np.stack([value for _, value in pairs])

    def _states(self, tokens: Tokens, stop: int) -> list[bytes]:
        state = b"\0" * _STATE_BYTES
        states: list[bytes] = []
        for token in expand(tokens):
            if len(states) == stop:
                break
            following = self._next.get((state, token))
            if following is None:
                text = b"%d:%d" % token
                following = self._next[state, token] = blake2b(
                    state + text, digest_size=_STATE_BYTES
                ).digest()
            state = following
            states.append(state)
        return states

    def _row(self, state: bytes, layer: int) -> tuple[Rows, Rows]:
        cached = self._row_cache.get((state, layer))
        if cached is None:
            cached = self._row_cache[state, layer] = (
                self._plane(state, layer, b"k"),
                self._plane(state, layer, b"v"),
            )
        return cached

    def _plane(self, state: bytes, layer: int, side: bytes) -> Rows:
        heads, dim = self.geometry.kv_heads, self.geometry.head_dim
        name = b"%d/%d/%s" % (self._pool, layer, side)
        drawn = b"".join(
            blake2b(state + name + b"/%d" % block, digest_size=64).digest()
            for block in range(-(-heads * dim // 64))
        )
        return np.frombuffer(drawn, dtype=np.int8, count=heads * dim).astype(np.float64).reshape(heads, dim)
