"""`limits`: the buckets of the rate limits."""

from __future__ import annotations

from datetime import datetime

from taskframework.cli.options import Json, Limit
from taskframework.cli.output import note, out, print_json, table
from taskframework.cli.store import on_store
from taskframework.operations.limits import LimitState
from taskframework.runtime import TaskFramework


@on_store
async def limits(framework: TaskFramework, limit: Limit = 100, as_json: Json = False) -> None:
    """Show what each bucket of a rate limit would let through now."""
    states = await framework.services.limits.list_limits(limit)
    if as_json:
        print_json({"items": [state.view() for state in states], "next_cursor": None})
        return
    if not states:
        note("No rate limits. Set rate_limiter.default or rate_limiter.providers.")
        return
    shown = table("Limit", "Key", "Rate", "Burst", "Available", "Next", "Last turn")
    for state in states:
        shown.add_row(*_row(state, framework.services.store.now()))
    out().print(shown)
    if framework.settings.rate_limiter.type == "memory":
        note("These buckets are in the memory of each worker; here all of them are full.")


def _row(state: LimitState, now: datetime) -> tuple[str, ...]:
    return (
        state.name,
        "" if state.key is None else repr(state.key),
        f"{state.limit.rate:g}/s",
        str(state.limit.burst),
        str(state.available),
        _in_seconds(state.next_at, now),
        _in_seconds(state.last_turn_at, now),
    )


def _in_seconds(moment: datetime | None, now: datetime) -> str:
    return "" if moment is None else f"in {(moment - now).total_seconds():.1f} s"
