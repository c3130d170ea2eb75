"""Brings a trace into memory for a replay: read to its end first, so that a bad last line shows before the work."""

from __future__ import annotations

from pathlib import Path

from kvcrucible.contract.errors import InputError
from kvcrucible.perf.traces import open_trace
from kvcrucible.perf.traces.request import TraceRequest

#: Requests of one replay: some 200 bytes each, and an hour of work.
MAX_REPLAY_REQUESTS = 1_000_000

#: Block ids of one replay: 40 bytes each where they are large.
MAX_REPLAY_BLOCK_IDS = 20_000_000


def load_requests(path: Path, limit: int | None = None) -> list[TraceRequest]:
    """Return the first ``limit`` requests of the file in order of arrival; equal arrivals stay in the file's order.

    Raises ``InputError`` for what the reader refuses, for a trace that is too large to be held, and for one whose
    blocks are of different sizes: its ids could not be compared.
    """
    requests: list[TraceRequest] = []
    block_ids = 0
    block_size: int | None = None
    with open_trace(path, limit) as trace:
        for request in trace:
            requests.append(request)
            block_ids += len(request.block_ids or ())
            if len(requests) > MAX_REPLAY_REQUESTS or block_ids > MAX_REPLAY_BLOCK_IDS:
                raise InputError(
                    f"{path}: more than {MAX_REPLAY_REQUESTS:,} requests or {MAX_REPLAY_BLOCK_IDS:,} block ids; "
                    f"use --limit, at most {len(requests) - 1}"
                )
            block_size = block_size or request.block_size
            if request.block_size not in (None, block_size):
                raise InputError(
                    f"{path}: request {request.id} has blocks of {request.block_size} tokens, earlier ones of "
                    f"{block_size}; replay them apart"
                )
    return sorted(requests, key=lambda request: request.arrival_s)
