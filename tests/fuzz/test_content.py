"""Content depends on the whole prefix, the position, the layer and the side, and every profile holds it exactly."""

from __future__ import annotations

import pytest

np = pytest.importorskip("numpy")

from kvcrucible.contract.errors import BadArgument  # noqa: E402
from kvcrucible.contract.profiles import PROFILES, Geometry, Side  # noqa: E402
from kvcrucible.contract.tokens import canonical, run  # noqa: E402
from kvcrucible.fuzz.content import Content  # noqa: E402
from kvcrucible.fuzz.geometry import payload_geometry  # noqa: E402
from kvcrucible.reference.codecs import storing  # noqa: E402

GEOMETRY = Geometry(layers=2, kv_heads=3, head_dim=32)


def test_equal_prefixes_have_equal_rows_and_nothing_else_has() -> None:
    content = Content(GEOMETRY)
    tokens = canonical([(0, 0, 6), (1, 0, 6)])
    other = canonical([(0, 0, 5), (2, 0, 1), (1, 0, 6)])
    keys, _ = content.rows(tokens, 0, 12, 0)
    changed, _ = content.rows(other, 0, 12, 0)
    assert np.array_equal(keys[:5], changed[:5])
    # The same token at the same position, but after another past.
    assert not any(np.array_equal(a, b) for a, b in zip(keys[5:], changed[5:], strict=True))


def test_layers_sides_positions_and_pools_differ() -> None:
    content, elsewhere = Content(GEOMETRY), Content(GEOMETRY, pool=1)
    tokens = run(0, 0, 4)
    rows = [row for layer in (0, 1) for side in content.rows(tokens, 0, 4, layer) for row in side]
    rows += list(elsewhere.rows(tokens, 0, 4, 0)[0])
    assert len({row.tobytes() for row in rows}) == len(rows)


def test_a_part_is_a_slice_of_the_whole() -> None:
    content = Content(GEOMETRY)
    tokens = run(3, 5, 20)
    whole, part = content.rows(tokens, 0, 20, 1), Content(GEOMETRY).rows(tokens, 7, 13, 1)
    assert all(np.array_equal(w[7:13], p) for w, p in zip(whole, part, strict=True))
    assert content.rows(tokens, 4, 4, 0)[0].shape == (0, 3, 32)


@pytest.mark.parametrize("name", PROFILES)
def test_every_profile_holds_the_content_exactly(name: str) -> None:
    profile = PROFILES[name]
    content = Content(payload_geometry(profile), 0, profile)
    for side, rows in zip(Side, content.rows(run(0, 0, 50), 0, 50, 0), strict=True):
        exact = storing(profile, side)(rows)
        assert np.array_equal(storing(profile, side)(exact), exact)
        assert np.array_equal(exact, rows) == (not profile.quantised)
        assert len({row.tobytes() for row in rows.reshape(100, -1)}) == 100


@pytest.mark.parametrize("name", PROFILES)
def test_the_payload_geometry_is_the_smallest_that_the_groups_divide(name: str) -> None:
    geometry = payload_geometry(PROFILES[name])
    PROFILES[name].check_head_dim(geometry.head_dim)
    due = {"FP32": 4, "BF16": 4, "INT8-G64": 64, "NVFP4-G16": 16}.get(name, 256)
    assert geometry == Geometry(2, 2, due)


def test_a_geometry_that_the_profile_cannot_store_is_refused() -> None:
    with pytest.raises(BadArgument, match="groups of 64"):
        Content(GEOMETRY, 0, PROFILES["INT8-G64"])
