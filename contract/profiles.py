"""Storage profiles: which planes hold keys and values, and how many bytes each takes (DESIGN 4.2).

A profile is a list of planes and nothing else.  Every byte figure of the project is computed from that list,
side by side, and never as twice one side: a profile may store keys and values differently.  A quantised
profile is a code plane and a scale plane per side; adding one is adding planes here, never a formula
elsewhere.  What codes and scales mean, to the bit, is ``reference/codecs.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kvcrucible.contract.errors import BadArgument, InputError

BITS_PER_BYTE = 8


class Side(StrEnum):
    """Which half of the attention state a plane belongs to."""

    KEY = "k"
    VALUE = "v"


class Role(StrEnum):
    """What a plane's elements are: the numbers or their codes, or the scales that codes are multiplied by."""

    CODE = "code"
    SCALE = "scale"


class PlaneOrder(StrEnum):
    """Which axis of a plane is slowest (DESIGN 4.1).  There are two and no third."""

    #: ``[page, head, offset, dim]``: Main and MTP.
    PAGE_MAJOR = "page-major"
    #: ``[head, page, offset, dim]``: Draft.
    HEAD_MAJOR = "head-major"


@dataclass(frozen=True, slots=True)
class Geometry:
    """Shape of one pool's attention state: layers × KV heads × head dimension, all at least 1.

    Raises :class:`BadArgument` where a number is below 1.
    """

    layers: int
    kv_heads: int
    head_dim: int

    def __post_init__(self) -> None:
        for name in ("layers", "kv_heads", "head_dim"):
            if getattr(self, name) < 1:
                raise BadArgument(
                    f"a geometry with {name} = {getattr(self, name)}", "a number below 1", "give 1 or more"
                )


@dataclass(frozen=True, slots=True)
class Plane:
    """One array of a profile, the same for every layer.

    ``element`` names the stored format (``ELEMENT_BITS``) and ``element_bits`` is its width; one stored element
    covers ``group`` elements of the head dimension: 1 for codes, the group length for scales.
    """

    side: Side
    role: Role
    element: str
    element_bits: int
    group: int = 1

    @property
    def name(self) -> str:
        """Name of the plane, unique within a profile: ``k_code``, ``v_scale``."""
        return f"{self.side.value}_{self.role.value}"

    def divides(self, head_dim: int) -> bool:
        """Tell whether a row of ``head_dim`` elements is whole groups and whole bytes of this plane."""
        return head_dim % self.group == 0 and head_dim // self.group * self.element_bits % BITS_PER_BYTE == 0

    def elements_per_row(self, head_dim: int) -> int:
        """Return how many elements this plane stores for one token, layer and KV head.

        Raises :class:`BadArgument` where the plane's group does not divide ``head_dim``.
        """
        if not self.divides(head_dim):
            raise BadArgument(
                f"plane {self.name} for head dimension {head_dim}",
                f"groups of {self.group} elements, {self.element_bits} bits stored for each",
                f"use a multiple of {self.group} that fills whole bytes, or another profile",
            )
        return head_dim // self.group

    def bytes_per_row(self, head_dim: int) -> int:
        """Return the bytes that this plane stores for one token, layer and KV head; raises as above."""
        return self.elements_per_row(head_dim) * self.element_bits // BITS_PER_BYTE


