"""What no history may show. Each rule looks at the whole history and yields what breaks it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tests.chaos import parent_rules, stream_rules
from tests.chaos.history import Observation
from tests.chaos.judging import Violation, documents
from tests.chaos.story import BEGIN_ANEW, FINAL_STATUSES, FINAL_TYPES, Story, World

#: Documents keep milliseconds.
_PRECISION = 0.0015


@dataclass(frozen=True, slots=True)
class Zombie:
    """An attempt that did something after a later one had begun."""

    violation: Violation
    is_excused: bool


@dataclass(frozen=True, slots=True)
class Recovery:
    """An attempt whose worker was killed, and the time to the next one."""

    task_id: str
    seconds: float

    def violation(self, limit: float) -> Violation:
        return Violation("slow_recovery", self.task_id, f"{self.seconds:.1f} s, the limit is {limit:g} s")


def lost(world: World) -> Iterator[Violation]:
    """What was accepted is there."""
    for name, submission in world.submissions.items():
        for task_id in submission.accepted:
            if world.stories.get(task_id) is None or world.stories[task_id].document is None:
                yield Violation("lost", task_id, f"submission {name} was accepted, the task is not there")


def not_final(world: World) -> Iterator[Violation]:
    """What is there reached an end, whether its submission was answered or not."""
    for story, document in documents(world):
        if document["status"] not in FINAL_STATUSES:
            yield Violation("not_final", story.task_id, f"it is {document['status']}: {document}")


def unexpected(world: World) -> Iterator[Violation]:
    """Nothing is there that nobody submitted, or that was refused."""
    for name, tasks in world.by_submission.items():
        submission = world.submissions.get(name)
        if submission is None or not (submission.accepted or submission.is_unclear):
            yield Violation("unexpected", tasks[0], f"nobody was told that submission {name} might be accepted")


def doubled(world: World) -> Iterator[Violation]:
    """One submission, tried however often with its idempotency key, is one task."""
    for name, tasks in world.by_submission.items():
        told = world.submissions[name].accepted if name in world.submissions else set()
        if len({*tasks, *told}) > 1:
            yield Violation("doubled", name, f"tasks {sorted({*tasks, *told})}")


def refused_badly(world: World) -> Iterator[Violation]:
    """A server's error is a 503 that says when to come back."""
    for seen in world.of_kind("submit.unknown"):
        status = seen.get("status")
        if status is not None and (status != 503 or seen.get("retry_after") is None):
            told = f"{status}, Retry-After {seen.get('retry_after')}: {seen.get('reason')}"
            yield Violation("refused_badly", seen["submission"], told)


def completed_twice(world: World) -> Iterator[Violation]:
    """A generation of a task ends once; between two ends there is a replay."""
    for story, _ in documents(world):
        generation = 0
        ends: Counter[int] = Counter()
        for sequence, kind in sorted(_lifecycle(world, story).items()):
            if kind in BEGIN_ANEW:
                generation += 1
            elif kind in FINAL_TYPES:
                ends[generation] += 1
                if ends[generation] > 1:
                    yield Violation("completed_twice", story.task_id, f"a second end, {kind} at sequence {sequence}")


def final_changed(world: World) -> Iterator[Violation]:
    """After an end nothing follows but a replay, and what was seen of the end stays true. That a dead letter is given
    up changes nothing of it but the sequence.
    """
    for story, document in documents(world):
        before, ended_at = None, document["sequence"]
        for sequence, kind in sorted(_lifecycle(world, story).items()):
            if kind == "discarded":
                continue
            ended_at = sequence
            if before in FINAL_TYPES and kind not in FINAL_TYPES and kind not in BEGIN_ANEW:
                yield Violation("final_changed", story.task_id, f"{kind} at sequence {sequence} came after {before}")
            before = kind
        for seen in story.finals:
            if seen["generation"] != document["generation"]:
                continue
            for name in ("status", "sequence", "result"):
                now = ended_at if name == "sequence" and document["sequence"] > seen[name] else document[name]
                if seen[name] != now:
                    what = f"{name} was {seen[name]!r} when it was final, now it is {document[name]!r}"
                    yield Violation("final_changed", story.task_id, what)


