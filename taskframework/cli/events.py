"""`events tail`: what happens, as other programs hear it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from taskframework import wiring
from taskframework.cli.invocation import Invocation
from taskframework.cli.options import Config, Json
from taskframework.cli.output import note, out, print_json_line, run
from taskframework.cli.render import event_line
from taskframework.clock import SystemClock
from taskframework.errors import TaskframeworkError
from taskframework.settings import Settings

if TYPE_CHECKING:
    import httpx

app = typer.Typer(no_args_is_help=True, help="What happens, as other programs hear it.")

Url = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="Listen to this HTTP interface; the default with the embedded broker."),
]

_PATH = "/api/v1/events"
#: The interface sends a heartbeat every 10 seconds.
_LONGEST_SILENCE = 30.0
_PAUSE = 1.0
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_LOOPBACK = ("127.0.0.1", "localhost", "::1")

Events = AsyncGenerator[dict[str, Any], None]


class EventsUnavailableError(TaskframeworkError):
    """The events cannot be heard."""


@app.command()
def tail(context: typer.Context, url: Url = None, config: Config = None, as_json: Json = False) -> None:
    """Print events as they happen, until Ctrl-C: from RabbitMQ, or from a running `dev` or `api` over HTTP."""
    settings = Invocation.of(context, config).framework(registers=False).settings
    run(_tail(settings, url, as_json))


async def _tail(settings: Settings, url: str | None, as_json: bool) -> None:
    over_http = url is not None or settings.broker.scheme == "embedded"
    console = out()
    async with aclosing(_from_http(url or _own_url(settings)) if over_http else _from_broker(settings)) as events:
        async for event in events:
            if as_json:
                print_json_line(event)
            else:
                console.print(event_line(event), soft_wrap=True)


async def _from_broker(settings: Settings) -> Events:
    async with wiring.build_subscriber(settings, SystemClock(), None) as subscriber:
        try:
            await subscriber.listening()
        except TimeoutError as error:
            raise EventsUnavailableError(
                "The broker does not answer.",
                hint="`taskframework doctor` tells more; --url listens to an API instead.",
            ) from error
        note("Listening to the broker. Ctrl-C ends.")
        async for event in subscriber:
            yield event.to_dict()


async def _from_http(url: str) -> Events:
    """The events of an HTTP interface; if it was there once, it is waited for when it goes away."""
    import httpx

    was_there = False
    last_id: str | None = None
    own = httpx.URL(url).host in _LOOPBACK  # a proxy in the environment is not meant for this machine itself
    async with httpx.AsyncClient(timeout=httpx.Timeout(5.0, read=_LONGEST_SILENCE), trust_env=not own) as client:
        while True:
            try:
                async with aclosing(_connection(client, url, last_id)) as events:
                    async for event_id, event in events:
                        was_there = True
                        last_id = event_id or last_id
                        if event is not None:
                            yield event
            except httpx.HTTPError as error:
                if not was_there:
                    raise _nobody_there(url, error) from error
            note("The connection ended; trying again.")
            await asyncio.sleep(_PAUSE)


async def _connection(
    client: httpx.AsyncClient, url: str, last_id: str | None
) -> AsyncGenerator[tuple[str, dict[str, Any] | None], None]:
    """Ids and events of one connection, after one pair of nothing once it stands."""
    from httpx_sse import aconnect_sse

    headers = {} if last_id is None else {"Last-Event-ID": last_id}
    async with aconnect_sse(client, "GET", url.rstrip("/") + _PATH, headers=headers) as source:
        source.response.raise_for_status()
        note(f"Listening to {url}. Ctrl-C ends.")
        yield "", None
        async for sent in source.aiter_sse():
            if sent.event == "resync":
                note("Events may have been missed in between.")
            else:
                yield sent.id, orjson.loads(sent.data)


def _own_url(settings: Settings) -> str:
    host = _EVERYWHERE.get(settings.api.host, settings.api.host)
    return f"http://[{host}]:{settings.api.port}" if ":" in host else f"http://{host}:{settings.api.port}"


def _nobody_there(url: str, error: Exception) -> EventsUnavailableError:
    return EventsUnavailableError(
        f"No events at {url}: {error or type(error).__name__}.",
        hint="Start `taskframework dev --app …` or `taskframework api --app …`, or name its address with --url.",
    )
