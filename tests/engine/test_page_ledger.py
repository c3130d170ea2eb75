"""The ledger of logical pages by itself: what a page is told of units, and what it keeps while it stays on the device.

Verifies what no sequence can bring about, or cannot show: a page that is leased before any unit has ended and that none
touches; that a page without another replica carries none; that a change ends no copy which has all that is committed;
which numbers logical pages get.
Does not verify: grants, sharing and how copies on Host end, which whole engines show.
"""

from __future__ import annotations

from kvcrucible.contract.config import PoolSpec
from kvcrucible.contract.snapshot import Tier, Touched
from kvcrucible.engine.host.arena import HostArena
from kvcrucible.engine.host.replicas import Replica
from kvcrucible.engine.host.slots import HostSlots
from kvcrucible.engine.pages import LogicalPage, PageLedger
from kvcrucible.engine.pool import PagePool
from kvcrucible.engine.streams import UnitFences


class Outstanding:
    """The end of a unit that the device has not reached."""

    done = False


def granted() -> tuple[UnitFences, PagePool, PageLedger, LogicalPage]:
    """Return a ledger over one pool of two pages, and the page that it has granted."""
    fences = UnitFences()
    pool = PagePool(PoolSpec("main", 2, 16), fences)
    ledger = PageLedger([pool], fences, Touched())
    (page,) = ledger.grant(0, pool.reserve(1), 1)
    return fences, pool, ledger, page


def test_a_page_that_no_unit_has_touched_is_free_at_once() -> None:
    fences, pool, ledger, page = granted()
    fences.end(0, Outstanding())
    assert ledger.frees(page)
    ledger.drop(0, [page], None)
    assert (pool.free, pool.retiring) == (2, {})


def test_a_page_that_changes_on_the_device_alone_gets_no_replicas() -> None:
    """Most pages never leave the device, and are many."""
    _, _, ledger, page = granted()
    for columns in (3, 16):
        page.committed = columns
        ledger.changed(page)
        assert page.only_on_device
    assert page.on_host is None
    assert page.only_on_device, "asking made an object"


def test_a_change_ends_no_copy_that_has_all_that_is_committed() -> None:
    """The engine's own copies have as many columns as were committed, so that each change outdates them."""
    _, _, ledger, page = granted()
    ((slot,),) = HostSlots(HostArena(64, 1), [64]).reserve([1])
    page.replicas.attach(Tier.HOST, Replica(slot, page.epoch, 16))
    page.committed = 16
    ledger.changed(page)
    assert page.on_host == Replica(slot, page.epoch, 16)


def test_logical_pages_are_numbered_from_0_and_no_number_comes_again() -> None:
    """Snapshots and reports name pages by them: a number that came again would mean two pages."""
    _, pool, ledger, first = granted()
    assert first.page == 0
    ledger.drop(0, [first], None)
    again = ledger.grant(0, pool.reserve(2), 2)
    assert [page.page for page in again] == [1, 2]
    assert list(ledger.live) == [1, 2]
