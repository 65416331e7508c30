"""Orders a batch over HTTP and shows each item as soon as it is there, then how many are left without duplicates.

python order.py http://localhost:8000 place 30 "a cold coast, plain old words"
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

from taskframework import TaskClient, TaskFailedError, TaskframeworkError


async def order(url: str, wanted: dict[str, Any]) -> None:
    """Submit, and listen to what the sub-tasks give until the batch is over."""
    begin = time.monotonic()
    async with TaskClient(url) as client:
        batch_id = (await client.submit("detail-batch", wanted)).task_id
        async for event in client.stream_tree(batch_id):
            if event.type == "task.completed" and event.data["parent_task_id"] == batch_id:
                names = ", ".join(item["name"] for item in event.data["result"])
                print(f"after {time.monotonic() - begin:.1f} s: {names}")
        result = await client.wait(batch_id)
    print(f"after {time.monotonic() - begin:.1f} s: {len(result['items'])} different ones, rounds: {result['rounds']}")


if __name__ == "__main__":
    url, kind, count, style = sys.argv[1:]
    try:
        asyncio.run(order(url, {"kind": kind, "count": int(count), "style": style}))
    except TaskFailedError as error:
        sys.exit(f"{error}\nLook at them: taskframework tasks subtasks {error.task_id}")
    except TaskframeworkError as error:
        sys.exit(str(error))
