"""RabbitMQ and MongoDB for tests, benchmarks and trying out: private, temporary, gone afterwards.

`python -m tests.support.servers` starts both, prints the settings that lead taskframework to them, stays until Ctrl-C.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading

from tests.support.mongo import MongoServer
from tests.support.process import ServerFailed, ServerUnavailable
from tests.support.rabbit import RabbitServer

__all__ = ["MongoServer", "RabbitServer", "ServerFailed", "ServerUnavailable", "main"]


def main() -> int:
    """Run both servers until SIGINT or SIGTERM; return the exit code."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with contextlib.ExitStack() as stack:
        try:
            rabbit = stack.enter_context(contextlib.closing(RabbitServer()))
            mongo = stack.enter_context(contextlib.closing(MongoServer()))
            print("Starting RabbitMQ and MongoDB (about ten seconds) ...", file=sys.stderr)
            mongo.start()
            rabbit.start()
        except (ServerUnavailable, ServerFailed) as error:
            print(error, file=sys.stderr)
            return 1
        print(f"export TASKFRAMEWORK_BROKER__URL='{rabbit.url}'")
        print(f"export TASKFRAMEWORK_STORE__URL='{mongo.url_of('taskframework')}'", flush=True)
        print("Running; Ctrl-C ends both and removes their data.", file=sys.stderr)
        stop.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
