"""The example that makes utterances of speech, and the races that it is there for."""

from __future__ import annotations

import asyncio
import importlib.util
import random
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from taskframework.actors import KeyedActors
from taskframework.errors import StoreUnavailableError
from taskframework.testing import FakeClock, eventually
from tests.support.pages import ROOT

EXAMPLE = ROOT / "docs" / "examples" / "utterances" / "utterances.py"


@pytest.fixture(scope="module")
def example() -> Iterator[Any]:
    """The module of the example."""
    spec = importlib.util.spec_from_file_location("utterances", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["utterances"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["utterances"]


class Jobs:
    """Who takes submissions: one task a key, and a second one with other contents is a fault."""

    def __init__(self) -> None:
        self.tasks: dict[str, dict[str, Any]] = {}
        self.calls = 0
        #: Submissions that fail before, or after they were stored.
        self.refuse, self.lose = 0, 0
        self.is_open = asyncio.Event()
        self.is_open.set()

    async def submit(self, task_type: str, parameters: dict[str, Any], *, idempotency_key: str) -> None:
        self.calls += 1
        await self.is_open.wait()
        if self.refuse:
            self.refuse -= 1
            raise StoreUnavailableError
        assert self.tasks.setdefault(idempotency_key, parameters) == parameters, "the key stands for other words"
        if self.lose:
            self.lose -= 1
            raise StoreUnavailableError

    def texts(self, session_id: str = "s") -> list[str]:
        """The utterances of a session; their indexes have no gap."""
        found = [task for task in self.tasks.values() if task["session_id"] == session_id]
        assert [task["index"] for task in found] == list(range(len(found)))
        return [task["text"] for task in found]


class Stage:
    """Sessions on a clock that the test moves."""

    def __init__(self, example: Any) -> None:
        self.example, self.clock, self.jobs = example, FakeClock(), Jobs()
        make = partial(example.Session, submit=self.jobs.submit, clock=self.clock)
        self.sessions: KeyedActors[Any, Any] = KeyedActors(make, mailbox=10, clock=self.clock)

    def key(self, session_id: str = "s") -> Any:
        return self.example.SessionId("tenant", session_id)

    async def say(self, text: str, session_id: str = "s") -> None:
        for word in text.split():
            await self.sessions.tell(self.key(session_id), self.example.Chunk(word))
        await self.quiet()

    async def is_final(self) -> None:
        await self.sessions.tell(self.key(), self.example.IsFinal())

    async def pause(self, seconds: float = 0.5) -> None:
        await self.quiet()
        self.clock.advance(seconds)
        await self.quiet()

    async def quiet(self) -> None:
        """Let everybody do what there is to do now."""
        for _ in range(30):
            await asyncio.sleep(0)


@pytest.fixture
async def stage(example: Any) -> Stage:
    return Stage(example)


async def test_words_between_pauses_are_one_task_each(stage: Stage) -> None:
    await stage.say("to be")
    await stage.pause(0.4)
    await stage.say("or not")
    await stage.pause()
    await stage.say("to be")
    await stage.sessions.close(stage.key())
    assert stage.jobs.texts() == ["to be or not", "to be"]


async def test_a_pause_the_end_and_the_close_at_the_same_moment_are_one_task(stage: Stage) -> None:
    await stage.say("to be")
    stage.clock.advance(0.5)  # the timer fires,
    await stage.is_final()  # the speaker's program says so,
    await stage.is_final()
    await stage.sessions.close(stage.key())  # and the session ends
    assert (stage.jobs.texts(), stage.jobs.calls) == (["to be"], 1)


async def test_the_end_that_is_noticed_again_during_the_submission_ends_nothing_twice(stage: Stage) -> None:
    await stage.say("to be")
    stage.jobs.is_open.clear()
    await stage.is_final()
    await stage.quiet()
    assert stage.jobs.calls == 1
    await stage.is_final()
    await stage.say("or not")  # comes during the submission, and belongs to the next one
    await stage.pause()
    stage.jobs.is_open.set()
    await stage.pause()
    assert stage.jobs.texts() == ["to be", "or not"]


async def test_a_timer_of_before_the_last_word_ends_nothing(stage: Stage) -> None:
    await stage.say("to")
    stage.jobs.is_open.clear()
    await stage.is_final()
    await stage.quiet()
    await stage.sessions.tell(stage.key(), stage.example.Chunk("be"))
    stage.clock.advance(0.5)  # the pause of the submission fires behind the word that puts it off
    await stage.quiet()
    stage.jobs.is_open.set()
    await stage.say("or not")
    assert stage.jobs.texts() == ["to"]
    await stage.pause()
    assert stage.jobs.texts() == ["to", "be or not"]


async def test_silence_makes_no_task(stage: Stage) -> None:
    await stage.is_final()
    await stage.pause()
    await stage.sessions.close(stage.key())
    assert stage.jobs.calls == 0


async def test_a_lost_reply_makes_no_second_task_and_leaves_no_index_out(stage: Stage) -> None:
    stage.jobs.lose, stage.jobs.refuse = 1, 1
    await stage.say("to be")
    await stage.is_final()
    for _ in range(5):
        await stage.pause()
    await stage.say("or not")
    await stage.sessions.close(stage.key())
    assert stage.jobs.texts() == ["to be", "or not"]
    assert stage.jobs.calls == 4


async def test_an_utterance_that_was_not_accepted_keeps_its_words_and_comes_first(stage: Stage) -> None:
    stage.jobs.lose = 1_000  # stored at once, but nobody ever hears of it
    await stage.say("to be")
    await stage.is_final()
    for _ in range(20):  # patience ends
        await stage.pause(5)
    await stage.say("or not")
    stage.jobs.lose = 0
    for _ in range(20):
        await stage.pause(5)
    await stage.sessions.close(stage.key())
    assert stage.jobs.texts() == ["to be", "or not"]


@pytest.mark.parametrize("seed", range(20))
async def test_no_word_is_lost_or_doubled_in_any_order_of_events(stage: Stage, seed: int) -> None:
    chance = random.Random(seed)
    said: dict[str, list[str]] = {session: [] for session in "abc"}

    async def speak(session: str) -> None:
        for number in range(40):
            what = chance.random()
            if what < 0.7:
                said[session].append(f"{session}{number}")
                await stage.sessions.tell(stage.key(session), stage.example.Chunk(f"{session}{number}"))
            elif what < 0.85:
                await stage.sessions.tell(stage.key(session), stage.example.IsFinal())
            else:
                stage.jobs.lose += chance.random() < 0.3
                stage.jobs.refuse += chance.random() < 0.3
            if chance.random() < 0.5:
                await asyncio.sleep(0)
        await stage.sessions.close(stage.key(session))

    speakers = [asyncio.create_task(speak(session)) for session in said]

    def is_over() -> bool:
        stage.clock.advance(chance.choice([0.1, 0.5, 1.0]))
        return all(speaker.done() for speaker in speakers)

    await eventually(is_over, timeout=60)
    await asyncio.gather(*speakers)
    for session, words in said.items():
        assert " ".join(stage.jobs.texts(session)).split() == words
