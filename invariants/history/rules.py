"""What a history can break beside invariants and rows of the semantics table, and what it cannot show (DESIGN 6)."""

from __future__ import annotations

from kvcrucible.contract.history_header import Header, Shown

#: Rules that are neither an invariant's id nor a row of the semantics table: statement and source.
RULES: dict[str, tuple[str, str]] = {
    "numbering": (
        "Numbers of sequences, units, transfers and checkpoints rise; none is given out twice.",
        "4.14.9",
    ),
    "refusal-due": ("What no row of the semantics table refuses is carried out.", "4.14.1"),
    "outcome": (
        "An operation gives what the contract says, and a line says what its operation gave.",
        "4.14",
    ),
    "making-room": (
        "Room is made by releasing continuations that may be released, in their order, one at a time, and only until "
        "the need is met.",
        "4.9, decision 0003",
    ),
    "admission-order": (
        "Requests are admitted in the order in which they were submitted, but for those of the look-ahead that pass a "
        "head that waits; none passes an earlier one of its session.",
        "4.8, decision 0021",
    ),
    "candidate-order": ("Of the ways to start a request the first that fits is taken.", "4.9"),
}

#: What a history without payload never shows.
_NO_PAYLOAD = "a history holds no payload"
_NEVER = {
    "shared-immutable": _NO_PAYLOAD,
    "kernel-oracle": _NO_PAYLOAD,
    "mapping-invariance": _NO_PAYLOAD,
    "no-stale-read": _NO_PAYLOAD,
    "codec-exact": _NO_PAYLOAD,
}

#: What is not judged where a part is not shown, and why.
_WITHOUT: dict[Shown, tuple[tuple[str, ...], str]] = {
    Shown.PAGES: (("lease-unique", "pool-isolation", "table-mirror"), "which pages are granted"),
    Shown.GENERATIONS: (("stale-handle-refused",), "generations of leases"),
    Shown.ROWS: (("row-unique",), "rows of the block table"),
    Shown.TOKENS: (("exact-prefix-identity",), "the tokens"),
    Shown.HITS: (("candidate-order",), "that hits are the longest"),
    Shown.REFUSALS: (("refusal-due", "admission-by-count", "cache-yields"), "the contract's refusals"),
    Shown.FIFO: (("admission-order",), "that requests are admitted in order"),
    Shown.LRU: (("order of making-room",), "that releases go by last use"),
    Shown.COPIES: (("cow-isolation",), "copies of partial tails"),
    Shown.FENCES: (("recycle-fenced",), "when units are done"),
    Shown.RETURNS: (("return from Host",), "that what a request hits on Host is brought back"),
}


def not_judged(header: Header) -> dict[str, str]:
    """Return what the history of such a header does not show, each with the reason."""
    found = dict(_NEVER)
    shown = set(header.shows)
    for part, (names, what) in _WITHOUT.items():
        if part not in shown:
            found |= dict.fromkeys(names, f"the history does not show {what}")
    if not header.reserves:
        found["completion-guarantee"] = "nothing is promised at admission"
    if len(header.pools) == 1:
        found["backend-not-ahead"] = "there is no speculative backend"
        found["pool-isolation"] = "there is one pool"
    if header.host is None:
        reason = "there is no Host tier"
        found |= dict.fromkeys(
            ("host-conservation", "one-visible-replica", "replica-valid", "transfer-pinned", "publish-order"),
            reason,
        )
        found["return from Host"] = reason
    return found
