"""Says what a stop waits for if it takes long, so that nobody has to guess why a process does not end."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from taskframework.frames import is_of_the_standard_library

logger = logging.getLogger(__name__)

#: Seconds beyond the grace of the running tasks after which a stop takes long, and between two lines about it. It is as
#: long as the parent of several worker processes waits before it kills one of them.
_LONG_STOP_SECONDS = 10.0


async def tell_what_stop_waits_for(stop_requested: asyncio.Event, main: asyncio.Task[Any] | None, grace: float) -> None:
    """Wait for the request to stop; then log from time to time what the stop waits for, until this is cancelled.

    Args:
        stop_requested: set when the process is to stop.
        main: closes all parts of the process then.
        grace: seconds that running tasks have before they are handed back.
    """
    await stop_requested.wait()
    pause = grace + _LONG_STOP_SECONDS
    while True:
        await asyncio.sleep(pause)
        beside = asyncio.all_tasks() - {main, asyncio.current_task()}
        last_places = Counter(places[-1] for task in beside if (places := _places(task)))
        logger.warning(
            "the stop takes long; it waits here: %s",
            " > ".join(_places(main)),
            extra={"beside": [f"{count} {place}" for place, count in last_places.most_common()]},
        )
        pause = _LONG_STOP_SECONDS


def _places(task: asyncio.Task[Any] | None) -> Sequence[str]:
    """The lines at which a task waits, the outermost first, without those of the standard library."""
    return [
        f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}:{frame.f_lineno}"
        for frame in _frames(task)
        if not is_of_the_standard_library(frame.f_code.co_filename)
    ]


def _frames(task: asyncio.Task[Any] | None) -> Iterator[FrameType]:
    waiting: Any = None if task is None else task.get_coro()
    while waiting is not None:
        kind = next((kind for kind in ("cr", "gi", "ag") if hasattr(waiting, f"{kind}_frame")), None)
        if kind is None or (frame := getattr(waiting, f"{kind}_frame")) is None:
            return
        yield frame
        following = getattr(waiting, "gi_yieldfrom" if kind == "gi" else f"{kind}_await")
        if not hasattr(following, "cr_frame") and hasattr(manager := frame.f_locals.get("self"), "gen"):
            following = manager.gen  # the generator of an `@asynccontextmanager`, which its methods hide
        waiting = following
