"""The fork server: every verdict from a real child, none of them confused with a kill."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from dataclasses import asdict
from typing import Any

import pytest

from kvcrucible.fuzz.faults.catalogue import fault, source_of
from kvcrucible.fuzz.mutants.judge import Budget

QUICK = Budget(seeds=5, rules=20)


def ask(*requests: tuple[str | None, str | None, Budget]) -> list[dict[str, Any]]:
    """Return a server's answers, in a process of its own: this one has imported the engine."""
    lines = [
        json.dumps({"module": module, "source": source, "budget": asdict(budget)})
        for module, source, budget in requests
    ]
    done = subprocess.run(
        [sys.executable, "-m", "kvcrucible.fuzz.mutants.server"],
        input="\n".join(lines) + "\n", capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()]


def changed(module: str, old: str, new: str) -> tuple[str, str]:
    source = source_of(module)
    assert source.count(old) == 1
    return module, source.replace(old, new)


def test_one_server_tells_every_verdict() -> None:
    planted = fault("fork-shares-tail")
    module, pool = "kvcrucible.engine.execute", "kvcrucible.engine.pool"
    told = ask(
        (None, None, QUICK),
        (planted.module, planted.apply_to(source_of(planted.module)), Budget(seeds=100, rules=60)),
        (module, source_of(module) + "\nraise RuntimeError('no engine')\n", QUICK),
        (*changed(pool, "reservation = Reservation(0)", "while True: pass"), Budget(5, 20, 0, 0.5)),
        (*changed(pool, "reservation = Reservation(0)",
                  "import time; time.sleep(60)"), Budget(5, 20, 0, 0.05)),
        (*changed(pool, "reservation = Reservation(0)", "import os; os._exit(0)"), QUICK),
        (*changed(pool, "reservation = Reservation(0)", "kept = [0] * (1 << 30)"), QUICK),
        (None, None, QUICK),
    )  # fmt: skip
    assert [one["verdict"] for one in told] == [
        "survived", "killed", "stillborn", "hung", "hung", "lost", "hung", "survived",
    ]  # fmt: skip
    assert set(told[1]["invariants"]) & set(planted.expects)
    assert 1 <= told[1]["seeds"] <= 100
    assert told[1]["steps"] > 0
    assert "no engine" in told[2]["note"]
    assert told[0]["seeds"] == 5
    # One seed, one history: whatever was judged in between.
    assert told[0] == told[-1]


def test_an_engine_that_falls_over_as_it_shows_its_state_is_a_fault_of_the_engine() -> None:
    (told,) = ask(
        (*changed("kvcrucible.engine.observe", "def drain(", "def drain(engine): 1 / 0\ndef old("), QUICK)
    )
    assert (told["verdict"], told["invariants"]) == ("killed", ["engine-fault"])
    assert "ZeroDivisionError" in told["note"]


def test_an_engine_that_cannot_be_built_fails_its_first_seed() -> None:
    old = "        self.storages = per_pool(config, storage)\n"
    (told,) = ask((*changed("kvcrucible.engine.engine", old, f"        1 / 0\n{old}"), QUICK))
    assert (told["verdict"], told["invariants"], told["seeds"]) == ("killed", ["engine-fault"], 1)
    assert "ZeroDivisionError" in told["note"]


def test_the_server_has_neither_the_engine_nor_a_tensor_library() -> None:
    code = (
        "import sys; import kvcrucible.fuzz.mutants.server; from kvcrucible.fuzz.forking import preload; preload();"
        "print([n for n in sys.modules if n.startswith('kvcrucible.engine.') or n in ('torch', 'numpy')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_server_that_has_the_engine_refuses_to_start() -> None:
    import kvcrucible.engine.space  # noqa: F401
    from kvcrucible.fuzz.mutants import server

    with pytest.raises(AssertionError, match="nothing could be planted"):
        server.serve(io.StringIO(""), io.StringIO())
