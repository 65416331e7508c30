"""The test suite for every store.

Subclass `StoreConformance` in a test module and say how to make a store and how to let its time pass:

    class TestMyStore(StoreConformance):
        async def make_store(self) -> TaskStore: ...
        async def pass_time(self, seconds: float) -> None: ...

Its main check is differential: after each move the stored document must be what the pure rule of the model makes of the
document before the move.
"""

from __future__ import annotations

from taskframework.testing.conformance.store_buckets import BucketCases
from taskframework.testing.conformance.store_claims import ClaimCases, RenewalCases
from taskframework.testing.conformance.store_drivers import CountCases, PurgeCases, SweepCases
from taskframework.testing.conformance.store_groups import GroupCases
from taskframework.testing.conformance.store_inserts import InsertCases
from taskframework.testing.conformance.store_lane_counts import LaneCountCases
from taskframework.testing.conformance.store_lists import DeadLetterCases, ListCases
from taskframework.testing.conformance.store_marks import DispatchMarkCases, HistoryCases, RelayCases
from taskframework.testing.conformance.store_moves import MoveCases
from taskframework.testing.conformance.store_records import RecordCases
from taskframework.testing.conformance.store_scopes import ScopeCases
from taskframework.testing.conformance.store_searches import SearchCases
from taskframework.testing.conformance.store_settlements import SettlementCases
from taskframework.testing.conformance.store_slots import SlotCases, SlotClaimCases
from taskframework.testing.conformance.store_streams import StreamCases
from taskframework.testing.conformance.store_subtasks import FamilyPurgeCases, SubtaskCases
from taskframework.testing.conformance.store_values import ValueCases


class StoreConformance(
    InsertCases,
    ClaimCases,
    RenewalCases,
    MoveCases,
    SettlementCases,
    DispatchMarkCases,
    HistoryCases,
    RelayCases,
    SweepCases,
    CountCases,
    LaneCountCases,
    PurgeCases,
    ListCases,
    SearchCases,
    DeadLetterCases,
    ScopeCases,
    RecordCases,
    BucketCases,
    SlotCases,
    SlotClaimCases,
    ValueCases,
    GroupCases,
    SubtaskCases,
    FamilyPurgeCases,
    StreamCases,
):
    """The whole suite, for one store."""
