"""What becomes of publications under any answers, cut anywhere, against a model that is two sets and three rules."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from aiormq import spec
from hypothesis import given
from hypothesis import strategies as st
from pamqp import frame
from pamqp.heartbeat import Heartbeat

from taskframework.errors import PublishRefusedError
from tests.support.amqp import confirm_frame, returned_frames
from tests.support.publishing import CHANNEL, Bench, publication, settle

OPEN = 6
TAGS = st.integers(0, OPEN + 1)
FOREIGN = [
    [frame.marshal(Heartbeat(), 0)],
    [frame.marshal(spec.Connection.Blocked("low on memory"), 0)],
    [frame.marshal(spec.Channel.Flow(True), CHANNEL)],
    [confirm_frame(CHANNEL + 1, 3, multiple=True)],
    returned_frames(CHANNEL + 1, "somebody's"),
]
GOOD, RETURNED, REFUSED = None, "No queue takes", "refused a message"


@dataclass
class Confirm:
    tag: int
    multiple: bool
    is_taken: bool


@dataclass
class Return:
    #: The number of the publication; beyond them, a message of somebody else.
    number: int
    body: bytes
    frame_max: int


@dataclass
class Foreign:
    frames: list[bytes]


@dataclass
class Model:
    """What the broker's answers mean."""

    open: set[int] = field(default_factory=lambda: set(range(1, OPEN + 1)))
    outcomes: dict[int, str | None] = field(default_factory=dict)
    passed: bytes = b""

    def hear(self, answer: Confirm | Return | Foreign) -> None:
        if isinstance(answer, Foreign):
            self.passed += b"".join(answer.frames)
        elif isinstance(answer, Return):
            if answer.number in self.open:
                self.outcomes.setdefault(answer.number, RETURNED)
        else:
            meant = {tag for tag in self.open if tag == answer.tag or (answer.multiple and tag < answer.tag)}
            for tag in meant:
                self.outcomes.setdefault(tag, GOOD if answer.is_taken else REFUSED)
            self.open -= meant


ANSWERS = st.lists(
    st.one_of(
        st.builds(Confirm, TAGS, st.booleans(), st.booleans()),
        st.builds(Return, st.integers(1, OPEN + 1), st.binary(max_size=40), st.integers(9, 60)),
        st.builds(Foreign, st.sampled_from(FOREIGN)),
    ),
    max_size=12,
)


@given(ANSWERS, st.lists(st.integers(1, 80), min_size=1))
def test_every_publication_has_the_outcome_that_the_broker_has_sent_so_far(
    answers: list[Confirm | Return | Foreign], sizes: list[int]
) -> None:
    asyncio.run(_told_in_pieces(answers, sizes))


async def _told_in_pieces(answers: list[Confirm | Return | Foreign], sizes: list[int]) -> None:
    bench, model, others = Bench(), Model(), b""
    publications = [publication(f"t{number}") for number in range(1, OPEN + 1)]
    sending = await bench.sends(*publications)
    ids = dict(enumerate((one.message_id for one in publications), 1))
    told = [_frames(answer, ids) for answer in answers]
    data, at, turn, complete = b"".join(told), 0, 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        others += bench.hears(data[at : at + size])
        at, turn = at + size, turn + 1
        await settle()
        while complete < len(told) and len(b"".join(told[: complete + 1])) <= at:
            model.hear(answers[complete])
            complete += 1
        assert {number: _outcome(task) for number, task in enumerate(sending, 1) if task.done()} == model.outcomes
        assert set(bench.unconfirmed) == model.open
        assert others.startswith(model.passed)
    assert others == model.passed
    bench.closes(None)
    await asyncio.gather(*sending, return_exceptions=True)


def _frames(answer: Confirm | Return | Foreign, ids: dict[int, str]) -> bytes:
    if isinstance(answer, Confirm):
        return confirm_frame(CHANNEL, answer.tag, multiple=answer.multiple, is_taken=answer.is_taken)
    if isinstance(answer, Return):
        return b"".join(returned_frames(CHANNEL, ids.get(answer.number, "somebody's"), answer.body, answer.frame_max))
    return b"".join(answer.frames)


def _outcome(task: asyncio.Task[None]) -> str | None:
    error = task.exception()
    if error is None:
        return GOOD
    assert type(error) is PublishRefusedError
    return RETURNED if RETURNED in str(error) else REFUSED
