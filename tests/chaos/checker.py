"""Judges a history: a pure function from observations to a report. What each rule forbids is in `rules.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from tests.chaos import rules
from tests.chaos.history import Observation
from tests.chaos.judging import Violation
from tests.chaos.story import World


@dataclass(frozen=True, slots=True)
class Report:
    """What a history amounts to.

    Attributes:
        violations: broken promises; must be empty.
        faults: how often each fault was injected.
        statuses: how many tasks ended in each status.
        accepted: submissions that were answered 202 (or 200, for a repetition).
        answers: how often each HTTP status was the answer to a submission; None for no answer.
        recovered: submissions without an answer whose task turned out to exist.
        repeated: executions beyond a task's first.
        zombie_effects: work of an attempt after a later one had begun, allowed because its worker was hit by a fault.
        events: lifecycle events received, duplicates included.
        recoveries: seconds from the end of a killed worker to the next attempt, per interrupted attempt.
        resumptions: seconds from the end of a fault to the next attempt anywhere, per fault.
    """

    violations: tuple[Violation, ...]
    faults: Counter[str]
    statuses: Counter[str]
    submissions: int
    accepted: int
    answers: Counter[int | None]
    recovered: int
    executions: int
    repeated: int
    zombie_effects: int
    events: int
    duplicate_events: int
    recoveries: tuple[float, ...]
    resumptions: tuple[float, ...]

    @property
    def losses(self) -> int:
        """Accepted tasks that are not there or not final."""
        return sum(violation.rule in ("lost", "not_final") for violation in self.violations)

    def count(self, rule: str) -> int:
        return sum(violation.rule == rule for violation in self.violations)

    def lines(self) -> list[str]:
        """The report for people."""
        faults = ", ".join(f"{count} {name}" for name, count in sorted(self.faults.items())) or "none"
        answers = ", ".join(f"{count} times {status or 'none'}" for status, count in self.answers.most_common())
        statuses = ", ".join(f"{count} {name}" for name, count in sorted(self.statuses.items())) or "none"
        lines = [
            f"faults injected: {faults}",
            f"tasks: {statuses}",
            f"submissions: {self.submissions}, accepted {self.accepted}, without an answer and there all the same "
            f"{self.recovered}; answers: {answers}",
            f"executions: {self.executions}, of them {self.repeated} repetitions; "
            f"late effects of faulty workers: {self.zombie_effects}",
            f"losses: {self.losses}; tasks completed twice: {self.count('completed_twice')}",
            f"events received: {self.events}, of them {self.duplicate_events} duplicates",
        ]
        if self.recoveries:
            lines.append(
                f"{len(self.recoveries)} attempts lost their worker; to the next one: {_times(self.recoveries)}"
            )
        if self.resumptions:
            lines.append(
                f"{len(self.resumptions)} faults were repaired; until work went on: {_times(self.resumptions)}"
            )
        by_rule = Counter(violation.rule for violation in self.violations)
        lines.append("violations: " + (", ".join(f"{count} {rule}" for rule, count in by_rule.items()) or "none"))
        return lines


def check(history: Sequence[Observation], *, recovery_limit: float | None = None) -> Report:
    """Judge a history that ends with the final documents.

    Args:
        history: in the order of time.
        recovery_limit: seconds within which the attempt of a killed worker must be followed by the next one.
    """
    world = World.of(history)
    zombies = rules.zombie_effects(world)
    recoveries = rules.recoveries(world)
    violations = [violation for rule in rules.ALL for violation in rule(world)]
    violations += [zombie.violation for zombie in zombies if not zombie.is_excused]
    if recovery_limit is not None:
        violations += [late.violation(recovery_limit) for late in recoveries if late.seconds > recovery_limit]
    starts = sum(len(story.starts) for story in world.stories.values())
    received = [seen for heard in world.heard.values() for events in heard.values() for seen in events]
    distinct = sum(
        len({seen["sequence"] for seen in events}) for heard in world.heard.values() for events in heard.values()
    )
    return Report(
        violations=tuple(violations),
        faults=Counter(seen["fault"] for seen in world.of_kind("fault.start")),
        statuses=Counter(story.document["status"] for story in world.stories.values() if story.document),
        submissions=len(world.submissions),
        accepted=sum(bool(submission.accepted) for submission in world.submissions.values()),
        answers=Counter(
            seen["status"] for seen in history if seen.kind in ("submit.ok", "submit.fail", "submit.unknown")
        ),
        recovered=sum(
            not submission.accepted and name in world.by_submission for name, submission in world.submissions.items()
        ),
        executions=starts,
        repeated=starts - sum(bool(story.starts) for story in world.stories.values()),
        zombie_effects=sum(zombie.is_excused for zombie in zombies),
        events=len(received),
        duplicate_events=len(received) - distinct,
        recoveries=tuple(late.seconds for late in recoveries),
        resumptions=tuple(rules.resumptions(world)),
    )


def _times(seconds: Sequence[float]) -> str:
    return f"{median(seconds):.1f} s in the middle, {max(seconds):.1f} s at most"
