"""What is remembered of where retained pages are is what looking at every page finds (decision 0025)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from kvcrucible.contract.config import EngineConfig, HostSpec, PoolSpec
from kvcrucible.contract.errors import Refusal
from kvcrucible.contract.operations import Append, Prefill
from kvcrucible.contract.planes import PlaneSpec
from kvcrucible.contract.profiles import Geometry, storage_profile
from kvcrucible.contract.snapshot import Tier
from kvcrucible.contract.tokens import run
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.pages import LogicalPage
from kvcrucible.engine.records import Continuation
from kvcrucible.engine.residency import ByLastUse
from kvcrucible.engine.streams import SimulatedDevice
from kvcrucible.engine.streams.strategies import RandomWalk


def planes(name: str, page_size: int) -> tuple[PlaneSpec, ...]:
    return (PlaneSpec(storage_profile("FP32"), Geometry(1, 1, 4), page_size, name),)


CONFIG = EngineConfig(
    (PoolSpec("main", 20, 4, planes("main", 4)), PoolSpec("mtp", 14, 8, planes("mtp", 8))),
    max_context=48,
    max_concurrency=4,
    host=HostSpec(3072, 64),
)


def found(engine: Engine, holds: Callable[[list[LogicalPage]], bool]) -> list[int]:
    """Return the continuations whose pages satisfy ``holds``, in order of last use, by looking at every page."""
    kept = sorted(engine.cache.continuations.values(), key=lambda one: one.last_use)
    return [one.continuation for one in kept if holds(list(one.pages()))]


def names(kept: Iterable[Continuation]) -> list[int]:
    return [one.continuation for one in kept]


def copy_in(tier: Tier) -> Callable[[LogicalPage], bool]:
    """Tell whether a page in no transfer has a hidden copy in ``tier``."""
    return lambda page: (
        page.transfer is None and page.visible is not tier and page.replicas.at(tier) is not None
    )


def agree(engine: Engine) -> dict[str, int]:
    """Compare every answer; return how many were of more than nothing."""
    residency = engine.cache.residency
    assert residency is not None
    moving = found(engine, lambda pages: any(page.transfer is not None for page in pages))
    on_device = found(engine, lambda pages: any(page.device >= 0 for page in pages))
    every = names(engine.cache.continuations.values())
    answers: dict[str, tuple[Any, Any]] = {
        "away": (
            sorted(residency.away),
            sorted(found(engine, lambda pages: any(page.visible is Tier.HOST for page in pages))),
        ),
        "yielding": (names(residency.yielding()), [one for one in on_device if one not in moving]),
        "on Host alone": (
            names(residency.on_host_alone()),
            [one for one in every if one not in on_device and one not in moving],
        ),
        "in transfer": (
            [one for one in every if residency.of(engine.cache.continuations[one]).in_transfer],
            moving,
        ),
    }
    for tier in Tier:
        copied = copy_in(tier)
        answers[f"copies on {tier}"] = (
            [
                (kept.continuation, [page.page for page in residency.of(kept).copies(tier)])
                for kept in residency.with_copies(tier)
            ],
            [
                (name, [page.page for page in engine.cache.continuations[name].pages() if copied(page)])
                for name in found(engine, lambda pages, copied=copied: any(map(copied, pages)))
            ],
        )
    active = {page.page for one in engine.sequences.values() for space in one.spaces for page in space.pages}
    answers["in use"] = (
        {page.page for page in engine.ledger.live.values() if residency.in_use(page)},
        active,
    )
    for name, (told, due) in answers.items():
        assert told == due, name
    for kept in engine.cache.continuations.values():
        assert list(residency.of(kept).on_device) == [page for page in kept.pages() if page.device >= 0]
    return {name: bool(due) for name, (_, due) in answers.items()}


class Walk:
    """Draws operations; what is refused changes nothing."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.device = SimulatedDevice(RandomWalk(seed))
        self.engine = Engine(CONFIG, device=self.device)

    def step(self) -> None:
        engine, draw = self.engine, self.draw
        kept = draw.choice(list(engine.cache.continuations) or [0])
        active = draw.choice(list(engine.sequences) or [0])
        acts: list[Callable[[], object]] = [
            self.submit,
            engine.schedule,
            engine.schedule,
            lambda: self.write(active),
            lambda: self.write(active),
            lambda: engine.fork(draw.choice([kept, active]), draw.randint(1, 16), draw.randint(0, 6)),
            lambda: engine.truncate(active, draw.randint(0, 12)),
            lambda: engine.finish(active),
            lambda: engine.finish(active),
            lambda: engine.cancel(active),
            lambda: engine.pin(kept, draw.random() < 0.3),
            lambda: engine.demote(kept, draw.random() < 0.4),
            lambda: engine.demote(kept, draw.random() < 0.4),
            lambda: engine.restore(kept, draw.random() < 0.4),
            lambda: engine.cancel_transfer(draw.choice(list(engine.host.under_way) or [0])),  # type: ignore[union-attr]
            engine.progress,
            engine.progress,
        ]
        if draw.random() < 0.1:
            acts.append(lambda: engine.release(kept))
        self.device.run(draw.randint(0, 8))
        with suppress(Refusal):
            draw.choice(acts)()

    def submit(self) -> None:
        draw, session = self.draw, self.draw.choice([None, None, "a", "b"])
        prompt = run(draw.randrange(2), 0, draw.randint(1, 20))
        self.engine.submit(prompt, draw.randint(0, 8), session, draw.random() < 0.3)

    def write(self, sequence: int) -> None:
        record = self.engine.sequences.get(sequence)
        if record is None:
            return
        left = record.prompt - record.frontier if record.prefilling else record.limit - record.frontier
        count = self.draw.randint(1, max(1, left))
        work = (
            Prefill(sequence, count)
            if record.prefilling
            else Append(sequence, run(self.draw.randrange(50, 99), 0, count))
        )
        self.engine.end_unit(self.engine.begin_unit([work]))


