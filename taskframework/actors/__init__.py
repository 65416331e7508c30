"""Actors: one writer for each key, with a mailbox, timers whose old firings are dropped, and exactly one end.

The sub-package is independent of the rest of the framework: it only needs something to submit tasks to.
"""

from taskframework.actors.actor import KeyedActor, Timers
from taskframework.actors.actors import ActorsStoppedError, ActorWaitsForItselfError, KeyedActors
from taskframework.actors.submitting import job_key, submit_once

__all__ = [
    "ActorWaitsForItselfError",
    "ActorsStoppedError",
    "KeyedActor",
    "KeyedActors",
    "Timers",
    "job_key",
    "submit_once",
]
