"""Each back-end writes the bits that the reference writes, and reads the numbers that it reads.

Verifies: the torch codec by itself, and each back-end through its operators: what an append leaves in the planes, and
what attention over a single position, whose weight is 1, reads back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcrucible.contract.errors import BadArgument

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")
pytestmark = pytest.mark.torch

ELEMENTS = {
    "INT8": ("int8", "float16", 64),
    "FP8": ("e4m3fn", "float16", 256),
    "NVFP4": ("e2m1", "e4m3fn", 16),
}
every_codec = pytest.mark.parametrize("elements", ELEMENTS.values(), ids=ELEMENTS)
engines = pytest.mark.usefixtures("engine")


class ThroughKernels:
    """A back-end's operators in the shape of a codec: one KV head, and a page for each row."""

    def __init__(self, elements: tuple[str, str, int], backend: str) -> None:
        from kvcrucible.engine.kernels.codec import GroupCodec

        self.codec, self.backend, self.packed = GroupCodec(*elements), backend, elements[0] == "e2m1"

    def view(self, codes: Any, scales: Any) -> Any:
        """Return a view of values ``[page, 1, 1, …]`` beside keys of zeros; row 0 of the table maps the pages."""
        from kvcrucible.engine.kernels.view import LayerView, SideView

        pages, stored = codes.shape
        value = SideView(codes.view(pages, 1, 1, -1), scales.view(pages, 1, 1, -1), self.codec)
        key = SideView(torch.zeros(pages, 1, 1, stored * (2 if self.packed else 1)))
        tables = torch.arange(pages, dtype=torch.int32)[:, None].contiguous()
        return LayerView(key, value, tables)

    def encode(self, rows: Any) -> tuple[Any, Any]:
        from kvcrucible.engine.kernels.api import append

        flat = rows.reshape(-1, 1, rows.shape[-1])
        shapes = self.codec.encode(torch.zeros(len(flat), rows.shape[-1]))
        codes, scales = (torch.zeros_like(part) for part in shapes)
        count = len(flat)
        append(
            self.view(codes, scales),
            range(count),
            [0] * count,
            [1] * count,
            torch.zeros_like(flat),
            flat,
            backend=self.backend,
        )
        return tuple(part.view(*rows.shape[:-1], -1) for part in (codes, scales))

    def decode(self, codes: Any, scales: Any) -> Any:
        from kvcrucible.engine.kernels.api import paged_attention

        flat = [part.reshape(-1, part.shape[-1]).contiguous() for part in (codes, scales)]
        view, count = self.view(*flat), len(flat[0])
        q = torch.zeros(count, 1, view.head_dim)
        out, _ = paged_attention(q, view, range(count), [1] * count, [1] * count, backend=self.backend)
        return out.view(*codes.shape[:-1], -1)


#: What stands for the engine in the test under way: the torch codec by itself, or a back-end's operators.
ENGINE = "codec"


@pytest.fixture(scope="session", params=["codec", "torch", "cpu"])
def engine(request: pytest.FixtureRequest) -> Iterator[None]:
    from kvcrucible.engine.kernels.backends import BACKENDS

    reason = None if request.param == "codec" else BACKENDS[request.param].why_not([], None)
    if reason is not None:
        pytest.skip(f"kernels {request.param}: {reason}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "ENGINE", request.param)
        yield


def pair(elements: tuple[str, str, int]) -> tuple[Any, Any]:
    from kvcrucible.engine.kernels.codec import GroupCodec
    from kvcrucible.reference.codecs import GroupCodec as Reference

    ours = GroupCodec(*elements) if ENGINE == "codec" else ThroughKernels(elements, ENGINE)
    return ours, Reference(*elements)


def bits(stored: Any) -> Any:
    unsigned = {1: np.uint8, 2: np.uint16}[stored.element_size()]
    return stored.numpy().view(unsigned)


def check(elements: tuple[str, str, int], rows: Any) -> None:
    """Compare all bits for ``rows``, float32 ``[..., D]``, and what is read back."""
    ours, reference = pair(elements)
    written = ours.encode(torch.from_numpy(rows))
    with np.errstate(invalid="ignore"):  # signalling NaNs among the patterns
        due = reference.encode(rows.astype(np.float64))
    for plane, want in zip(written, due, strict=True):
        assert np.array_equal(bits(plane), want)
    read, want = ours.decode(*written).double().numpy(), reference.decode(*due)
    assert np.array_equal(read, want, equal_nan=True)
    if ENGINE == "codec":  # attention adds to +0, which makes a −0 one
        assert np.array_equal(np.signbit(read[read == 0]), np.signbit(want[want == 0]))


@engines
@every_codec
def test_every_bfloat16_number_in_groups_of_every_magnitude(elements: tuple[str, str, int]) -> None:
    """NaN and infinities among them, which void their groups; the other groups are those of one exponent."""
    patterns = np.arange(1 << 16, dtype=np.uint32) << 16
    rows = patterns.view(np.float32).reshape(-1, 256)
    check(elements, rows)
    check(elements, np.random.default_rng(0).permutation(rows.reshape(-1)).reshape(-1, 256))


@engines
@every_codec
def test_every_scale_at_the_edge_of_what_it_reaches(elements: tuple[str, str, int]) -> None:
    """Largest elements just below, at and just above scale · top, for every scale: where the choice can be off by one,
    and every tie between two codes under that scale, with its neighbours.
    """
    reference = pair(elements)[1]
    numbers, group = reference.scale_format, elements[2]
    scales = numbers.magnitudes[:: 1 if elements[1] == "e4m3fn" else 7]
    edge = (scales * reference.top).astype(np.float32)
    peaks = np.concatenate([edge, np.nextafter(edge, np.float32(0)), np.nextafter(edge, np.float32(np.inf))])
    rows = np.random.default_rng(1).uniform(-1, 1, (len(peaks), group)).astype(np.float32) * peaks[:, None]
    halves = {"int8": np.arange(0.5, 127), "e2m1": np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5])}
    if elements[0] in halves:
        ties = halves[elements[0]]
    else:
        small = np.concatenate([np.arange(8) * 2.0**-9, *(np.arange(8, 16) * 2.0**e for e in range(-9, 6))])
        ties = (small[1:] + small[:-1]) / 2
        ties = ties[ties < 448]
    place = np.arange(len(peaks) * 6) % len(ties)
    tie = (ties[place].reshape(len(peaks), 6) * np.tile(scales, 3)[:, None]).astype(np.float32)
    rows[:, 1:7], rows[:, 7:13] = tie, np.nextafter(tie, np.float32(np.inf))
    rows[:, 0] = -peaks
    rows[np.abs(rows) > peaks[:, None]] = 0
    check(elements, rows)


