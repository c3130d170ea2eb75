"""Short ways to say to an accounting model what an example is about."""

from __future__ import annotations

from kvcrucible.contract.config import EngineConfig, HostSpec, PoolSpec
from kvcrucible.contract.operations import (
    Append,
    BeginUnit,
    Demote,
    EndUnit,
    Finish,
    Fork,
    Operation,
    Outcome,
    Prefill,
    Progress,
    Progressed,
    Restore,
    Schedule,
    Submit,
    TransferEnded,
    TransferOutcome,
    UnitEnded,
)
from kvcrucible.contract.planes import PlaneSpec
from kvcrucible.contract.profiles import PROFILES, Geometry
from kvcrucible.contract.tokens import Tokens, run
from kvcrucible.reference.accounting import AccountingModel


def model_of(capacity: int = 8, page_size: int = 4, context: int = 32, rows: int = 4) -> AccountingModel:
    return AccountingModel(EngineConfig((PoolSpec("main", capacity, page_size),), context, rows))


def typed_pool(name: str, capacity: int, page_size: int) -> PoolSpec:
    """A pool of 32 bytes a token, keys and values together."""
    plane = PlaneSpec(PROFILES["FP32"], Geometry(1, 1, 4), page_size, name)
    return PoolSpec(name, capacity, page_size, (plane,))


def host_model_of(
    capacity: int = 8, host_bytes: int = 1024, backend: int = 0, immediate: bool = True
) -> AccountingModel:
    """Pages of 4 tokens and 128 bytes in Main, of 8 tokens and 256 bytes in ``backend`` pages of MTP if there are any.

    Extents take multiples of 256 bytes.
    """
    pools = [typed_pool("main", capacity, 4), *([typed_pool("mtp", backend, 8)] if backend else [])]
    config = EngineConfig(tuple(pools), 32, 4, HostSpec(host_bytes, alignment_bytes=256))
    return AccountingModel(config, immediate=immediate)


def do(model: AccountingModel, *operations: Operation) -> Outcome:
    """Carry all out and return the last outcome; none may be refused."""
    outcome = Outcome()
    for operation in operations:
        outcome = model.predict(operation)
        assert outcome.refusal is None, (operation, outcome)
    return outcome


def start(
    model: AccountingModel,
    prompt: Tokens,
    max_new: int = 0,
    session: str | None = None,
    consume: bool = False,
) -> int:
    """Submit, admit and prefill one request; return it."""
    sequence = do(model, Submit(prompt, max_new, session, consume)).value
    assert isinstance(sequence, int)
    do(model, Schedule())
    if model.prompt_left(sequence):
        write(model, Prefill(sequence, model.prompt_left(sequence)))
    return sequence


def write(model: AccountingModel, *work: Prefill | Append) -> UnitEnded:
    unit = do(model, BeginUnit(work)).value
    assert isinstance(unit, int)
    ended = do(model, EndUnit(unit)).value
    assert isinstance(ended, UnitEnded)
    return ended


def kept(model: AccountingModel, prompt: Tokens, session: str | None = None) -> int:
    """Return a continuation that holds ``prompt``."""
    sequence = start(model, prompt, session=session)
    assert do(model, Finish(sequence)).value is True
    return sequence


def settled(model: AccountingModel, *operations: Operation) -> tuple[TransferEnded, ...]:
    """Carry all out, then a progress with everything done; return the transfers that it ends."""
    value = do(model, *operations, Progress()).value
    assert isinstance(value, Progressed)
    return value.transfers


def reported(
    model: AccountingModel,
    units: tuple[int, ...] = (),
    over: tuple[int, ...] = (),
    failed: tuple[int, ...] = (),
) -> Outcome:
    """A progress of which the engine reports these units and transfers, with a word on outcomes that is not heeded."""
    told = [TransferEnded(name, TransferOutcome.MOVED, name in failed) for name in (*over, *failed)]
    return model.predict_progress(Progressed(units, tuple(told)))


def moved(*transfers: int) -> tuple[TransferEnded, ...]:
    return tuple(TransferEnded(name, TransferOutcome.MOVED) for name in transfers)


def retained(*transfers: int) -> tuple[TransferEnded, ...]:
    return tuple(TransferEnded(name, TransferOutcome.KEPT) for name in transfers)


def abandoned(*transfers: int, failed: bool = False) -> tuple[TransferEnded, ...]:
    return tuple(TransferEnded(name, TransferOutcome.ABANDONED, failed) for name in transfers)


def forked(model: AccountingModel, source: int, position: int, max_new: int = 0) -> int:
    """Fork, and return the child."""
    child = do(model, Fork(source, position, max_new)).value
    assert isinstance(child, int)
    return child


def with_host_copies(tokens: int) -> AccountingModel:
    """A model whose continuation 0, of session a, is resident and has a clean copy of each page on Host."""
    model = host_model_of()
    kept(model, run(0, 0, tokens), session="a")
    assert settled(model, Demote(0)) == moved(0)
    assert settled(model, Restore(0, keep=True)) == retained(1)
    return model
