"""What the storage profiles make of one byte budget, computed from their planes (DESIGN 4.2 and 8)."""

from __future__ import annotations

from dataclasses import dataclass

from kvcrucible.contract.errors import BadArgument
from kvcrucible.contract.profiles import PROFILES, Geometry

#: Name and geometry of the model in whose bytes the figures are told.
MODEL = "Llama-2 70B"
LLAMA_2_70B = Geometry(layers=80, kv_heads=8, head_dim=128)


@dataclass(frozen=True, slots=True)
class ProfileFigures:
    """One profile under a geometry; bytes are over all layers, heads and planes.

    ``pages_against`` maps the name of every profile that suits the geometry to how many pages of this one take the
    bytes of one page of that one.  Where the profile does not suit the geometry, ``refusal`` says why and the rest is
    None.
    """

    name: str
    bytes_per_token: int | None
    bytes_per_page: int | None
    pages_against: dict[str, float] | None
    refusal: str | None


def storage_figures(page_size: int, geometry: Geometry = LLAMA_2_70B) -> tuple[ProfileFigures, ...]:
    """Return the figures of every profile there is; raises ``BadArgument`` where ``page_size`` is no power of two."""
    sizes: dict[str, int] = {}
    refusals: dict[str, str] = {}
    for name, profile in PROFILES.items():
        try:
            sizes[name] = profile.bytes_per_token(geometry)
        except BadArgument as error:
            refusals[name] = f"{error.found}; {error.remedy}"
    return tuple(
        ProfileFigures(
            name,
            sizes[name],
            profile.bytes_per_page_group(geometry, page_size),
            {other: size / sizes[name] for other, size in sizes.items()},
            None,
        )
        if name in sizes
        else ProfileFigures(name, None, None, None, refusals[name])
        for name, profile in PROFILES.items()
    )
