"""API keys over HTTP: create, list and revoke keys; show the caller."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from taskframework.api.auditing import audited
from taskframework.api.bodies import BODY_CODES, CreateKey, read_body
from taskframework.api.callers import caller_of
from taskframework.api.context import PREFIX, framework_of, json_response, new_router, page_response
from taskframework.api.key_views import CallerView, KeyPage, KeyView, NewKeyView
from taskframework.api.openapi import problem_responses, request_body
from taskframework.api.page_queries import PageQuery
from taskframework.api.problems import root_of
from taskframework.model.keys import ApiKey
from taskframework.model.rate_limits import BucketLimit
from taskframework.model.view import format_time
from taskframework.operations.keys import key_view

router = new_router(PREFIX, "keys")

KeyInPath = Annotated[str, Path(description="The beginning of a key, as shown in the list; or the whole key")]


class KeyQuery(PageQuery):
    """Which keys to list."""

    cursor: str | None = Field(
        default=None, pattern="^[a-z0-9_]{1,40}$", description="`next_cursor` of the previous page, unchanged"
    )


@router.get(
    "/me",
    summary="Show the caller",
    responses={200: {"model": CallerView, "description": "The caller"}, **problem_responses("store_unavailable")},
)
async def get_me(request: Request) -> Response:
    """Show which caller the key or token identifies, and what this caller may do."""
    caller = caller_of(request)
    return json_response(
        {
            "principal": caller.principal,
            "roles": list(caller.roles),
            "may_act_for_users": caller.may_act_for_users,
            "prefix": caller.prefix,
            "expires_at": format_time(caller.expires_at),
        }
    )


@router.get(
    "/admin/keys",
    summary="List API keys",
    responses={
        200: {"model": KeyPage, "description": "A page, by prefix"},
        **problem_responses("invalid_request", "store_unavailable"),
    },
)
async def list_keys(request: Request, query: Annotated[KeyQuery, Query()]) -> Response:
    """List all keys, including revoked keys. The texts of the keys are stored nowhere."""
    page = await framework_of(request).services.keys.list_keys(limit=query.limit, after=query.cursor)
    return page_response(page, key_view)


@router.post(
    "/admin/keys",
    status_code=201,
    summary="Create an API key",
    openapi_extra=request_body(CreateKey),
    responses={
        201: {
            "model": NewKeyView,
            "description": "The key, which is shown only this once",
            "headers": {"Location": {"description": "Address of its stored data", "schema": {"type": "string"}}},
        },
        **problem_responses(*BODY_CODES, "store_unavailable"),
    },
)
async def create_key(request: Request) -> Response:
    """Create a key. Once the first key exists, every request needs a key."""
    body = await read_body(request, CreateKey)
    acts, roles = body.may_act_for_users or None, list(body.roles)
    async with audited(request, "key.create", body.principal, roles=roles, may_act_for_users=acts):
        key, text = await framework_of(request).services.keys.create(
            body.principal,
            body.roles,
            by=caller_of(request).principal,
            may_act_for_users=body.may_act_for_users,
            expires_after=body.expires_after,
            limit=None if body.limit is None else BucketLimit(body.limit.rate, body.limit.burst),
        )
    headers = {"Location": f"{root_of(request)}{PREFIX}/admin/keys/{key.prefix}"}
    return json_response({**key_view(key), "key": text}, 201, headers)


_KEY_RESPONSE: dict[int | str, dict[str, Any]] = {200: {"model": KeyView, "description": "The stored data of the key"}}


@router.get(
    "/admin/keys/{prefix}",
    summary="Show an API key",
    responses={**_KEY_RESPONSE, **problem_responses("key_not_found", "store_unavailable")},
)
async def get_key(request: Request, prefix: KeyInPath) -> Response:
    """Show the stored fields of a key."""
    return _key_response(await framework_of(request).services.keys.get(prefix))


@router.delete(
    "/admin/keys/{prefix}",
    summary="Revoke an API key",
    responses={**_KEY_RESPONSE, **problem_responses("key_not_found", "store_unavailable")},
)
async def revoke_key(request: Request, prefix: KeyInPath) -> Response:
    """Revoke a key. Within five seconds no process accepts it, and the streams that it opened end."""
    async with audited(request, "key.revoke", prefix):
        services = framework_of(request).services
        key = await services.keys.revoke(prefix, by=caller_of(request).principal)
        services.callers.forget(key.prefix)
    return _key_response(key)


def _key_response(key: ApiKey) -> Response:
    return json_response(key_view(key))
