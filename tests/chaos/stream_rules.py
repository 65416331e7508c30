"""What no history of serial streams may show: by what the code of the tasks saw, and a clock that never steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise

from tests.chaos.judging import Violation, documents
from tests.chaos.story import Story, World


def out_of_turn(world: World) -> Iterator[Violation]:
    """The tasks of a stream run in the order of their positions, each after the one before it is over."""
    for (_, key), stories in _streams(world).items():
        for one, other in pairwise(stories):
            over, begun = _over(one), other.starts[0].monotonic
            if over > begun:
                what = f"it began {over - begun:.6f} s before {one.task_id} was over, in stream {key}"
                yield Violation("out_of_turn", other.task_id, what)


def _streams(world: World) -> dict[tuple[str, str], list[Story]]:
    """What ran of each serial stream, by position. A task that was replayed has its turn when it comes."""
    streams: dict[tuple[str, str], list[tuple[int, Story]]] = defaultdict(list)
    for story, document in documents(world):
        place = document.get("stream")
        if place is not None and place["mode"] == "serial" and document["generation"] == 0 and story.starts:
            streams[document["user_id"], place["key"]].append((place["position"], story))
    return {name: [story for _, story in sorted(found, key=lambda item: item[0])] for name, found in streams.items()}


def _over(story: Story) -> float:
    """When the last attempt ended; one that was killed had no end, and was over some time after its start."""
    last = max(story.starts, key=lambda seen: seen["token"])
    end = story.ends.get(last["token"])
    return last.monotonic if end is None else end.monotonic


ALL: tuple[Callable[[World], Iterator[Violation]], ...] = (out_of_turn,)
