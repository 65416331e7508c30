"""The broker goes away and comes back; processes die. What was accepted is executed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from datetime import timedelta
from functools import partial

import aio_pika
import pytest

from taskframework import TaskFramework, TaskStatus
from taskframework.model.attempts import Claim, Complete
from taskframework.model.scope import EVERYONE
from taskframework.model.status import Priority
from taskframework.model.transitions import Fence
from taskframework.testing.eventually import eventually
from tests.flow.conftest import Run
from tests.support.kitchen_sink import Counts, Waits
from tests.support.servers import MongoServer, RabbitServer

#: Short enough to wait for a beat or for the reaper, and long enough for a busy machine to renew it.
LEASE = "6s"


@pytest.mark.parametrize("urls", ["servers"], indirect=True)
async def test_submissions_are_accepted_without_a_broker_and_run_when_it_is_back(
    run: Run, rabbit_server: RabbitServer
) -> None:
    async with run(broker={"publish_timeout": "2s"}) as framework:
        await (await framework.submit("counts")).result(timeout=60)
        await asyncio.to_thread(rabbit_server.ctl, "stop_app")
        try:
            await eventually(lambda: not framework.process.broker.is_connected)
            handles = await asyncio.gather(*(framework.submit("counts") for _ in range(50)))
            ready = await framework.process.health.readiness()
            assert ready.ready, "a broker outage alone does not make a process unready"
            assert ready.checks["broker"] != "ok"
            dispatches = [(await handle.task()).dispatches for handle in handles]
            assert dispatches == [0] * 50, "nothing is reserved meanwhile"
        finally:
            await asyncio.to_thread(rabbit_server.ctl, "start_app")
        for handle in handles:
            assert await handle.result(timeout=60) == 1


@pytest.mark.parametrize("urls", ["servers"], indirect=True)
@pytest.mark.parametrize("worker", [True, False], ids=["a worker", "no worker"])
async def test_an_idle_process_says_once_that_the_store_is_away_and_once_that_it_is_back(
    run: Run, mongo_server: MongoServer, caplog: pytest.LogCaptureFixture, worker: bool
) -> None:
    caplog.set_level("INFO", "taskframework")
    recovery = {"sweep_interval": "200ms", "relay_interval": "200ms"}
    async with run(worker=worker, store={"timeout": "4s"}, recovery=recovery) as framework:
        process = framework.process
        caplog.clear()
        await asyncio.to_thread(mongo_server.stop)
        try:
            await eventually(lambda: _failed_looks(framework) >= 12, timeout=90)
            assert process.breaker.is_open
            assert process.worker is None or process.worker.problem == "paused: the store is away"
        finally:
            await asyncio.to_thread(mongo_server.start)
        await eventually(lambda: not process.breaker.is_open, timeout=40)
        (relay,) = [repair for repair in process.repairs if repair.name == "relay"]
        looks = relay.looks
        await eventually(lambda: relay.looks > looks, timeout=20)
    # The loop watch tells of a machine that is too busy.
    others = ("taskframework.brokers", "taskframework.observability")
    ours = [record for record in caplog.records if not record.name.startswith(others)]
    loud = [record.getMessage() for record in ours if record.levelname != "INFO"]
    back = [message for message in caplog.messages if message.startswith("the store is back after")]
    # A server that has just started on a crowded machine may be too slow for the timeout once more.
    assert len(loud) == len(back) in (1, 2)
    expected = "the store is away, consuming stops, 0 deliveries are held: " if worker else "the store is away: "
    assert all(message.startswith(expected) for message in loud)


@pytest.mark.parametrize("urls", ["servers"], indirect=True)
async def test_a_deleted_queue_is_made_again_and_its_tasks_run(run: Run, urls: dict[str, str]) -> None:
    recovery = {"redispatch": "300ms", "redispatch_max": "300ms"}
    async with run(worker=False, recovery=recovery) as framework:
        handles = [await framework.submit("counts") for _ in range(20)]
        await eventually(lambda: _depth_is(framework, 20))
        connection = await aio_pika.connect(urls["broker"])
        async with connection:
            await (await connection.channel()).queue_delete("tasks.counts.normal")
    async with run(recovery=recovery) as framework:
        for handle in handles:
            assert await framework.handle(handle.task_id).result(timeout=60) == 1


@pytest.mark.parametrize("urls", ["servers"], indirect=True)
async def test_a_message_that_the_broker_refuses_does_not_count_as_sent(
    run: Run, rabbit_server: RabbitServer, urls: dict[str, str]
) -> None:
    def may(write: str) -> Awaitable[str]:
        return asyncio.to_thread(rabbit_server.ctl, "set_permissions", "-p", vhost, "guest", ".*", write, ".*")

    async with run(worker=False, recovery={"redispatch": "1s"}) as framework:
        vhost = urls["broker"].rsplit("/", 1)[1]
        await may("^$")
        handle = await framework.submit("counts")
        await eventually(lambda: framework.process.producer.refusal is not None)
        ready = await framework.process.health.readiness()
        assert "the last message was refused: RabbitMQ: publishing: ACCESS_REFUSED" in str(ready.checks["broker"])

        async def is_known_to_wait() -> bool:
            task = await handle.task()
            return task.dispatches == 0 and task.next_dispatch_at is not None

        await eventually(is_known_to_wait)
        process, explain = framework.process, framework.services.explain.explain
        told = await explain(handle.task_id, EVERYONE, process.broker, process.producer.refusal)
        assert told.cause.code == "broker_away"
        assert "cannot give messages to the broker: RabbitMQ: publishing: ACCESS" in told.cause.because
        await may(".*")
        await eventually(lambda: _depth_is(framework, 1))
        assert (await framework.process.health.readiness()).checks["broker"] == "ok"


async def test_a_task_whose_worker_died_is_executed_by_another_one(run: Run) -> None:
    async with run(worker=False) as framework:
        handle = await framework.submit("counts")
        claim = Claim(handle.task_id, 1, "claim-of-the-dead", "dead-worker", timedelta(seconds=0.4))
        assert await framework.services.store.apply(claim) is not None
    async with run(lease=LEASE) as framework:
        assert await framework.handle(handle.task_id).result(timeout=60) == 1
        task = await framework.get(handle.task_id)
        assert (task.crashes, task.attempts, task.fencing_token) == (1, 2, 2)
        assert task.errors[0].code == "lease_expired"
        zombie = Complete(Fence(task.task_id, 1, "claim-of-the-dead"), "dead-worker", "too late")
        assert await framework.services.store.apply(zombie) is None
        assert (await framework.get(task.task_id)).result == 1


async def test_a_worker_that_lost_its_lease_discards_its_result_and_counts_it(run: Run) -> None:
    async with run(lease=LEASE) as framework:
        handle = await framework.submit("waits")
        await eventually(lambda: Waits.started == 1)
        store = framework.services.store
        task = await handle.task()
        assert task.lease is not None
        thief = Complete(Fence(task.task_id, task.fencing_token, task.lease.claim_id), "thief", "stolen")
        assert await store.apply(thief) is not None
        await eventually(lambda: 'tasks_stale_writes_total{task_type="waits"} 1.0' in _metrics(framework))
        assert (await handle.task()).result == "stolen"


async def test_a_poison_task_is_a_dead_letter_after_its_crashes(run: Run) -> None:
    async with run(worker=False, lease="400ms") as framework:
        handle = await framework.submit("counts")
        for crash in range(3):
            epoch = await eventually(lambda: _claimable(framework, handle.task_id))
            claim = Claim(handle.task_id, epoch, f"claim-{crash}", "dead-worker", timedelta(seconds=0.1))
            await eventually(partial(framework.services.store.apply, claim))
        ended = await handle.finished(timeout=60)
    assert (ended.status, ended.crashes) == (TaskStatus.DEAD_LETTER, 3)
    assert ended.task_id not in Counts.executions


def _metrics(framework: TaskFramework) -> str:
    return framework.process.metrics.exposition().decode()


def _failed_looks(framework: TaskFramework) -> float:
    lines = [line for line in _metrics(framework).splitlines() if line.startswith("tasks_repairs_failed_total{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


async def _claimable(framework: TaskFramework, task_id: str) -> int:
    task = await framework.get(task_id)
    return task.dispatch_epoch if task.status in (TaskStatus.QUEUED, TaskStatus.RETRYING) else 0


async def _depth_is(framework: TaskFramework, depth: int) -> bool:
    return await framework.process.broker.queue_depth("counts", Priority.NORMAL) == depth
