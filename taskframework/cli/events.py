"""`events tail`: the events, as other programs receive them."""

from __future__ import annotations

from typing import Annotated

import typer

from taskframework.cli.invocation import Invocation
from taskframework.cli.options import API_VARIABLE, ApiKey, Config, Json, is_address, require_address
from taskframework.cli.output import note, out, print_json_line, run
from taskframework.cli.render import event_line
from taskframework.events.http import EventsUnavailableError, HttpEvents
from taskframework.events.subscriber import EventSubscriber
from taskframework.settings import Settings
from taskframework.urls import redacted
from taskframework.wiring.subscriber import build_subscriber

app = typer.Typer(no_args_is_help=True, help="External events, as other programs receive them.")

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        "--api",
        metavar="URL",
        envvar=API_VARIABLE,
        callback=require_address,
        help="Listen to the HTTP interface at this address; the default with the embedded broker.",
    ),
]


@app.command()
def tail(
    context: typer.Context, url: Url = None, key: ApiKey = None, config: Config = None, as_json: Json = False
) -> None:
    """Print events as they happen, until Ctrl-C: from RabbitMQ, or from a running `dev` or `api` over HTTP."""
    settings = Invocation.of(context, config).framework(registers=False).settings
    run(_tail(settings, url, key, as_json))


async def _tail(settings: Settings, url: str | None, key: str | None, as_json: bool) -> None:
    if not is_address(url):
        url = settings.api.url if settings.broker.scheme == "embedded" else None
    console = out()
    async with _subscriber(settings, url, key) as subscriber:
        try:
            await subscriber.listening()
        except TimeoutError as error:
            raise EventsUnavailableError(
                "The broker does not answer.",
                hint="`taskframework doctor` tells more; --url listens to an API instead.",
            ) from error
        note(f"Listening to {redacted(url) if url else 'the broker'}. Ctrl-C stops.")
        async for event in subscriber:
            if as_json:
                print_json_line(event.to_dict())
            else:
                console.print(event_line(event.to_dict()), soft_wrap=True)


def _subscriber(settings: Settings, url: str | None, key: str | None) -> EventSubscriber:
    if url is None:
        return build_subscriber(settings)
    return EventSubscriber(HttpEvents(url, api_key=key, tell=note), owns_broker=True)
