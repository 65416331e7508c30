"""Two people speak at once: their words go to the actors of their sessions, and each utterance is submitted once.

python speak.py http://localhost:8000
"""

from __future__ import annotations

import asyncio
import sys
import uuid
from functools import partial

from utterances import PAUSE, Chunk, IsFinal, Session, SessionId

from taskframework import TaskClient
from taskframework.actors import KeyedActors

SPEECHES = [
    ["to be or not to be", "that is the question", "whether it is nobler"],
    ["the quality of mercy", "is not strained", "it drops as the gentle rain"],
]


async def speak(sessions: KeyedActors[SessionId, Chunk | IsFinal], key: SessionId, speech: list[str]) -> None:
    """Say it word by word, with a pause after each part, at whose end the speaker's program says so too."""
    for part in speech:
        for word in part.split():
            await sessions.tell(key, Chunk(word))
            await asyncio.sleep(0.05)
        await asyncio.sleep(PAUSE.total_seconds())
        await sessions.tell(key, IsFinal())
    await sessions.close(key)


async def main(url: str) -> None:
    submitted: list[str] = []
    async with TaskClient(url) as client:

        async def submit(task_type: str, parameters: dict[str, object], *, idempotency_key: str) -> None:
            task = await client.submit(task_type, parameters, idempotency_key=idempotency_key)
            submitted.append(task.task_id)

        async with KeyedActors(partial(Session, submit=submit)) as sessions:
            keys = [SessionId("theatre", str(uuid.uuid4())) for _ in SPEECHES]
            await asyncio.gather(*(speak(sessions, key, speech) for key, speech in zip(keys, SPEECHES, strict=True)))
        for task_id in submitted:
            print(await client.wait(task_id))
    print(f"{len(submitted)} utterances, {len(set(submitted))} tasks")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
