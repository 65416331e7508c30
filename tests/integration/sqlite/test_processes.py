"""Several processes on one file, and one that is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from taskframework.model.scope import EVERYONE
from taskframework.stores.sqlite import SqliteStore
from taskframework.testing.conformance.store_suite import insert_one, make_claim, put, read_task
from taskframework.testing.factories import new_task

_SUBMIT_FOR_EVER = """
import asyncio, sys
from taskframework.stores.sqlite import SqliteStore
from taskframework.testing.factories import new_task

async def submit(store):
    while True:
        [inserted] = await store.insert([new_task()])
        print(inserted.task.task_id, flush=True)

async def main():
    store = SqliteStore(sys.argv[1])
    await store.open()
    await asyncio.gather(*(submit(store) for _ in range(20)))

asyncio.run(main())
"""

_CLAIM_ALL = """
import asyncio, sys
from datetime import timedelta
from taskframework.model.attempts import Claim
from taskframework.model.task import new_claim_id
from taskframework.stores.sqlite import SqliteStore

async def main():
    store = SqliteStore(sys.argv[1])
    await store.open()
    print("ready", flush=True)
    sys.stdin.readline()
    claims = [Claim(id, 1, new_claim_id(), "other", timedelta(hours=1)) for id in sys.argv[2].split(",")]
    replies = await asyncio.gather(*(store.apply(claim) for claim in claims))
    print(sum(reply is not None for reply in replies), flush=True)
    await store.close()

asyncio.run(main())
"""


async def test_accepted_tasks_survive_kill_9(path: Path) -> None:
    accepted = await asyncio.to_thread(_accept_until_killed, path)
    store = SqliteStore(path)
    await store.open()
    assert len(accepted) >= 100
    assert None not in [await store.get(task_id, EVERYONE) for task_id in accepted]
    assert (await store.inspect()).problems == ()
    await store.close()


def _accept_until_killed(path: Path) -> list[str]:
    process = subprocess.Popen([sys.executable, "-c", _SUBMIT_FOR_EVER, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process, process.stdout as output:
        accepted = [output.readline().strip() for _ in range(100)]
        os.kill(process.pid, signal.SIGKILL)
        accepted += [line.strip() for line in output if line.endswith("\n")]
    return accepted


async def test_one_of_two_processes_wins_each_claim(store: SqliteStore, path: Path) -> None:
    tasks = [await put(store) for _ in range(200)]
    ids = ",".join(task.task_id for task in tasks)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _CLAIM_ALL, str(path), ids, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    process.stdin.write(b"go\n")

    replies = await asyncio.gather(*(store.apply(make_claim(task)) for task in tasks))

    mine, theirs = sum(reply is not None for reply in replies), int(await process.stdout.readline())
    assert await process.wait() == 0
    assert mine + theirs == len(tasks)
    after = [await read_task(store, task.task_id) for task in tasks]
    assert {(task.fencing_token, task.sequence) for task in after} == {(1, 2)}


async def test_a_busy_process_lets_another_one_submit(store: SqliteStore, path: Path) -> None:
    """The command line submits to a file on which a worker writes without a pause."""
    other = SqliteStore(path)
    await other.open()
    busy = True

    async def write() -> None:
        while busy:
            await insert_one(store, new_task())

    writers = [asyncio.create_task(write()) for _ in range(20)]
    submitted = [await put(other) for _ in range(10)]
    busy = False
    await asyncio.gather(*writers)
    await other.close()
    assert None not in [await store.get(task.task_id, EVERYONE) for task in submitted]
