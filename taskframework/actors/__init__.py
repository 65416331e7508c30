"""One writer for each key: a mailbox, timers that cannot come late, and an end that comes once.

Stands beside the rest: what it needs of the framework is somebody to submit to.
"""

from taskframework.actors.actor import KeyedActor, Timers
from taskframework.actors.actors import ActorsStoppedError, KeyedActors
from taskframework.actors.submitting import job_key, submit_once

__all__ = ["ActorsStoppedError", "KeyedActor", "KeyedActors", "Timers", "job_key", "submit_once"]
