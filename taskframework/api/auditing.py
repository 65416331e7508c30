"""Records what operators ask for over HTTP: who, what, when and why."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager, nullcontext
from urllib.parse import unquote

from starlette.requests import Request

from taskframework.api.callers import caller_of
from taskframework.api.context import framework_of
from taskframework.model.keys import Role
from taskframework.model.scope import EVERYONE
from taskframework.model.values import MAX_REASON, Json
from taskframework.operations.audit import Noted

#: How many ids or names an audit entry lists.
MAX_AUDITED_IDS = 20


def reason_of(request: Request, given: str | None = None) -> str | None:
    """The reason of a request: from the body, otherwise from the header `X-Reason`, percent-encoded if not ASCII."""
    return given or unquote(request.headers.get("x-reason", ""))[:MAX_REASON] or None


def audited(
    request: Request, action: str, target: str | None, reason: str | None = None, **details: Json
) -> AbstractAsyncContextManager[Noted]:
    """Record the action that is done inside, as `AuditLog.noted` does."""
    audit, caller = framework_of(request).services.audit, caller_of(request)
    return audit.noted(action, target, by=caller.principal, reason=reason_of(request, reason), **details)


async def audited_if_foreign(
    request: Request, action: str, task_id: str, reason: str | None = None, **details: Json
) -> AbstractAsyncContextManager[Noted | None]:
    """Record what an operator does to another user's task. What callers do to their own tasks is not recorded."""
    caller = caller_of(request)
    if caller.may(Role.OPERATOR):
        task = await framework_of(request).services.store.get(task_id, EVERYONE)
        if task is not None and task.user_id != caller.principal:
            return audited(request, action, task_id, reason, user_id=task.user_id, **details)
    return nullcontext()


def audited_if_for_others(
    request: Request, action: str, owners: Iterable[str], **details: Json
) -> AbstractAsyncContextManager[Noted | None]:
    """Record what an operator submits for other users. Submissions of a key that may act for users are not recorded:
    the key is made for that, and the record would be a second write for each submission.
    """
    caller = caller_of(request)
    others = sorted(set(owners) - {caller.principal})
    if caller.may_act_for_users or not others:
        return nullcontext()
    return audited(request, action, None, user_ids=list(others[:MAX_AUDITED_IDS]), **details)
