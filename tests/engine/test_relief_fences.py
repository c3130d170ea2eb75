"""Copies that an admission gives up make room at once, or are left alone (DESIGN 4.9, decisions 0013 and 0020)."""

from __future__ import annotations

import pytest

from kvcrucible.contract.config import EngineConfig, HostSpec, PoolSpec
from kvcrucible.contract.operations import AdmissionMode, Admitted, Append, Prefill
from kvcrucible.contract.planes import PlaneSpec
from kvcrucible.contract.profiles import Geometry, storage_profile
from kvcrucible.contract.snapshot import Tier
from kvcrucible.contract.tokens import concat, run
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.streams import SimulatedDevice

PLANES = (PlaneSpec(storage_profile("FP32"), Geometry(1, 1, 4), 4, "main"),)
POOL = PoolSpec("main", 4, 4, PLANES)


@pytest.mark.parametrize("at_rest", [False, True])
def test_copies_in_use_are_not_given_up_where_the_request_takes_them_over(
    at_rest: bool,
) -> None:
    """Two continuations share hidden Device copies that an outstanding unit holds up, and the request takes one of the
    two over.  Cut off, the pages return to the request's own reservation, which no unit holds up; given up beforehand,
    they would retire and be lost to it.  At rest they are given up like any other.
    """
    device = SimulatedDevice()
    host = HostSpec(3 * POOL.page_bytes, 64)
    e = Engine(EngineConfig((POOL,), max_context=16, max_concurrency=3, host=host), device=device)
    source = e.submit(run(1, 0, 12), 0)
    e.schedule()
    e.end_unit(e.begin_unit([Prefill(source, 4)]))
    e.checkpoint(source)
    e.end_unit(e.begin_unit([Prefill(source, 8)]))
    e.finish(source)
    for move in (lambda: e.demote(source), lambda: e.restore(source, keep=True)):
        move()
        device.synchronize()
        e.progress()
    borrower = e.fork(source, 12, 4)
    e.end_unit(e.begin_unit([Append(borrower, run(2, 12, 1))]))
    e.finish(borrower)
    e.fork(source, 4, 0)
    e.demote(source, keep=True)
    e.progress()
    copies = [page for page in e.cache.continuations[source].pages() if page.visible is Tier.HOST]
    assert len(copies) == 2
    if at_rest:
        device.synchronize()
        e.progress()
    assert [e.ledger.frees(page) for page in copies] == [at_rest] * 2

    request = e.submit(concat(run(1, 0, 4), run(3, 4, 8)), 0)
    outcome = e.try_admit(request)

    assert isinstance(outcome, Admitted)
    assert outcome.mode is AdmissionMode.MOVE_TRUNCATED
    assert (e.given_up, e.evicted) == (([borrower], []) if at_rest else ([], [borrower]))
