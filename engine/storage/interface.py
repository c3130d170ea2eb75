"""The small interface behind which tensors come in (DESIGN 2, 4.7).

Every method is one immediate effect.  Whether it runs now, later or not at all is the business of the stream
on which the control plane enqueues it; a storage knows nothing of order, leases or sequences, and frees
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

#: Entry of the block-table matrix that maps no page.
HOLE = -1


class Storage(Protocol):
    """Effects on the planes and block tables of one pool; an engine has one storage for each of its pools.

    An argument that is out of range raises ``BadArgument`` and changes nothing.
    """

    def copy_columns(self, pool: int, source_page: int, destination_page: int, columns: int) -> None:
        """Copy exactly the first ``columns`` token columns of a page group, over all planes of ``pool``.

        Columns at and beyond ``columns`` of the destination keep their bytes, whatever they are (DESIGN 4.5).
        """

    def write_table(self, row: int, first_block: int, page_ids: Sequence[int]) -> None:
        """Map logical blocks from ``first_block`` on to ``page_ids``, replacing what was there."""

    def clear_table(self, row: int, first_block: int, count: int) -> None:
        """Turn ``count`` entries of ``row``, from ``first_block`` on, into holes."""
