"""Who yields first: each policy orders as its definition says, and nothing else depends on it (decision 0020)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvcrucible.contract.config import EngineConfig, HostSpec, PoolSpec
from kvcrucible.contract.errors import BadArgument
from kvcrucible.contract.operations import Append, Prefill
from kvcrucible.contract.planes import PlaneSpec
from kvcrucible.contract.profiles import PROFILES, Geometry
from kvcrucible.contract.tokens import run
from kvcrucible.engine.cache import ContextCache
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.execute import counters
from kvcrucible.engine.observe import snapshot
from kvcrucible.engine.policies import TOKEN, CostAware, LeastRecentlyUsed, policy_of
from kvcrucible.engine.records import Continuation

PLANES = PlaneSpec(PROFILES["FP32"], Geometry(1, 1, 16), 4)
CONFIG = EngineConfig((PoolSpec("main", 12, 4),), max_context=48, max_concurrency=4)


def kept(e: Engine, source: int, tokens: int) -> int:
    """Retain ``tokens`` of a source of their own."""
    sequence = e.submit(run(source, 0, tokens), 0)
    assert e.schedule().waiting is None
    e.end_unit(e.begin_unit([Prefill(sequence, tokens)]))
    assert e.finish(sequence)
    return sequence


def order(e: Engine) -> list[int]:
    return [one.continuation for one in e.cache.yielding(None)]


def fill(e: Engine, pages: int) -> int:
    """Ask for so many pages with a prompt that nothing shares."""
    sequence = e.submit(run(99, 0, pages * 4), 0)
    assert e.schedule().waiting is None
    return sequence


def test_lru_orders_by_last_use():
    e = Engine(CONFIG)
    first, second, third = (kept(e, source, 8) for source in (1, 2, 3))
    child = e.fork(second, 8, 0)
    e.cancel(child)
    assert order(e) == [first, third, second]


def test_each_use_advances_one_clock_by_one():
    """Whoever is retained and whoever is forked; who looks it up or pins it does not use it (decision 0003)."""
    e = Engine(CONFIG)
    first, second = kept(e, 1, 8), kept(e, 2, 8)
    e.pin(second)
    e.lookup(run(2, 0, 9))
    third = kept(e, 3, 4)
    e.cancel(e.fork(first, 8, 0))
    uses = snapshot(e).continuations
    assert [uses[one].last_use for one in (second, third, first)] == [2, 3, 4]


def test_cost_aware_gives_up_the_emptiest_pages_first():
    e = Engine(replace(CONFIG, policy="cost-aware"))
    full, tail, half = kept(e, 1, 8), kept(e, 2, 5), kept(e, 3, 6)
    # 8 tokens on 2 pages, 5 on 2, 6 on 2; of equal values the least recently used.
    assert order(e) == [tail, half, full]
    same = kept(e, 4, 6)
    assert order(e) == [tail, half, same, full]


def test_cost_aware_counts_what_releasing_frees():
    e = Engine(replace(CONFIG, policy="cost-aware"))
    whole = kept(e, 1, 12)
    child = e.fork(whole, 12, 1)
    e.end_unit(e.begin_unit([Append(child, run(1, 100, 1))]))
    e.finish(child)
    # The child alone has one token on one page; the parent alone has nothing that would become free.
    assert order(e) == [child, whole]
    private = kept(e, 2, 4)
    assert order(e) == [child, private, whole]
    e.release(child)
    assert order(e) == [whole, private], "4 tokens a page both; the older one first"


def test_cost_aware_lets_valuable_ones_grow_old():
    e = Engine(replace(CONFIG, policy="cost-aware"))
    valuable = kept(e, 1, 8)
    turns = 0
    for source in range(2, 20):
        kept(e, source, 5)
        e.cancel(fill(e, 12 - e.pools[0].leased + 1))
        turns += 1
        if e.evicted == [valuable] or valuable not in e.cache.continuations:
            break
    # 4 tokens a page against 2.5 a page and an age that rises by 2.5 with each that yields: the second time on, what
    # comes new is worth more than what was never used again.
    policy = e.cache.policy
    assert isinstance(policy, CostAware)
    assert valuable not in e.cache.continuations
    assert 1 < turns < 6


def test_cost_aware_lets_a_use_make_up_for_a_lower_value():
    e = Engine(replace(CONFIG, policy="cost-aware"))
    cheap, middling, valuable = kept(e, 1, 5), kept(e, 2, 6), kept(e, 3, 8)
    e.cancel(fill(e, 8))
    assert e.cache.continuations.keys() == {middling, valuable}, cheap
    assert order(e) == [middling, valuable], "3 and 4 tokens a page, both used before anybody yielded"
    # The age is 2.5 now, so that the one used again has 5.5.
    e.cancel(e.fork(middling, 6, 0))
    assert order(e) == [valuable, middling]


def test_cost_aware_remembers_nobody_who_has_left():
    """Each way out of the cache: a release, a move, a turn that replaces the last one, and yielding."""
    e = Engine(replace(CONFIG, policy="cost-aware"))
    policy = e.cache.policy
    assert isinstance(policy, CostAware)

    def turn(source: int, tokens: int, **how: object) -> int:
        sequence = e.submit(run(source, 0, tokens), 0, **how)  # type: ignore[arg-type]
        assert e.schedule().waiting is None
        e.end_unit(e.begin_unit([Prefill(sequence, tokens - e.sequences[sequence].frontier)]))
        assert policy._since.keys() == e.cache.continuations.keys()
        e.finish(sequence)
        return sequence

    released, moved, replaced, yielding = kept(e, 1, 4), kept(e, 2, 4), turn(3, 4, session="a"), kept(e, 4, 4)
    assert list(policy._since) == [released, moved, replaced, yielding]
    e.release(released)
    assert list(policy._since) == [moved, replaced, yielding]
    after = turn(2, 8, consume=True)
    assert list(policy._since) == [replaced, yielding, after]
    newer = turn(5, 4, session="a")
    assert list(policy._since) == [yielding, after, newer]
    fill(e, 12)
    assert sorted(e.evicted) == [yielding, after, newer]
    assert not policy._since


def test_weights_are_bytes_where_pools_declare_them():
    small = PlaneSpec(PROFILES["FP32"], Geometry(1, 1, 4), 4, "mtp")
    pools = (PoolSpec("main", 12, 4, (PLANES,)), PoolSpec("mtp", 12, 4, (small,)))
    main, mtp = (pool.page_bytes for pool in pools)
    assert main > mtp > 1
    e = Engine(EngineConfig(pools, 48, 4, policy="cost-aware"))
    one = kept(e, 1, 8)
    policy = e.cache.policy
    assert isinstance(policy, CostAware)
    rank = policy._rank(e.cache.continuations[one])
    assert rank == (False, 8 * TOKEN // (2 * main + 2 * mtp)), "two pages of each pool"


def test_weights_are_one_where_not_every_pool_declares_its_bytes():
    pools = (PoolSpec("main", 12, 4, (PLANES,)), PoolSpec("mtp", 12, 4))
    assert pools[0].page_bytes
    e = Engine(EngineConfig(pools, 48, 4, policy="cost-aware"))
    one = kept(e, 1, 8)
    policy = e.cache.policy
    assert isinstance(policy, CostAware)
    assert policy._rank(e.cache.continuations[one]) == (False, 8 * TOKEN // 4), "two pages of each pool"


def test_a_value_is_rounded_down():
    """Values that differ by less than one are equal, and the least recently used goes."""
    policy = CostAware([1])
    e = Engine(CONFIG, policy=policy)
    one = kept(e, 1, 10)
    assert (10 * TOKEN) % 3
    assert policy._rank(e.cache.continuations[one]) == (False, 10 * TOKEN // 3)


def test_what_has_sunk_but_for_a_page_of_somebody_else_frees_nothing():
    """Its pages on Host count only where it has none on Device: releasing it gives no Device page back."""
    e = Engine(replace(CONFIG, pools=(PoolSpec("main", 12, 4, (PLANES,)),), host=HostSpec(4096, 64)))
    policy = CostAware([1])
    one = kept(e, 1, 8)
    child = e.fork(one, 4, 0)
    e.demote(one)
    e.progress()
    assert [page.device >= 0 for page in e.cache.continuations[one].spaces[0].pages] == [True, False]
    assert policy._rank(e.cache.continuations[one]) == (True, 0)
    e.cancel(child)
    assert policy._rank(e.cache.continuations[one]) == (False, 8 * TOKEN), "the page on Device is its own"
    e.demote(one)
    e.progress()
    assert policy._rank(e.cache.continuations[one]) == (False, 8 * TOKEN // 2), "two pages on Host"


class Useless:
    """Names nobody, or the same one for ever."""

    name = "useless"

    def __init__(self, repeat: int) -> None:
        self.repeat = repeat

    def order(self, offered):
        return list(offered)[-1:] * self.repeat

    def used(self, kept: Continuation) -> None: ...

    def yields(self, kept: Continuation) -> None: ...

    def gone(self, kept: Continuation) -> None: ...


@pytest.mark.parametrize("repeat", [0, 1, 5])
def test_whatever_a_policy_says_everyone_is_offered_once(repeat):
    e = Engine(CONFIG, policy=Useless(repeat))
    names = [kept(e, source, 8) for source in (1, 2, 3)]
    expected = names if not repeat else [names[-1], *names[:-1]]
    assert order(e) == expected
    fill(e, 12)
    assert e.evicted == expected
    assert counters(e) == ((0, 12, 0),)


class Raising(LeastRecentlyUsed):
    """Raises as the second one yields."""

    def __init__(self) -> None:
        self.yielded = 0

    def yields(self, kept: Continuation) -> None:
        self.yielded += 1
        if self.yielded == 2:
            raise RuntimeError("the policy is wrong")


def test_room_is_given_back_where_a_policy_raises_as_one_yields():
    e = Engine(CONFIG, policy=Raising())
    first, second, third = (kept(e, source, 8) for source in (1, 2, 3))
    before = snapshot(e)
    with pytest.raises(RuntimeError, match="the policy is wrong"):
        e.fork(third, 8, 10 * 4)
    assert snapshot(e) == before
    e.fork(third, 8, 10 * 4)
    assert e.evicted == [first, second]


def test_no_more_yield_than_needed_and_pinned_ones_do_not():
    e = Engine(replace(CONFIG, policy="cost-aware"))
    cheap, dear, pinned = kept(e, 1, 5), kept(e, 2, 8), kept(e, 3, 5)
    e.pin(pinned)
    fill(e, 8)
    assert e.evicted == [cheap]
    assert set(e.cache.continuations) == {dear, pinned}


def test_a_policy_is_not_asked_where_nobody_has_to_yield():
    """An order is linear in all that is retained; where just as many pages are free as are needed none is made."""

    class Asked(Useless):
        times = 0

        def order(self, offered):
            self.times += 1
            return offered

    policy = Asked(0)
    e = Engine(CONFIG, policy=policy)
    first, second = kept(e, 1, 8), kept(e, 2, 8)
    e.cancel(fill(e, 8))
    assert (policy.times, e.evicted) == (0, [])
    fill(e, 9)
    assert policy.times > 0
    assert (e.evicted, list(e.cache.continuations)) == ([first], [second])


def test_names():
    assert isinstance(policy_of(CONFIG), LeastRecentlyUsed)
    assert isinstance(Engine(CONFIG).cache, ContextCache)
    with pytest.raises(BadArgument, match="cost-aware"):
        replace(CONFIG, policy="fifo")
