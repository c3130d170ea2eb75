"""What paged decode can be timed beside contiguous attention with; no torch is needed to know it."""

from __future__ import annotations

#: Profiles whose numbers torch's attention can take as they are.
PROFILES = ("FP32", "BF16")