@dataclass(frozen=True, slots=True)
class StorageProfile:
    """A named, closed list of planes.

    All methods are pure; those that take a head dimension or a geometry raise :class:`BadArgument` where a
    plane's group does not divide the dimension.
    """

    name: str
    planes: tuple[Plane, ...]

    def __post_init__(self) -> None:
        names = [plane.name for plane in self.planes]
        assert len(set(names)) == len(names), f"{self.name}: two planes of one name"
        for side in Side:
            assert f"{side.value}_code" in names, f"{self.name}: no code plane on side {side.value}"

    @property
    def quantised(self) -> bool:
        """Whether any side is stored as codes and scales rather than as the numbers themselves."""
        return any(plane.role is Role.SCALE for plane in self.planes)

    def plane(self, side: Side, role: Role) -> Plane | None:
        """Return the plane of that side and role; None where the side has no scales."""
        return next((p for p in self.planes if p.side is side and p.role is role), None)

    def check_head_dim(self, head_dim: int) -> None:
        """Refuse a head dimension that some plane's group does not divide; raises :class:`BadArgument`."""
        self.bytes_per_token_and_head(head_dim)

    def bytes_per_token_and_head(self, head_dim: int, side: Side | None = None) -> int:
        """Return bytes for one token, layer and KV head: of keys and values together, or of one ``side``."""
        planes = [plane for plane in self.planes if side is None or plane.side is side]
        # The largest group first: a dimension that it divides suits the others, so its refusal names what would help.
        planes.sort(key=lambda plane: plane.group, reverse=True)
        return sum([plane.bytes_per_row(head_dim) for plane in planes])

    def bytes_per_token(self, geometry: Geometry) -> int:
        """Return bytes for one token over all layers, KV heads and planes."""
        return geometry.layers * geometry.kv_heads * self.bytes_per_token_and_head(geometry.head_dim)

    def bytes_per_page_group(self, geometry: Geometry, page_size: int) -> int:
        """Return bytes of one page group: ``page_size`` tokens over all layers, heads and planes."""
        check_page_size(page_size)
        return page_size * self.bytes_per_token(geometry)


def check_page_size(page_size: int) -> None:
    """Refuse a page size that is not a power of two (DESIGN 3); raises :class:`BadArgument`."""
    if page_size < 1 or page_size & (page_size - 1):
        raise BadArgument(
            f"pages of {page_size} tokens", "not a power of two", "use 16, 64 or another power of two"
        )


#: Bits of every stored format.  ``e4m3fn`` and ``e2m1`` are the 8-bit and 4-bit floats of the Open Compute Project; two
#: ``e2m1`` share a byte, the even element of the pair in the low half.
ELEMENT_BITS = {"float32": 32, "float16": 16, "bfloat16": 16, "int8": 8, "e4m3fn": 8, "e2m1": 4}


def _numbers(side: Side, element: str) -> tuple[Plane, ...]:
    """Return the planes of a side that stores the numbers themselves."""
    return (Plane(side, Role.CODE, element, ELEMENT_BITS[element]),)


def _scaled(side: Side, code: str, scale: str, group: int) -> tuple[Plane, ...]:
    """Return the planes of a side that stores codes and one scale for every ``group`` of them."""
    return (
        Plane(side, Role.CODE, code, ELEMENT_BITS[code]),
        Plane(side, Role.SCALE, scale, ELEMENT_BITS[scale], group),
    )


def _int8(side: Side) -> tuple[Plane, ...]:
    return _scaled(side, "int8", "float16", 64)


def _fp8(side: Side) -> tuple[Plane, ...]:
    # A group of 256 whatever the head dimension: a dimension of 64 or 128 is refused, not given shorter groups,
    # which would be another profile with other figures.
    return _scaled(side, "e4m3fn", "float16", 256)


def _nvfp4(side: Side) -> tuple[Plane, ...]:
    return _scaled(side, "e2m1", "e4m3fn", 16)


_K, _V = Side.KEY, Side.VALUE

#: Every profile by its public name.
PROFILES: dict[str, StorageProfile] = {
    profile.name: profile
    for profile in (
        StorageProfile("FP32", _numbers(_K, "float32") + _numbers(_V, "float32")),
        StorageProfile("BF16", _numbers(_K, "bfloat16") + _numbers(_V, "bfloat16")),
        StorageProfile("INT8-G64", _int8(_K) + _int8(_V)),
        StorageProfile("FP8-E4M3FN-row256", _fp8(_K) + _fp8(_V)),
        StorageProfile("NVFP4-G16", _nvfp4(_K) + _nvfp4(_V)),
        StorageProfile("K8V4", _fp8(_K) + _nvfp4(_V)),
    )
}


def storage_profile(name: str) -> StorageProfile:
    """Return the profile called ``name``; raises :class:`InputError` that lists the names there are."""
    try:
        return PROFILES[name]
    except KeyError:
        raise InputError(f"no storage profile is called {name!r}; use one of {', '.join(PROFILES)}") from None