def contradicted(world: World) -> Iterator[Violation]:
    """A sequence means the same event to everybody."""
    for story, _ in documents(world):
        types = {entry.sequence: entry.type for entry in story.entries}
        for seen in _events(world, story):
            if types.setdefault(seen["sequence"], seen["type"]) != seen["type"]:
                known = types[seen["sequence"]]
                yield Violation("contradicted", story.task_id, f"{seen['sequence']} is {known} and {seen['type']}")


def stale_result(world: World) -> Iterator[Violation]:
    """A result was written by the attempt with the largest token."""
    for story, document in documents(world):
        result = document["result"]
        if document["status"] != "COMPLETED" or not isinstance(result, dict) or "token" not in result:
            continue
        largest = max([document["fencing_token"], *(seen["token"] for seen in story.starts)])
        if result["token"] != largest:
            yield Violation("stale_result", story.task_id, f"written by token {result['token']} of {largest}")


def history_broken(world: World) -> Iterator[Violation]:
    """A document's sequences count 1..n without a gap, and each token is one `started`."""
    for story, document in documents(world):
        sequences = [entry.sequence for entry in story.entries]
        first = 1 if story.is_whole else document["sequence"] - len(sequences) + 1
        if sequences != list(range(first, document["sequence"] + 1)):
            yield Violation("history_broken", story.task_id, f"sequences {sequences} of {document['sequence']}")
        claims = sum(entry.type == "started" for entry in story.entries)
        if story.is_whole and claims != document["fencing_token"]:
            yield Violation("history_broken", story.task_id, f"{claims} claims, token {document['fencing_token']}")


def event_missing(world: World) -> Iterator[Violation]:
    """Every subscriber that was there from the start heard every event, whenever it was away."""
    for subscriber, heard in world.heard.items():
        for story, document in documents(world):
            missing = set(range(1, document["sequence"] + 1)) - {seen["sequence"] for seen in heard[story.task_id]}
            if missing:
                yield Violation("event_missing", story.task_id, f"{subscriber} did not hear {sorted(missing)}")


def event_out_of_order(world: World) -> Iterator[Violation]:
    """A subscriber hears the events of a task for the first time in the order of their sequence."""
    for subscriber, heard in world.heard.items():
        for task_id, events in heard.items():
            first = list(dict.fromkeys(seen["sequence"] for seen in events))
            if first != sorted(first):
                yield Violation("event_out_of_order", task_id, f"{subscriber} heard {first}")


def never_ran(world: World) -> Iterator[Violation]:
    """What is completed was executed to its end."""
    for story, document in documents(world):
        if document.get("batch") is not None:
            continue  # it has no code
        if document["status"] == "COMPLETED" and not any(e["outcome"] == "returned" for e in story.ends.values()):
            yield Violation("never_ran", story.task_id, "it is COMPLETED and no execution came to its end")


def token_ran_twice(world: World) -> Iterator[Violation]:
    """One claim is one execution."""
    for story in world.stories.values():
        for token, count in Counter(seen["token"] for seen in story.starts).items():
            if count > 1:
                yield Violation("token_ran_twice", story.task_id, f"token {token} ran {count} times")


def undriven(world: World) -> Iterator[Violation]:
    """Every live document says what moves it on, and no event waits for nobody."""
    for story, document in documents(world):
        what = _undriven(document)
        if what is not None:
            yield Violation("undriven", story.task_id, what)
    for seen in world.of_kind("undriven"):
        if seen["count"]:
            yield Violation("undriven", seen.process, f"tasks_undriven is {seen['count']}")


def left_in_queue(world: World) -> Iterator[Violation]:
    """When everything is final, no queue holds a message."""
    for seen in world.of_kind("queue"):
        if seen["messages"]:
            yield Violation("left_in_queue", seen["name"], f"{seen['messages']} messages")


def early_claim(world: World) -> Iterator[Violation]:
    """No attempt begins before its time, neither the first nor the one after a failure."""
    for story, document in documents(world):
        entries = story.entries
        submission = world.submissions.get(document["correlation_id"])
        first = next((entry for entry in entries if entry.type == "started"), None)
        if submission is not None and submission.not_before is not None and first is not None:
            yield from _too_early(story, first.at, submission.not_before)
        token = 0
        for entry, following in pairwise(entries):
            token += entry.type == "started"
            end = story.ends.get(token)
            if (entry.type, following.type) != ("retrying", "started") or entry.code == "lease_expired":
                continue  # a worker that dies before it could write down the failure takes the delay with it
            if end is not None and end.get("delay"):
                yield from _too_early(story, following.at, entry.at + end["delay"])


