"""The shapes of what payload examples store, and the planes that pools declare for them; no tensors."""

from __future__ import annotations

from kvcrucible.contract.planes import ORDERS, PlaneSpec
from kvcrucible.contract.profiles import Geometry, StorageProfile

#: Payload examples use the smallest geometry in which layers, heads and dimensions can be confused with one another.
PAYLOAD_GEOMETRY = Geometry(layers=2, kv_heads=2, head_dim=4)


def payload_geometry(profile: StorageProfile) -> Geometry:
    """Return the smallest such geometry that the profile's groups divide."""
    smallest = max(PAYLOAD_GEOMETRY.head_dim, *(plane.group for plane in profile.planes))
    return Geometry(PAYLOAD_GEOMETRY.layers, PAYLOAD_GEOMETRY.kv_heads, smallest)


def payload_planes(profile: StorageProfile, pool: str, page_size: int) -> PlaneSpec:
    """Return what a pool of kind ``pool`` stores in an example of that profile."""
    return PlaneSpec(profile, payload_geometry(profile), page_size, frontier=pool, order=ORDERS[pool])
