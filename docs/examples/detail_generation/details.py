"""Names, places or items in a style: invented in small groups by an OpenAI-compatible endpoint, without duplicates.

`detail-batch` plans a sub-task for each group and goes on when all of them are over: it leaves out what came twice and
plans another round for what is missing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Literal

import httpx
from pydantic import BaseModel, Field, TypeAdapter

from taskframework import (
    BackgroundTaskExecutable,
    NonRetryableError,
    RetryableError,
    SubtaskSummary,
    TaskContext,
    TaskOptions,
)
from taskframework.deduplication import deduplicate

#: Items that are asked for together. Fewer make the first ones come sooner, more cost fewer calls.
GROUP = 5
#: Rounds after which a batch is done even if it is not full: a narrow style may not give so many names.
MAX_ROUNDS = 5
#: Of an answer: what a line of it takes, with some to spare.
TOKENS_AN_ITEM = 60

URL = os.environ.get("OPENAI_BASE_URL", "http://localhost:8010/v1")
KEY = os.environ.get("OPENAI_API_KEY", "none")
MODEL = os.environ.get("OPENAI_MODEL", "stand-in")

PROMPT = """Invent {count} {kind}s in this style: {style}
Answer with one line for each, as `name | one short sentence about it`, and nothing else.
Others invent at the same time, and you are writer {writer}: avoid what comes to mind first.
Do not use: {avoid}"""

_LINE = re.compile(r"[\s\d.)*-]*(?P<name>[^|]{1,100}?)[\s*]*\|\s*(?P<description>.{1,500})")


class Detail(BaseModel):
    """One thing that was invented."""

    name: str
    description: str


class Wanted(BaseModel):
    """What a batch is asked for."""

    kind: Literal["character name", "place", "item", "skill", "organization"]
    count: int = Field(ge=10, le=50)
    style: str = Field(max_length=500)
    threshold: float = Field(default=0.92, ge=0.92, le=0.97, description="Similarity of two names that are one")


class Group(BaseModel):
    """What one call is asked for."""

    kind: str
    count: int
    style: str
    writer: int
    avoid: list[str]


class Generated(BaseModel):
    """What a batch gives; fewer than were wanted if the endpoint gave no more."""

    items: list[Detail]
    rounds: int


_DETAILS = TypeAdapter(list[Detail])


class InventGroup(BackgroundTaskExecutable[Group, list[Detail]]):
    """One call of the endpoint."""

    task_type = "invent-group"
    options = TaskOptions(max_attempts=6, timeout=60, initial_delay=0.2, max_delay=5, retry_on=(httpx.TransportError,))

    def __init__(self) -> None:
        headers = {"Authorization": f"Bearer {KEY}"}
        self._client = httpx.AsyncClient(base_url=URL, headers=headers, timeout=30)

    async def execute(self, context: TaskContext[Group]) -> list[Detail]:
        group = context.parameters
        asked = group.model_dump() | {"avoid": ", ".join(group.avoid) or "nothing in particular"}
        answer = await self._client.post(
            "/chat/completions",
            json={
                "model": MODEL,
                "messages": [{"role": "user", "content": PROMPT.format(**asked)}],
                "max_tokens": TOKENS_AN_ITEM * group.count,
                "temperature": 1.0,
            },
        )
        if details := details_in(answer)[: group.count]:
            return details
        raise RetryableError("the answer has no line of the form `name | description`")


class GenerateDetails(BackgroundTaskExecutable[Wanted, Generated]):
    """A batch: as many different items as are wanted."""

    task_type = "detail-batch"
    options = TaskOptions(subtasks="allow_failures")

    async def execute(self, context: TaskContext[Wanted]) -> None:
        await context.submit_subtasks(InventGroup, groups(context.parameters, []))

    async def on_subtasks_finished(self, context: TaskContext[Wanted], summary: SubtaskSummary) -> Generated:
        generated = await self._generated_by(context, summary.round, summary)
        is_full = len(generated.items) == context.parameters.count
        if summary.succeeded and not is_full and summary.round < MAX_ROUNDS:
            await context.submit_subtasks(InventGroup, groups(context.parameters, generated.items))
        return generated  # which is the result only if no other round was planned

    async def _generated_by(self, context: TaskContext[Wanted], round: int, summary: SubtaskSummary) -> Generated:
        """What there is after a round and those before it, recorded under the task when the round is over."""
        if round == 0:
            return Generated(items=[], rounds=0)

        async def collect() -> Generated:
            items = (await self._generated_by(context, round - 1, summary)).items
            async for outcome in summary.outcomes():
                items += _DETAILS.validate_python(outcome.result or [])
            if not items:  # before anything is recorded, so that a replay begins anew
                raise NonRetryableError("the endpoint gave nothing; the sub-tasks say why")
            wanted = context.parameters
            kept = deduplicate(items, key=lambda item: item.name, threshold=wanted.threshold).kept
            return Generated(items=kept[: wanted.count], rounds=round)

        return Generated.model_validate(await context.once(f"round {round}", collect))


def groups(wanted: Wanted, kept: Sequence[Detail]) -> Iterator[Group]:
    """What to ask for, to get what is missing."""
    avoid = [detail.name for detail in kept]
    for writer, first in enumerate(range(len(kept), wanted.count, GROUP), start=1):
        count = min(GROUP, wanted.count - first)
        yield Group(kind=wanted.kind, count=count, style=wanted.style, writer=writer, avoid=avoid)


def details_in(answer: httpx.Response) -> list[Detail]:
    """The details in an answer.

    Raises:
        RetryableError: if the endpoint is busy or broken; with the time that it asks for.
        NonRetryableError: if it refuses, as it would again.
    """
    if answer.status_code == 429:
        raise RetryableError("the endpoint is busy", delay=retry_after(answer.headers.get("Retry-After")))
    if answer.is_server_error:
        raise RetryableError(f"the endpoint answered {answer.status_code}")
    if not answer.is_success:
        raise NonRetryableError(f"the endpoint answered {answer.status_code}: {answer.text[:200]}")
    try:
        text = answer.json()["choices"][0]["message"]["content"]
        lines = [found for line in text.splitlines() if (found := _LINE.fullmatch(line))]
    except (AttributeError, KeyError, LookupError, TypeError, ValueError) as error:
        raise RetryableError("the answer is not a chat completion") from error
    return [Detail.model_validate(found.groupdict()) for found in lines]


def retry_after(header: str | None) -> float | None:
    """The seconds that `Retry-After` asks for, in either of its forms; None: as the retry policy says."""
    if header is None:
        return None
    try:
        return float(header)
    except ValueError:
        pass
    try:
        return (parsedate_to_datetime(header) - datetime.now(UTC)).total_seconds()
    except (TypeError, ValueError):
        return None
