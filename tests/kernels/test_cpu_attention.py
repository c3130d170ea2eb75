"""The compiled kernels where they differ from the plain ones: splits, spans, blocks, threads and vector widths.

Verifies: the oracle's budget at every boundary of those; that the same logical inputs give the same bits whatever the
page ids, the plane order, the rest of the batch, the number of threads and the content of working memory; that nothing
is written beyond working memory.  Does not verify speed (``kvcrucible bench-decode`` measures it).
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvcrucible.contract.profiles import PROFILES, PlaneOrder

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

from kvcrucible.engine.kernels import cpu_backend, cpu_build, cpu_library  # noqa: E402

pytestmark = pytest.mark.torch

#: Page boundaries, and those between splits, with their neighbours.
LENGTHS = [0, 1, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 512, 513]
P = 64


@pytest.fixture(autouse=True)
def _compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = cpu_backend.why_not([], None)
    if reason is not None:
        pytest.skip(f"kernels cpu: {reason}")
    monkeypatch.setenv("KVCRUCIBLE_KERNELS", "cpu")


@pytest.fixture
def many_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Return what sets the number of threads, however small the work is."""
    monkeypatch.setattr(cpu_backend, "BYTES_A_THREAD", 1)
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def blocks_of(contexts: list[int], page_size: int = P) -> int:
    return sum(-(-context // page_size) for context in contexts)


@pytest.mark.parametrize("queries", ["one", "some", "all"])
@pytest.mark.parametrize(
    ("kv_heads", "group", "head_dim"),
    [(3, 4, 16), (1, 40, 16), (5, 1, 3), (2, 7, 20), (9, 4, 32)],
    ids=["plain", "more lines than a block", "no group", "padded", "two spans"],
)
def test_every_boundary_length(
    make_batch: Callable[..., Any], kv_heads: int, group: int, head_dim: int, queries: str
) -> None:
    contexts = LENGTHS if queries != "all" else [length for length in LENGTHS if length <= 65]
    lengths = {
        "one": [1] * len(contexts),
        "some": [min(context, 8 + context % 2) for context in contexts],
        "all": contexts,
    }[queries]
    order = torch.randperm(blocks_of(contexts) + 3, generator=torch.Generator().manual_seed(1)).tolist()
    batch = make_batch(contexts, lengths, P, kv_heads, group, head_dim, order=order)
    assert batch.misfit(*batch.run()) == []


@pytest.mark.parametrize("page_size", [1, 128, 256])
@pytest.mark.parametrize("order", PlaneOrder)
def test_pages_smaller_and_larger_than_a_tile(
    make_batch: Callable[..., Any], page_size: int, order: PlaneOrder
) -> None:
    contexts = [1, 63, 65, 129, 257, 600]
    batch = make_batch(contexts, [1, 2, 1, 9, 1, 1], page_size, 2, 2, 16, plane_order=order.value)
    assert batch.misfit(*batch.run()) == []
    assert batch.misfit(*batch.run(causal=False), causal=False) == []


@pytest.mark.parametrize("profile", PROFILES)
def test_neither_page_ids_nor_order_nor_poison_change_a_bit(
    make_batch: Callable[..., Any], profile: str
) -> None:
    contexts, queries = [1, 64, 65, 300, 513, 33], [1, 3, 1, 1, 2, 33]
    blocks = blocks_of(contexts)
    permuted = torch.randperm(blocks, generator=torch.Generator().manual_seed(5)).tolist()
    results = [
        make_batch(
            contexts, queries, P, 2, 2, 256, profile, order.value, "bfloat16", order=ids, poison=poison
        ).run()
        for order in PlaneOrder
        for ids, poison in (
            (list(range(blocks)), float("nan")),
            ([page + 7 for page in range(blocks)], 1e30),
            (permuted, float("inf")),
        )
    ]
    for out, lse in results[1:]:
        assert torch.equal(out, results[0][0])
        assert torch.equal(lse, results[0][1])


@pytest.mark.parametrize("profile", ["FP32", "INT8-G64"])
def test_neither_threads_nor_repeats_change_a_bit(
    make_batch: Callable[..., Any], many_threads: Callable[[int], None], profile: str
) -> None:
    batch = make_batch([700, 1, 65, 2100], [1, 1, 40, 3], P, 4, 2, 64, profile)
    many_threads(1)
    out, lse = batch.run()
    assert batch.misfit(out, lse) == []
    for threads in (1, 2, 3, 8, 8, 8, 300):
        many_threads(threads)
        again, lse_again = batch.run()
        assert torch.equal(again, out)
        assert torch.equal(lse_again, lse)


def test_the_rest_of_the_batch_changes_no_bit(make_batch: Callable[..., Any]) -> None:
    contexts, queries = [700, 1, 65, 1300], [1, 1, 40, 3]
    batch = make_batch(contexts, queries, P, 4, 2, 64)
    out, lse = batch.run()
    view, first = batch.storage.layer_view(0), 0
    for row, (context, count) in enumerate(zip(contexts, queries, strict=True)):
        lines = slice(first, first + count)
        alone = cpu_backend.paged_attention(batch.q[lines], view, [row], [count], [context], 64**-0.5, True)
        assert torch.equal(alone[0], out[lines])
        assert torch.equal(alone[1], lse[lines])
        first += count


class GuardedTorch:
    """Torch whose ``empty`` is full of NaN and followed by a guard."""

    GUARD = 64

    def __init__(self) -> None:
        self.made: list[Any] = []
        self.bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def empty(self, count: int, dtype: Any = torch.float32) -> Any:
        fill = float("nan") if dtype.is_floating_point else -7
        memory = torch.full((count + self.GUARD,), fill, dtype=dtype)
        self.made.append(memory)
        self.bytes += count * memory.element_size()
        return memory[:count]

    def intact(self) -> bool:
        tails = [memory[-self.GUARD :] for memory in self.made]
        return all(bool(((tail != tail) | (tail == -7)).all()) for tail in tails)


@pytest.mark.parametrize("shape", [(3, 4, 16), (1, 40, 20), (9, 3, 256)])
@pytest.mark.parametrize("threads", [1, 3])
def test_working_memory_is_what_is_declared_whatever_was_in_it(
    make_batch: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    many_threads: Callable[[int], None],
    shape: tuple[int, int, int],
    threads: int,
) -> None:
    contexts, queries = [0, 1, 65, 600, 2100], [1, 1, 30, 8, 1]
    batch = make_batch(contexts, queries, P, *shape, profile="NVFP4-G16" if shape[2] == 256 else "FP32")
    many_threads(threads)
    out, lse = batch.run()
    guarded = GuardedTorch()
    monkeypatch.setattr(cpu_backend, "torch", guarded)
    again = batch.run()
    assert torch.equal(again[0], out)
    assert torch.equal(again[1], lse)
    assert guarded.intact()
    view = batch.storage.layer_view(0)
    assert guarded.bytes == cpu_backend.working_memory(view, shape[0] * shape[1], queries, contexts)


def test_working_memory_is_the_same_at_4k_and_at_64k(make_batch: Callable[..., Any]) -> None:
    view = make_batch([1], [1], P, 8, 4, 128).storage.layer_view(0)
    for queries in (1, 5, 64):
        four, sixty_four = (
            cpu_backend.working_memory(view, 32, [queries] * 8, [context] * 8) for context in (4096, 65536)
        )
        assert four == sixty_four > 0
    assert cpu_backend.working_memory(view, 32, [1], [0]) == 0
    # Less than the keys and values of one row at 4 K would take.
    assert cpu_backend.working_memory(view, 32, [1] * 8, [4096] * 8) < 2 * 4096 * 8 * 128 * 4


def test_a_nan_inside_the_context_reaches_its_own_row_only(make_batch: Callable[..., Any]) -> None:
    batch = make_batch([600, 300], [1, 1], P, 2, 2, 16)
    page = batch.storage.table_row(0)[1]
    batch.storage.layer_view(0).key.codes[page, 0, 5, 3] = float("nan")
    out, lse = batch.run()
    assert bool(out[0, :2].isnan().all())
    assert bool(lse[0, :2].isnan().all())
    assert not bool(out[0, 2:].isnan().any())
    assert not bool(out[1].isnan().any())


def test_queries_that_do_not_lie_side_by_side(make_batch: Callable[..., Any]) -> None:
    batch = make_batch([70, 5], [1, 1], P, 2, 2, 16)
    out, lse = batch.run()
    batch.q = batch.q.transpose(0, 1).contiguous().transpose(0, 1)
    assert not batch.q.is_contiguous()
    again = batch.run()
    assert torch.equal(again[0], out)
    assert torch.equal(again[1], lse)


def exponentials(x: Any) -> Any:
    to = torch.empty_like(x)
    cpu_library.library().functions.kv_exp(
        ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(to.data_ptr()), ctypes.c_int64(len(x))
    )
    return to


def test_the_exponential_is_as_good_as_the_budget_takes_it_to_be() -> None:
    """Within 2 ulp, so within a relative 4u, where the result is normal."""
    x = torch.cat([-torch.logspace(-45, 1.9, 60_001), torch.linspace(-87.29, 0, 140_001)])
    x = x[x > -87.3]
    got, want = exponentials(x).double().numpy(), np.exp(x.double().numpy())
    assert float((np.abs(got - want) / np.spacing(want.astype(np.float32))).max()) <= 2
    assert exponentials(torch.tensor([0.0, -0.0, -float("inf"), -88.0, -1e30])).tolist() == [1, 1, 0, 0, 0]
    assert bool(exponentials(torch.tensor([float("nan")])).isnan().all())


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names x86-64 instruction sets")
@pytest.mark.parametrize("target", ["x86-64", "x86-64-v3"])
def test_narrower_vectors(
    make_batch: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: str
) -> None:
    """The same text for processors with 4 and with 8 lanes, which this one can imitate."""
    monkeypatch.setattr(cpu_build, "TARGET_FLAGS", ((f"-march={target}",),))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cpu_library.forget()
    try:
        assert cpu_library.library().built.built
        for profile in PROFILES:
            batch = make_batch([1, 65, 300], [1, 30, 1], P, 2, 2, 256, profile)
            assert batch.misfit(*batch.run()) == []
    finally:
        cpu_library.forget()
