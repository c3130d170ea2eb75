"""The smoke suite: small workloads of the engine, at ledger depth and with real rows, and their work counters.

Both revisions run the cases of whoever compares, on their own engine: a suite that changed with the code would compare
two suites.  So a case may use only what a revision of last month has, and one that fails there is left out by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

#: Sequences that are active at once, tokens of a prompt, rounds of decoding.
SEQUENCES, PROMPT_TOKENS, ROUNDS = 16, 256, 48


@dataclass(frozen=True, slots=True)
class Case:
    """A workload: ``run()`` does it and returns how far each work counter moved.

    ``timed``: whether it is quick and light enough to start many processes for.
    """

    run: Callable[[], dict[str, int]]
    timed: bool = True


def _engine(storage: Any = None, page_size: int = 16, capacity: int = SEQUENCES * 64) -> Any:
    from kvcrucible.contract.config import EngineConfig, PoolSpec
    from kvcrucible.engine.engine import Engine

    pool = PoolSpec(capacity_pages=capacity, page_size=page_size)
    return Engine(EngineConfig(pools=(pool,), max_context=1_024, max_concurrency=SEQUENCES + 1), storage)


def _filled(engine: Any, count: int = SEQUENCES) -> list[int]:
    from kvcrucible.contract.operations import Prefill
    from kvcrucible.contract.tokens import run

    sequences = [engine.submit(run(one, 0, PROMPT_TOKENS), ROUNDS) for one in range(count)]
    admitted = engine.schedule().admitted
    engine.end_unit(engine.begin_unit([Prefill(one.sequence, PROMPT_TOKENS - one.hit) for one in admitted]))
    return sequences


def _decoded(engine: Any, sequences: list[int]) -> None:
    from kvcrucible.contract.operations import Append
    from kvcrucible.contract.tokens import run

    for number in range(ROUNDS):
        engine.end_unit(engine.begin_unit([Append(one, run(1_000 + one, number, 1)) for one in sequences]))


def _work(engine: Any) -> dict[str, int]:
    return {name: int(count) for name, count in asdict(engine.work).items()}


def decode() -> dict[str, int]:
    """Fill an engine and decode in all its sequences, one token a round."""
    engine = _engine()
    _decoded(engine, _filled(engine))
    return _work(engine)


def fork_and_cut() -> dict[str, int]:
    """Fork every sequence inside a page and cut the fork, again and again."""
    engine = _engine()
    sequences = _filled(engine)
    for number in range(ROUNDS // 4):
        for one in sequences:
            child = engine.fork(one, PROMPT_TOKENS - 1 - number % 8, 16)
            engine.truncate(child, PROMPT_TOKENS // 2)
            engine.finish(child, retain=False)
    return _work(engine)


def retain_and_hit() -> dict[str, int]:
    """Finish sequences as continuations and submit their prompts again, until pages are short."""
    engine = _engine(capacity=SEQUENCES * 24)
    for _ in range(6):
        for one in _filled(engine):
            engine.finish(one)
    return _work(engine)


def materialise() -> dict[str, int]:
    """Nothing but the pool: promise pages, turn promises into leases one by one and in bulk, end the leases."""
    from kvcrucible.contract.config import PoolSpec
    from kvcrucible.engine.pool import PagePool

    pool = PagePool(PoolSpec(capacity_pages=512))
    granted = 0
    for number in range(80):
        reservation = pool.reserve(320)
        leases = [lease for _ in range(64) for lease in pool.materialise(reservation, 1)]
        leases += pool.materialise(reservation, 192 + number % 64)
        granted += len(leases)
        pool.release(leases)
        pool.close(reservation)
    return {"pages_leased": granted, "left_leased": pool.leased, "left_reserved": pool.reserved}


def payload() -> dict[str, int]:
    """Decode and fork with real rows in torch: pages are copied, tables are written.  Needs torch."""
    from kvcrucible.contract.profiles import Geometry, storage_profile
    from kvcrucible.engine.storage.torch_storage import TorchStorage

    capacity = 4 * 64
    storage = TorchStorage(storage_profile("BF16"), Geometry(2, 2, 32), capacity, 16, SEQUENCES + 1, 64)
    engine = _engine(storage, capacity=capacity)
    sequences = _filled(engine, 4)
    _decoded(engine, sequences)
    for one in sequences:
        engine.finish(engine.fork(one, PROMPT_TOKENS - 3, 16), retain=False)
    bytes_of_a_column = storage.profile.bytes_per_token(storage.geometry)
    return {**_work(engine), "bytes_copied": engine.work.columns_copied * bytes_of_a_column}


CASES: dict[str, Case] = {
    "decode": Case(decode),
    "fork-and-cut": Case(fork_and_cut),
    "retain-and-hit": Case(retain_and_hit),
    "materialise": Case(materialise),
    # Importing torch takes ten times as long as the case: what it does is counted, how long it takes is not timed.
    "payload": Case(payload, timed=False),
}