def stopped_badly(world: World) -> Iterator[Violation]:
    """A process that is told to stop does so in order."""
    for seen in world.of_kind("process.end"):
        if seen["code"] != 0:
            yield Violation("stopped_badly", seen["target"], f"exit code {seen['code']} after {seen['seconds']:.1f} s")


def error_logged(world: World) -> Iterator[Violation]:
    """Whatever breaks around it, no process meets an error it did not reckon with."""
    for seen in world.of_kind("error"):
        yield Violation("error_logged", seen["target"], seen["line"][:2000])


def zombie_effects(world: World) -> list[Zombie]:
    """What an attempt did after a later one of its task had begun.

    Nobody can prevent it when the attempt's worker was paused, cut off or being stopped; otherwise it must not happen.
    An attempt begins with its claim: a worker may be paused after it and before the code.
    """
    found = []
    for story in world.stories.values():
        largest, began = 0, {seen["token"]: seen for seen in reversed(story.starts)}
        for seen in story.activity:
            token = seen["token"]
            if token < largest:
                since = began[token].monotonic if token in began else seen.monotonic
                if (claimed := story.claimed_at(token)) is not None:
                    since = min(since, world.monotonic(claimed))
                what = f"{seen.kind} of token {token} in process {seen['pid']} came after token {largest} had begun"
                excused = world.was_faulty(seen["pid"], since, seen.monotonic)
                found.append(Zombie(Violation("zombie_effect", story.task_id, what), excused))
            largest = max(largest, token)
    return found


def recoveries(world: World) -> list[Recovery]:
    """The attempts that ran in a process when it was killed, by the documents' own histories."""
    kills: dict[int, float] = {
        pid: seen.wall for seen in world.of_kind("fault.start") if seen["fault"] == "kill -9" for pid in seen["pids"]
    }
    found = []
    for story, _ in documents(world):
        entries = story.entries
        for index, entry in enumerate(entries[:-1]):
            killed = kills.get(entry.pid or 0)
            if entry.type != "started" or killed is None or not entry.at <= killed < entries[index + 1].at:
                continue
            following = next((later for later in entries[index + 1 :] if later.type == "started"), None)
            if following is not None:
                found.append(Recovery(story.task_id, following.at - killed))
    return found


def resumptions(world: World) -> list[float]:
    """Seconds from the end of each fault to the next attempt that began anywhere."""
    starts = [seen.monotonic for seen in world.of_kind("execution.start")]
    ends = (seen.monotonic for seen in world.of_kind("fault.stop"))
    following = ((end, next((start for start in starts if start > end), None)) for end in ends)
    return [start - end for end, start in following if start is not None]


#: Every rule but those with something to excuse or to measure.
ALL: tuple[Callable[[World], Iterator[Violation]], ...] = (
    lost,
    not_final,
    unexpected,
    doubled,
    refused_badly,
    completed_twice,
    final_changed,
    contradicted,
    stale_result,
    history_broken,
    event_missing,
    event_out_of_order,
    never_ran,
    token_ran_twice,
    undriven,
    left_in_queue,
    early_claim,
    stopped_badly,
    error_logged,
    *parent_rules.ALL,
    *stream_rules.ALL,
)


def _events(world: World, story: Story) -> Iterator[Observation]:
    return (seen for heard in world.heard.values() for seen in heard.get(story.task_id, ()))


def _lifecycle(world: World, story: Story) -> dict[int, str]:
    """Type by sequence, from the document and, where its history was cut or rewritten, from what was heard."""
    types = {seen["sequence"]: seen["type"] for seen in _events(world, story)}
    return types | {entry.sequence: entry.type for entry in story.entries}


def _undriven(document: Any) -> str | None:
    status = document["status"]
    if status in ("QUEUED", "RETRYING") and document["next_dispatch_at"] is None:
        return f"{status} without a time for its next dispatch"
    if status == "WAITING" and document["check_at"] is None:
        return "WAITING and nobody looks at it"
    if status == "RUNNING" and document["lease"] is None:
        return "RUNNING without a lease"
    if document["publish_at"] is None and document["published_sequence"] < document["sequence"]:
        return f"events above {document['published_sequence']} wait for nobody"
    return None


def _too_early(story: Story, at: float, due: float) -> Iterator[Violation]:
    if at < due - _PRECISION:
        yield Violation("early_claim", story.task_id, f"{due - at:.3f} s before its time")
