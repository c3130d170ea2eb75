"""A small benchmark that every machine can run: the engine's bookkeeping, in CPU time, without torch.

``python -m kvcrucible.perf.builtin_benchmark`` runs each case a few times in this process and prints one JSON object,
case to timings in seconds.  One such process is one unit of replication; whoever compares starts many.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

from kvcrucible.contract.config import EngineConfig, PoolSpec
from kvcrucible.contract.operations import Append, Prefill
from kvcrucible.contract.tokens import run
from kvcrucible.engine.engine import Engine

#: Timings of each case in one process, after one that is thrown away.
TIMINGS = 9

#: Sequences that are active at once, tokens of a prompt, rounds of decoding.
SEQUENCES, PROMPT_TOKENS, ROUNDS = 16, 256, 96


def _engine() -> Engine:
    pool = PoolSpec(capacity_pages=SEQUENCES * 64, page_size=16)
    return Engine(EngineConfig(pools=(pool,), max_context=1_024, max_concurrency=SEQUENCES + 1))


def _filled(engine: Engine) -> list[int]:
    sequences = [engine.submit(run(one, 0, PROMPT_TOKENS), ROUNDS) for one in range(SEQUENCES)]
    engine.schedule()
    engine.end_unit(engine.begin_unit([Prefill(sequence, PROMPT_TOKENS) for sequence in sequences]))
    return sequences


def decode() -> None:
    """Fill an engine and decode in all its sequences, one token a round."""
    engine = _engine()
    sequences = _filled(engine)
    for round_number in range(ROUNDS):
        works = [Append(one, run(1_000 + one, round_number, 1)) for one in sequences]
        engine.end_unit(engine.begin_unit(works))


def fork_and_cut() -> None:
    """Fork every sequence inside a page and cut the fork, again and again."""
    engine = _engine()
    sequences = _filled(engine)
    for round_number in range(ROUNDS // 4):
        for one in sequences:
            child = engine.fork(one, PROMPT_TOKENS - 1 - round_number % 8, 16)
            engine.truncate(child, PROMPT_TOKENS // 2)
            engine.finish(child, retain=False)


#: Cases by metric; the thresholds file knows what stands before "/".
CASES: dict[str, Callable[[], None]] = {
    "control-plane/decode": decode,
    "control-plane/fork-and-cut": fork_and_cut,
}


def timings(case: Callable[[], None], count: int = TIMINGS) -> list[float]:
    """Return the CPU seconds of ``count`` runs of ``case`` in this process, after one run that is not counted."""
    case()
    found = []
    for _ in range(count):
        start = time.process_time_ns()
        case()
        found.append((time.process_time_ns() - start) / 1e9)
    return found


def main() -> None:
    """Run every case and print the timings."""
    sys.stdout.write(json.dumps({name: timings(case) for name, case in CASES.items()}) + "\n")


if __name__ == "__main__":
    main()
