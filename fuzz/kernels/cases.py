"""One example of a kernel campaign as plain data, and how Hypothesis draws it for a cell."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from hypothesis import strategies as st

from kvcrucible.contract.errors import InputError
from kvcrucible.contract.json_files import read_json
from kvcrucible.fuzz.kernels.cells import BOUNDARIES, KERNELS, Cell, lengths_of

#: Head dimensions by profile, one with several groups first: Hypothesis tries what is first in every cell, so the
#: simplest case must not be the one that shows least.  Some are no powers of two.
HEAD_DIMS: dict[str, tuple[int, ...]] = {
    "FP32": (24, 8, 16, 64),
    "BF16": (16, 64, 80, 128),
    "INT8-G64": (128, 64, 192),
    "FP8-E4M3FN-row256": (256,),
    "NVFP4-G16": (64, 16, 48),
    "K8V4": (256,),
}

#: Pages mostly as the engine has them; the shrinker goes to the first.
PAGE_SIZES = (64, 16, 32, 128, 256)

#: Most queries of one entry: enough for two blocks of lines on every back-end, few enough for the oracle.
MOST_QUERIES = 40

#: Queries of one entry that fit one block of lines with most groups.
FEW_QUERIES = 6

#: What free pages and stale columns hold.
POISONS = ("nan", "large")

#: Largest length, count or dimension of a case that is read from a file: what is built stays small.
_MOST_NUMBER = 4096

#: Most bytes of a file with a case.
_MAX_CASE_BYTES = 1 << 16

_REMEDY = "give a case as a kernel campaign wrote it"


@dataclass(frozen=True, slots=True)
class Case:
    """A batch over a pool; entry i of ``lengths`` (tokens) and ``queries`` is row i, row 0 of the cell's class.

    ``queries``: new tokens for an append, else queries; copies take none.  ``shift``, ``shuffle``: how page ids are
    moved and permuted.  ``seed``: of all numbers.  ``special``: whether appended rows hold NaN, infinities,
    extremes.
    """

    cell: Cell
    lengths: tuple[int, ...]
    queries: tuple[int, ...]
    page_size: int
    kv_heads: int
    group: int
    head_dim: int
    output: str
    poison: str
    shift: int
    shuffle: int
    seed: int
    special: bool

    def to_json(self) -> str:
        """Return the case as one JSON object."""
        return json.dumps(asdict(self))


def read_case(path: Path) -> Case:
    """Return the case in the file ``path``; raises ``InputError`` for none that :meth:`Case.to_json` wrote."""
    plain = read_json(path, _MAX_CASE_BYTES, _REMEDY)
    try:
        cell = Cell(**plain.pop("cell"))
        case = Case(cell, tuple(plain.pop("lengths")), tuple(plain.pop("queries")), **plain)
        known = (
            cell.kernel in KERNELS and cell.profile in HEAD_DIMS and len(case.lengths) == len(case.queries)
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{path}: not a case of a kernel campaign: {str(error)[:200]}; {_REMEDY}") from None
    numbers = (*case.lengths, *case.queries, case.page_size, case.kv_heads, case.group, case.head_dim)
    if not known or not all(type(number) is int and 0 <= number <= _MOST_NUMBER for number in numbers):
        raise InputError(
            f"{path}: a case with unknown names, or numbers out of range up to {_MOST_NUMBER:,}; {_REMEDY}"
        )
    return case


@st.composite
def cases(draw: st.DrawFn, cell: Cell) -> Case:
    """Draw a case of ``cell``; the simplest is one row, whole where it is appended, over two KV heads."""
    near = sorted({length for lengths in BOUNDARIES.values() for length in lengths})
    # An empty row has a way of its own through every kernel, so a third of the others are empty.
    others = draw(st.lists(st.sampled_from((*(0,) * (len(near) // 2), *near)), max_size=3))
    lengths = (draw(st.sampled_from(lengths_of(cell.length))), *others)
    return Case(
        cell,
        lengths,
        tuple(draw(_queries(cell.kernel, length)) for length in lengths),
        draw(st.sampled_from(PAGE_SIZES)),
        draw(st.sampled_from((2, 1, 3))),
        draw(st.sampled_from((2, 1, 4, 5))),
        draw(st.sampled_from(HEAD_DIMS[cell.profile])),
        draw(st.sampled_from(("float32", "bfloat16"))),
        draw(st.sampled_from(POISONS)),
        draw(st.integers(1, 5)),
        draw(st.integers(0, 2**16)),
        draw(st.integers(0, 2**16)),
        draw(st.booleans()),
    )


def _queries(kernel: str, length: int) -> st.SearchStrategy[int]:
    if kernel == "append":
        return st.integers(0, length).map(lambda left: length - left)
    if kernel == "prefill":
        # A row of context 0 is padding: it may have any number of queries.
        most = min(length or 3, MOST_QUERIES)
        # Many, and as often so few that they share one block and their context is split as that of a decode step is.
        many = st.integers(1, most).map(lambda fewer: most + 1 - fewer)
        return st.one_of(many, st.integers(1, min(most, FEW_QUERIES)))
    if kernel == "cached-only":
        return st.integers(1, 6)
    return st.just(1)