@engines
@every_codec
@given(seed=st.integers(0, 2**32 - 1), exponent=st.integers(-140, 120), spread=st.integers(0, 30))
@settings(max_examples=60)
def test_numbers_of_any_magnitude(
    elements: tuple[str, str, int], seed: int, exponent: int, spread: int
) -> None:
    draw = np.random.default_rng(seed)
    exponents = exponent + draw.integers(-spread, spread + 1, (4, 512))
    with np.errstate(over="ignore", under="ignore"):
        rows = (draw.standard_normal((4, 512)) * np.exp2(exponents.astype(np.float64))).astype(np.float32)
    check(elements, rows)


@engines
@every_codec
@pytest.mark.parametrize(
    "special", [0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1e30, -3e38, 1e-40, 2.0**-149]
)
def test_special_numbers_alone_and_among_others(elements: tuple[str, str, int], special: float) -> None:
    rows = np.full((2, 2 * elements[2]), special, dtype=np.float32)
    rows[1] = np.linspace(-1, 1, 2 * elements[2], dtype=np.float32)
    rows[1, 3] = special
    check(elements, rows)


@engines
@every_codec
def test_every_pattern_that_can_be_stored_is_read_as_the_reference_reads_it(
    elements: tuple[str, str, int],
) -> None:
    ours, reference = pair(elements)
    codes = torch.arange(256, dtype=torch.int32).to(torch.int8 if elements[0] == "int8" else torch.uint8)
    codes = codes[: 256 // elements[2] * elements[2]].reshape(1, -1)
    groups = codes.shape[1] * (2 if ours.packed else 1) // elements[2]
    if elements[1] == "float16":
        patterns = torch.arange(1 << 16, dtype=torch.int32)[::37]
        scales = patterns.to(torch.int16).view(torch.float16)
    else:
        patterns = torch.arange(256, dtype=torch.int32)
        scales = patterns.to(torch.uint8)
    spread = scales[:, None].expand(-1, groups).contiguous()
    read = ours.decode(codes.expand(len(scales), -1), spread).double().numpy()
    want = reference.decode(np.broadcast_to(bits(codes), (len(scales), codes.shape[1])), bits(spread))
    assert np.array_equal(read, want, equal_nan=True)


@engines
@every_codec
def test_bfloat16_rows_are_encoded_as_the_float32_they_are(elements: tuple[str, str, int]) -> None:
    rows = torch.randn((3, 256), generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    ours = pair(elements)[0]
    for narrow, wide in zip(ours.encode(rows), ours.encode(rows.float()), strict=True):
        assert np.array_equal(bits(narrow), bits(wide))


def test_a_codec_of_other_elements_is_refused() -> None:
    from kvcrucible.engine.kernels.codec import GroupCodec

    with pytest.raises(BadArgument, match="float32 codes"):
        GroupCodec("float32", "float16", 4)
    with pytest.raises(BadArgument, match="int8 scales"):
        GroupCodec("int8", "int8", 4)
