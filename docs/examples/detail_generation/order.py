"""Orders a batch over HTTP and shows each item as soon as it is there, then how many are left without duplicates.

python order.py http://localhost:8000 place 30 "a cold coast, plain old words"
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import httpx

from taskframework import event_subscriber


async def order(url: str, wanted: dict[str, Any]) -> None:
    """Submit, and listen to what the sub-tasks give until the batch is over."""
    begin = time.monotonic()
    async with event_subscriber(url) as events, httpx.AsyncClient(base_url=f"{url}/api/v1") as api:
        await events.listening()
        answer = await api.post("/tasks", json={"task_type": "detail-batch", "parameters": wanted})
        answer.raise_for_status()
        batch_id = answer.json()["task_id"]
        async for event in events:
            if event.type == "task.completed" and event.data["parent_task_id"] == batch_id:
                names = ", ".join(item["name"] for item in event.data["result"])
                print(f"after {time.monotonic() - begin:.1f} s: {names}")
            if event.task_id == batch_id and event.data["finished_at"]:
                break
        batch = (await api.get(f"/tasks/{batch_id}")).json()
    if batch["result"] is None:
        sys.exit(f"{batch['status']}: {batch['error']['message']}")
    items, rounds = batch["result"]["items"], batch["result"]["rounds"]
    print(f"after {time.monotonic() - begin:.1f} s: {len(items)} different ones, rounds: {rounds}")


if __name__ == "__main__":
    url, kind, count, style = sys.argv[1:]
    asyncio.run(order(url, {"kind": kind, "count": int(count), "style": style}))
