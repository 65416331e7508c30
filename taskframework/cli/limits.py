"""`limits`: the buckets of the rate limits, and the slots of the concurrency limits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from taskframework.cli.options import Json, Limit
from taskframework.cli.output import ago, note, out, print_json, printable, table
from taskframework.cli.store import AnyFramework, on_store
from taskframework.clock import from_timestamp
from taskframework.model.query import MAX_LIMIT
from taskframework.model.wording import duration_text
from taskframework.operations.limits import LimitState, SlotsState


@on_store
async def limits(framework: AnyFramework, limit: Limit = 100, as_json: Json = False) -> None:
    """Show how much of each rate limit is available now, and which tasks hold the slots of concurrency limits."""
    states = await framework.services.limits.list_limits(limit)
    slots = await framework.services.limits.list_slots(limit)
    if as_json:
        items = [state.view() for state in states] + [state.view() for state in slots]
        print_json({"items": items, "next_cursor": None})
        return
    if states:
        _show_buckets(framework, states)
    if slots:
        _show_slots(framework, slots)
    if not states and not slots:
        note("No rate limits, and no slots in use. Set rate_limiter.default, or concurrency_limit of a task type.")


def _show_buckets(framework: AnyFramework, states: Sequence[LimitState]) -> None:
    shown = table("Limit", "Key", "Rate", "Burst", "Available", "Next", "Last turn")
    for state in states:
        shown.add_row(*_bucket_row(state, framework.services.store.now()))
    out().print(shown)
    if framework.settings.rate_limiter.type == "memory":
        note(
            "Each worker keeps these buckets in its own memory, so this command cannot see them and shows all as full."
        )


def _show_slots(framework: AnyFramework, states: Sequence[SlotsState]) -> None:
    shown = table("Task type", "Key", "Slots", "Held", "Waiting", "Held by", "On", "Since")
    now = framework.services.store.now()
    for state in states:
        numbers = (str(state.slots.number), str(len(state.slots.holders)), _waiting_text(state))
        first = (state.name, _key_text(state.key), *numbers)
        holders = [
            (holder.task_id, holder.worker_id, ago(from_timestamp(holder.since), now)) for holder in state.slots.holders
        ]
        for number, holder in enumerate(holders or [("", "", "")]):
            shown.add_row(*(first if number == 0 else ("",) * len(first)), *holder)
    out().print(shown)


def _bucket_row(state: LimitState, now: datetime) -> tuple[str, ...]:
    return (
        state.name,
        _key_text(state.key),
        f"{state.limit.rate:g}/s",
        str(state.limit.burst),
        str(state.available),
        _time_until(state.next_at, now),
        _time_until(state.last_turn_at, now),
    )


def _waiting_text(state: SlotsState) -> str:
    """How many tasks wait; for a key, counting stops at a number."""
    return f"{state.waiting}{'+' * (state.key is not None and state.waiting >= MAX_LIMIT)}"


def _key_text(key: str | None) -> str:
    """A key as `--waits-for-limit NAME/KEY` takes it; empty where a limit has no keys."""
    return "" if key is None else printable(key) or "(empty)"


def _time_until(moment: datetime | None, now: datetime) -> str:
    return "" if moment is None else f"in {duration_text(moment - now)}"
