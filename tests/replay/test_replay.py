"""A replay holds on the sound engine with figures that can be worked out by other means, and fails on a broken one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kvcrucible.contract.config import pages_for
from kvcrucible.contract.operations import Waiting, WaitingKind
from kvcrucible.contract.tokens import common_prefix, count
from kvcrucible.engine import observe as observe_module
from kvcrucible.engine import starting
from kvcrucible.engine.cache import ContextCache
from kvcrucible.engine.engine import Engine
from kvcrucible.engine.pages import PageLedger
from kvcrucible.engine.pool import PagePool
from kvcrucible.engine.prefix import PrefixIndex
from kvcrucible.engine.space import AddressSpace
from kvcrucible.engine.tables import ExecutionTables
from kvcrucible.invariants.judgements import ENGINE_FAULT
from kvcrucible.perf import replay as replay_module
from kvcrucible.perf.replay import Replay
from kvcrucible.perf.replay_figures import Figures
from kvcrucible.perf.replay_settings import ReplaySettings
from kvcrucible.perf.replay_tokens import InfiniteCache, output_of, prompt_of
from kvcrucible.perf.replay_watch import OperationFailed
from kvcrucible.perf.traces import TraceRequest, synthetic_trace

Trace = list[TraceRequest]


def machine_free(figures: Figures) -> dict[str, Any]:
    plain = figures.to_plain()
    del plain["timing"]
    return plain


def test_a_sound_engine_holds_and_every_invariant_had_something_to_judge(
    small_trace: Trace, small_settings: ReplaySettings
) -> None:
    figures = Replay(small_trace, small_settings).run()
    assert figures.failure is None
    assert not figures.cut_short
    # A replay's device is immediate and has no Host tier: nothing retires and nothing is anywhere else.
    assert {name for name, premises in figures.judged.items() if not premises} == {
        "host-conservation",
        "one-visible-replica",
        "publish-order",
        "recycle-fenced",
        "replica-valid",
        "transfer-pinned",
    }
    admitted = sum(figures.admitted.values())
    assert figures.requests == len(small_trace) == admitted + sum(figures.refused.values())
    assert figures.finished == admitted
    # Small pool, shared prefixes that end inside a page: the scenario reaches what it is meant to reach.
    assert set(figures.refused) == {"limit-exceeded"}
    assert min(figures.evictions, figures.page_copies, figures.waits["device-capacity"]) > 0
    assert min(figures.admitted[mode] for mode in ("cold", "fork", "move-truncated")) > 0
    assert figures.step_checks == figures.operations
    assert figures.full_checks == figures.operations // small_settings.full_every + 2
    assert figures.peak_leased_pages <= small_settings.capacity_pages


def test_token_figures_are_those_of_the_trace(small_trace: Trace, small_settings: ReplaySettings) -> None:
    figures = Replay(small_trace, small_settings).run()
    ran = [
        request
        for request in small_trace
        if pages_for(request.prompt_tokens + request.output_tokens, 16) <= small_settings.capacity_pages
    ]
    assert 0 < len(ran) < len(small_trace)
    assert figures.prompt_tokens == sum(request.prompt_tokens for request in ran)
    assert figures.appended_tokens == sum(request.output_tokens for request in ran)
    assert 0 < figures.hit_tokens < figures.ideal_hit_tokens


def test_a_pool_for_everything_hits_what_an_infinite_cache_hits(
    small_trace: Trace, small_settings: ReplaySettings
) -> None:
    alone = replace(small_settings, capacity_pages=20_000, concurrency=1, full_every=10_000)
    figures = Replay(small_trace, alone).run()
    assert figures.held
    assert figures.evictions == 0
    assert figures.hit_tokens == figures.ideal_hit_tokens > 0
    assert figures.refused == figures.waits == {}


def test_conversations_hit_their_earlier_turns(small_settings: ReplaySettings) -> None:
    trace = list(synthetic_trace(1, 60))
    figures = Replay(trace, replace(small_settings, capacity_pages=4_000, decode_run=256)).run()
    assert figures.failure is None
    # Four texts of 512 tokens start every session: only the first request of each has to prefill them.
    assert figures.hit_tokens >= 512 * (60 - 4 * small_settings.concurrency)
    assert figures.hit_tokens <= figures.ideal_hit_tokens <= figures.ideal_block_hit_tokens


def test_the_ideal_is_the_longest_prefix_of_any_earlier_prompt(small_trace: Trace) -> None:
    infinite = InfiniteCache()
    prompts = [prompt_of(request, ordinal) for ordinal, request in enumerate(small_trace)]
    for ordinal, request in enumerate(small_trace):
        longest = max((common_prefix(prompts[ordinal], earlier) for earlier in prompts[:ordinal]), default=0)
        ideal = infinite.add(request)
        assert ideal.tokens == min(longest, request.prompt_tokens - 1)
        assert ideal.blocks == longest


def test_a_narrow_block_is_hit_as_far_as_it_goes() -> None:
    def asked(prompt: int, *blocks: int) -> TraceRequest:
        return TraceRequest(0, 0.0, prompt, 1, blocks, 16, None)

    infinite = InfiniteCache()
    hits = [infinite.add(asked(*each)) for each in [(20, 1, 2), (30, 1, 2), (40, 1, 2, 3), (40, 1, 2, 3)]]
    assert [hit.tokens for hit in hits] == [0, 20, 30, 39]
    assert [hit.blocks for hit in hits] == [0, 30, 32, 40]


def test_names_of_tokens(small_trace: Trace) -> None:
    own: set[int] = set()
    for ordinal, request in enumerate(small_trace):
        prompt = prompt_of(request, ordinal)
        assert count(prompt) == request.prompt_tokens
        named = set(request.block_ids or ())
        sources = {source for source, _, _ in prompt} - named
        sources |= {source for source, _, _ in output_of(ordinal, 0, request.output_tokens)}
        assert own.isdisjoint(sources)
        assert all(source < -1 for source in sources)
        own |= sources


def test_equal_seeds_give_equal_figures_and_another_seed_another_order(
    small_trace: Trace, small_settings: ReplaySettings
) -> None:
    first, again, other = (
        machine_free(Replay(small_trace, replace(small_settings, seed=seed)).run()) for seed in (3, 3, 4)
    )
    assert first == again
    assert first != other
    assert first["prompt_tokens"] == other["prompt_tokens"]


def test_chunks_and_runs_change_the_steps_and_not_what_is_written(
    small_trace: Trace, small_settings: ReplaySettings
) -> None:
    coarse = replace(small_settings, prefill_chunk=8192, decode_run=8192)
    fine, whole = (Replay(small_trace, settings).run() for settings in (small_settings, coarse))
    assert fine.held
    assert whole.held
    assert fine.operations > whole.operations
    assert fine.appended_tokens == whole.appended_tokens


def test_the_work_for_one_long_answer_grows_with_its_length_and_not_with_the_square_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replay_module, "LONG_TOKENS", 1_024)
    observed: list[int] = []
    space = observe_module._space

    def counted(owner: int, held: Any, provisional: int) -> Any:
        observed.append(len(held.pages))
        return space(owner, held, provisional)

    monkeypatch.setattr(observe_module, "_space", counted)

    def pages_looked_at(output: int) -> int:
        observed.clear()
        settings = ReplaySettings(4_096, page_size=16, decode_run=16, full_every=1_000_000)
        figures = Replay([TraceRequest(0, 0.0, 16, output, None, None, None)], settings).run()
        assert figures.held
        assert figures.appended_tokens == output
        return sum(observed)

    assert pages_looked_at(32_000) < 6 * pages_looked_at(8_000)


def test_an_ordinary_answer_is_decoded_in_runs_of_the_length_asked_for() -> None:
    settings = ReplaySettings(1_024, decode_run=16)
    figures = Replay([TraceRequest(0, 0.0, 20_000, 1_600, None, None, None)], settings).run()
    # Submit, schedule, three chunks, a checkpoint, a hundred runs, finish, progress at the end of each round, release.
    assert figures.operations == 1 + 1 + 2 * 3 + 1 + 2 * 100 + 1 + 103 + 1


def test_an_interrupt_leaves_partial_figures(
    small_trace: Trace, small_settings: ReplaySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish, calls = Engine.finish, iter(range(1000))

    def interrupted(engine: Engine, sequence: int, retain: bool = True) -> bool:
        if next(calls) == 20:
            raise KeyboardInterrupt
        return finish(engine, sequence, retain)

    monkeypatch.setattr(Engine, "finish", interrupted)
    figures = Replay(small_trace, small_settings).run()
    assert figures.cut_short
    assert figures.held
    assert figures.finished == 20
    assert machine_free(figures)["cut_short"] is True


def test_progress_counts_every_request_once(small_trace: Trace, small_settings: ReplaySettings) -> None:
    seen: list[int] = []
    Replay(small_trace, small_settings, seen.append).run()
    assert seen == list(range(1, len(small_trace) + 1))


# -- planted faults ----------------------------------------------------------------------------------------------------


def share_without_counting(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PageLedger, "share", lambda self, pages: None)


def table_row_not_cleared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ExecutionTables, "cut", lambda self, row, blocks: None)


def retained_page_released(patch: pytest.MonkeyPatch) -> None:
    retain = ContextCache.retain

    def broken(self: ContextCache, sequence: Any) -> int | None:
        replaced = retain(self, sequence)
        self._ledger.drop(0, sequence.spaces[0].pages[-1:], None)
        return replaced

    patch.setattr(ContextCache, "retain", broken)


def hit_one_token_too_long(patch: pytest.MonkeyPatch) -> None:
    longest = PrefixIndex.longest

    def broken(self: PrefixIndex, tokens: Any, *rest: Any) -> tuple[int, int] | None:
        found = longest(self, tokens, *rest)
        return found and (min(found[0] + 1, count(tokens)), found[1])

    patch.setattr(PrefixIndex, "longest", broken)


def tail_not_copied(patch: pytest.MonkeyPatch) -> None:
    fork = AddressSpace.fork

    def broken(self: AddressSpace, ledger: PageLedger, tail: Any, position: int, copy: Any) -> Any:
        child = fork(self, ledger, tail, position, copy)
        if position % self.page_size:
            ledger.drop(self.pool, [child.pages.pop()], None)
            child.pages.append(self.pages[position // self.page_size])
            ledger.share(child.pages[-1:])
        return child

    patch.setattr(AddressSpace, "fork", broken)


def nobody_admitted(patch: pytest.MonkeyPatch) -> None:
    waiting = WaitingKind.DEVICE_CAPACITY
    patch.setattr(starting, "admit_head", lambda engine, request: Waiting(request.sequence, waiting))


def engine_breaks_down(patch: pytest.MonkeyPatch) -> None:
    def broken(self: ContextCache, holder: Any) -> int:
        raise AssertionError("an assertion of the engine's own")

    patch.setattr(ContextCache, "mark", broken)


def row_change_unreported(patch: pytest.MonkeyPatch) -> None:
    publish = ExecutionTables.publish

    def broken(self: ExecutionTables, row: int, first: int, devices: Any) -> None:
        known = (self.pool, row) in self._touched.rows
        publish(self, row, first, devices)
        if not known:
            self._touched.rows.discard((self.pool, row))

    patch.setattr(ExecutionTables, "publish", broken)


@pytest.mark.parametrize(
    ("plant", "invariant"),
    [
        (share_without_counting, "refcount-exact"),
        (table_row_not_cleared, "table-mirror"),
        (retained_page_released, "refcount-exact"),
        (hit_one_token_too_long, "exact-prefix-identity"),
        (tail_not_copied, "single-writer"),
        (nobody_admitted, "cache-yields"),
        (engine_breaks_down, ENGINE_FAULT),
        (row_change_unreported, "table-mirror"),
    ],
)
def test_a_broken_engine_is_caught_at_the_operation_that_shows_it(
    plant: Callable[[pytest.MonkeyPatch], None],
    invariant: str,
    small_trace: Trace,
    small_settings: ReplaySettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    figures = Replay(small_trace, small_settings).run()
    assert not figures.held
    assert isinstance(figures.failure, OperationFailed)
    assert invariant in {violation.invariant for violation in figures.failure.violations}
    assert figures.failure.number == figures.operations
    message = str(figures.failure)
    assert message.startswith(f"operation {figures.operations}, {figures.failure.operation} of request ")
    assert invariant in message
    plain = figures.to_plain()
    assert plain["failure"]["operation_number"] == figures.operations
    assert plain["violations"]


def test_what_only_the_whole_state_shows_is_found_by_a_full_check(
    small_trace: Trace, small_settings: ReplaySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = PagePool._end

    def loses_a_page(self: PagePool, leases: Any) -> None:
        end(self, leases)
        if len(tuple(self._unleased)) > 5:
            self._unleased.take(1)

    monkeypatch.setattr(PagePool, "_end", loses_a_page)
    figures = Replay(small_trace, small_settings).run()
    assert figures.failure is not None
    assert figures.failure.operation.startswith("full check after ")
    assert figures.failure.number % small_settings.full_every == 0
    assert {violation.invariant for violation in figures.failure.violations} == {"lease-unique"}
