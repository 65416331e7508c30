"""`batch`: submit many items as one, follow them, read their results, cancel and retry."""

from __future__ import annotations

import asyncio
from typing import Annotated, Unpack

import typer

from taskframework.cli.batch_file import ItemFile
from taskframework.cli.batch_watching import follow, print_batch, print_batches, print_end, print_results
from taskframework.cli.bulk_actions import note_unknown_type
from taskframework.cli.invocation import Invocation
from taskframework.cli.options import Api, ApiKey, Apps, BatchId, Config, Cursor, Json, Limit, NumberCursor, TaskReason
from taskframework.cli.output import print_json, print_json_line, run, say
from taskframework.cli.render import print_page
from taskframework.cli.store import (
    AnyFramework,
    audited,
    is_store_missing,
    on_store,
    operator_name,
    register_types,
    remote_framework,
)
from taskframework.cli.submit import Type, User, takes_options
from taskframework.cli.tasks import Status, TypeName
from taskframework.model.batch_status import BatchResult, BatchStatus
from taskframework.model.batches import purpose_of_retry
from taskframework.model.query import TaskFilter
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.model.wording import pluralize
from taskframework.runtime import TaskFramework
from taskframework.submission.acceptance import batch_option_schemas
from taskframework.submission.options import BatchOptions

app = typer.Typer(no_args_is_help=True, help="Batches: submit many items as one, show, follow, cancel, retry.")

File = Annotated[
    str, typer.Argument(metavar="FILE", help="A file with one item per line, as JSON; - reads standard input.")
]
Watch = Annotated[bool, typer.Option("--watch", help="Wait until it ends; exit code 0 only if it is COMPLETED.")]
Follow = Annotated[
    bool,
    typer.Option(
        "--follow", help="Print each result as a line of JSON as soon as it is available, until the last one."
    ),
]


@app.command()
@takes_options(batch_option_schemas())
def submit(
    context: typer.Context,
    task_type: Type,
    file: File,
    watch: Watch = False,
    user: User = None,
    api: Api = None,
    api_key: ApiKey = None,
    config: Config = None,
    app: Apps = None,
    as_json: Json = False,
    **options: Unpack[BatchOptions],
) -> None:
    """Submit one task for each line of a file. All of them are stored when this command returns.

    With --idempotency-key, run the same command again to continue an interrupted upload.
    """
    framework = remote_framework(api, api_key) or _local_framework(Invocation.of(context, config, app), task_type)
    status = run(_submit(framework, task_type, file, watch, user, as_json, options))
    if watch and status.status is not TaskStatus.COMPLETED:
        raise typer.Exit(1)


def _local_framework(invocation: Invocation, task_type: str) -> TaskFramework:
    framework = invocation.framework(registers=bool(invocation.apps))
    if is_store_missing(framework.settings):  # no type is declared then, and a refused submission must make no file
        register_types(invocation, framework).registry.require(task_type)
    return framework


async def _submit(
    framework: AnyFramework,
    task_type: str,
    file: str,
    should_watch: bool,
    user: str | None,
    as_json: bool,
    options: BatchOptions,
) -> BatchStatus:
    async with framework.store_only():
        items = await asyncio.to_thread(ItemFile, file)
        with items.uploading(options.get("idempotency_key")):
            handle = await framework.submit_batch(task_type, items.values(), user_id=user, **options)
        status = await handle.status()
        if not as_json:
            outcome = "Submitted" if handle.is_new else "Submitted before:"
            say(f"{outcome} batch {handle.batch_id} of {pluralize(status.total, 'item')}")
        if should_watch:
            status = await follow(handle)
    if as_json:
        print_json(status.view())
    else:
        print_end(status)
    return status


@app.command("list")
@on_store
async def list_batches(
    framework: AnyFramework,
    status: Status = None,
    task_type: TypeName = None,
    limit: Limit = 20,
    cursor: Cursor = None,
    as_json: Json = False,
) -> None:
    """List batches, the newest first."""
    wanted = TaskFilter(status=status, task_type=task_type)
    page = await framework.services.batches.list_batches(EVERYONE, wanted, limit=limit, cursor=cursor)
    if not page.items:
        await note_unknown_type(framework, task_type)
    nothing = "No batches." if wanted == TaskFilter() else "No such batches."
    print_page(page, print_batches, BatchStatus.view, as_json=as_json, nothing=nothing)


@app.command()
@on_store
async def show(framework: AnyFramework, batch_id: BatchId, as_json: Json = False) -> None:
    """Show the progress of a batch."""
    status = await framework.batch(batch_id).status()
    if as_json:
        print_json(status.view())
    else:
        print_batch(status)
        print_end(status)


@app.command()
@on_store
async def watch(framework: AnyFramework, batch_id: BatchId, as_json: Json = False) -> None:
    """Follow a batch until it ends; exit code 0 if it is COMPLETED."""
    status = await follow(framework.batch(batch_id))
    if as_json:
        print_json(status.view())
    else:
        print_end(status)
    if status.status is not TaskStatus.COMPLETED:
        raise typer.Exit(1)


@app.command()
@on_store
async def results(
    framework: AnyFramework,
    batch_id: BatchId,
    follow: Follow = False,
    limit: Limit = 20,
    cursor: NumberCursor = None,
    as_json: Json = False,
) -> None:
    """Show the results of the items, in order."""
    first = cursor or 0
    if follow:
        async for result in framework.batch(batch_id).results(first=first):
            print_json_line(result.view())
        return
    page = await framework.services.batches.results(batch_id, EVERYONE, limit=limit, first=first)
    print_page(page, print_results, BatchResult.view, as_json=as_json, nothing="No more results so far.")


@app.command()
@on_store
@audited("batch.cancel", target="batch_id")
async def cancel(framework: AnyFramework, batch_id: BatchId, reason: TaskReason = None, as_json: Json = False) -> None:
    """Cancel a batch and its unfinished tasks."""
    status = await framework.services.batches.cancel(batch_id, EVERYONE, by=operator_name(), reason=reason)
    if as_json:
        print_json(status.view())
    else:
        say(f"Batch {batch_id} is cancelled. Its tasks are now being cancelled one by one.")


@app.command("retry-failed")
@on_store
@audited("batch.retry-failed", target="batch_id")
async def retry_failed(framework: AnyFramework, batch_id: BatchId, as_json: Json = False) -> None:
    """Queue all failed or cancelled tasks of a batch again."""
    status = await framework.services.batches.retry_failed(batch_id, EVERYONE, by=operator_name())
    if as_json:
        print_json(status.view())
    else:
        say(f"Batch {batch_id} is open again, to {purpose_of_retry(status.batch)}.")
        print_end(status)