@pytest.mark.parametrize("seed", range(4))
def test_what_is_remembered_is_what_is_there(seed: int) -> None:
    walk, met = Walk(seed), dict.fromkeys(agree(Engine(CONFIG)), 0)
    for _ in range(400):
        walk.step()
        # Not after each: what has changed since the last answer must not be lost.
        if walk.draw.random() < 0.5:
            for name, there in agree(walk.engine).items():
                met[name] += there
    assert min(met.values()) > 0, met


@pytest.mark.parametrize(
    "answer", ["yielding", "on_host_alone", "copies on Device", "copies on Host", "away", "on_device"]
)
def test_each_answer_is_up_to_date_whichever_is_asked_for_first(answer: str) -> None:
    """Of one page in the first place of its pool, wherever it is."""

    def told(engine: Engine) -> bool:
        residency, kept = engine.cache.residency, engine.cache.continuations[0]
        assert residency is not None
        match answer:
            case "away":
                return bool(residency.away)
            case "on_device":
                return kept.on_device
            case "copies on Device" | "copies on Host":
                return bool(names(residency.with_copies(Tier.HOST if "Host" in answer else Tier.DEVICE)))
        return bool(names(getattr(residency, answer)()))

    engine = Engine(replace(CONFIG, pools=CONFIG.pools[:1]))
    engine.submit(run(0, 0, 3), 0)
    engine.schedule()
    engine.end_unit(engine.begin_unit([Prefill(0, 3)]))
    engine.finish(0)
    assert [page.device for page in engine.cache.continuations[0].pages()] == [0]
    found = [told(engine)]
    for move, keep in (
        (engine.demote, True),
        (engine.restore, True),
        (engine.demote, False),
        (engine.restore, False),
    ):
        move(0, keep)
        engine.progress()
        found.append(told(engine))
    due = {
        "yielding": [True, True, True, False, True],
        "on_host_alone": [False, False, False, True, False],
        "copies on Device": [False, True, False, False, False],
        "copies on Host": [False, False, True, False, False],
        "away": [False, True, False, True, False],
        "on_device": [True, True, True, False, True],
    }
    assert found == due[answer]


def test_without_a_host_tier_nothing_is_remembered() -> None:
    engine = Engine(EngineConfig((PoolSpec("main", 8, 4),), 16, 2))
    assert engine.cache.residency is None
    assert engine.cache.away == set()
    engine.submit(run(0, 0, 4), 0)
    engine.schedule()
    engine.end_unit(engine.begin_unit([Prefill(0, 4)]))
    engine.finish(0)
    assert list(engine.cache.with_device_copies(None)) == []


def test_an_order_is_walked_while_its_members_leave() -> None:
    order = ByLastUse()
    kept = [Continuation(name, (), None, None, [], [], last_use=10 - name) for name in range(4)]  # type: ignore[arg-type]
    for one in kept:
        order.put(one, True)
        order.put(one, True)
    assert names(order) == [3, 2, 1, 0]
    seen = []
    for one in order:
        seen.append(one.continuation)
        order.put(kept[1], False)
    assert seen == [3, 2, 0]
    order.put(kept[1], False)
    assert names(order) == [3, 2, 0]
