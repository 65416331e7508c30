"""`keys`: make, list and revoke API keys."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated

import typer
from rich.text import Text

from taskframework.cli.ending import write_rest
from taskframework.cli.options import Cursor, Json, Limit, choice_option, or_bad_parameter
from taskframework.cli.output import ago, note, print_json, say
from taskframework.cli.render import print_page, print_rows
from taskframework.cli.store import AnyFramework, audited, on_store, operator_name
from taskframework.durations import parse_duration
from taskframework.errors import TaskframeworkError
from taskframework.model.keys import ApiKey, Role, with_prefixes_only
from taskframework.model.rate_limits import BucketLimit
from taskframework.operations.keys import key_view

app = typer.Typer(no_args_is_help=True, help="API keys: create, list, revoke.")

Principal = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="The user or program that gets the key; it becomes the owner of the tasks submitted with it.",
    ),
]
Roles = Annotated[
    list[Role] | None,
    choice_option("--role", Role, "What the key allows (default submitter); each role includes the ones before it."),
]
ActsForUsers = Annotated[
    bool, typer.Option("--act-for-users", help="Let its role hold for the tasks of all users, to submit too.")
]
Expires = Annotated[
    timedelta | None,
    typer.Option(
        "--expires", metavar="TIME", parser=or_bad_parameter(parse_duration), help="How long it is valid, such as 90d."
    ),
]
#: As over HTTP. Without bounds, no request with the key could be counted.
_MAX_REQUESTS = 1_000_000
Rate = Annotated[
    float | None,
    typer.Option("--rate", metavar="N", min=0.001, max=_MAX_REQUESTS, help="Requests allowed per second."),
]
Burst = Annotated[
    int | None,
    typer.Option(
        "--burst", metavar="N", min=1, max=_MAX_REQUESTS, help="With --rate: requests allowed at once after a pause."
    ),
]
#: A whole key is cut to its prefix at once, because the argument is recorded and shown.
Prefix = Annotated[
    str,
    typer.Argument(
        metavar="PREFIX",
        callback=with_prefixes_only,
        help="The beginning of the key, as shown in the list; or the whole key.",
    ),
]


@app.command()
@on_store
@audited("key.create", target="principal", details=["role", "act_for_users"])
async def create(
    framework: AnyFramework,
    principal: Principal,
    role: Roles = None,
    act_for_users: ActsForUsers = False,
    expires: Expires = None,
    rate: Rate = None,
    burst: Burst = None,
    as_json: Json = False,
) -> None:
    """Create a key. As soon as the first key exists, every HTTP request needs one."""
    if burst is not None and rate is None:
        raise typer.BadParameter("does nothing without --rate.", param_hint="--burst")
    key, text = await framework.services.keys.create(
        principal,
        role or [Role.SUBMITTER],
        by=operator_name(),
        may_act_for_users=act_for_users,
        expires_after=expires,
        limit=None if rate is None else BucketLimit(rate, burst or 1),
    )
    try:
        if as_json:
            print_json({**key_view(key), "key": text})
        else:
            say(text)
        lost = write_rest()
    except OSError as error:
        lost = write_rest() or error
    if lost is not None:
        raise TaskframeworkError(
            f"A key was created and could not be printed: {lost.strerror}.",
            hint=f"Nobody knows it. To revoke it: taskframework keys revoke {key.prefix}",
        )
    if not as_json:
        note("Save it: it is not shown again. Callers send it as `Authorization: Bearer <key>`.")


@app.command("list")
@on_store
async def list_keys(framework: AnyFramework, limit: Limit = 20, cursor: Cursor = None, as_json: Json = False) -> None:
    """List the keys, including revoked ones."""
    page = await framework.services.keys.list_keys(limit=limit, after=cursor)
    show = partial(_print_all, framework.services.store.now())
    nothing = "No keys, so callers are not identified. To create the first: taskframework keys create NAME --role admin"
    print_page(page, show, key_view, as_json=as_json, nothing=nothing)


@app.command()
@on_store
@audited("key.revoke", target="prefix")
async def revoke(framework: AnyFramework, prefix: Prefix, as_json: Json = False) -> None:
    """Revoke a key, in all processes within five seconds."""
    key = await framework.services.keys.revoke(prefix, by=operator_name())
    if as_json:
        print_json(key_view(key))
    else:
        say(f"{key.prefix} of {key.principal} is revoked.")


def _print_all(now: datetime, keys: Sequence[ApiKey]) -> None:
    rows = [
        (
            Text(key.prefix),
            Text(key.principal),
            Text(", ".join(key.roles) + (", acts for users" if key.may_act_for_users else "")),
            Text(ago(key.created_at, now)),
            _state(key, is_valid=key.is_valid_at(now)),
        )
        for key in keys
    ]
    print_rows(("Key", "For", "May", "Made", "State"), rows)


def _state(key: ApiKey, *, is_valid: bool) -> Text:
    if key.revoked_at is not None:
        return Text(f"revoked by {key.revoked_by}", style="red")
    if not is_valid:
        return Text("expired", style="red")
    return Text("valid" if key.expires_at is None else f"valid until {key.expires_at:%Y-%m-%d %H:%M} UTC")
