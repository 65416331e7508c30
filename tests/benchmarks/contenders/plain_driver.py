"""This project without its fast path to RabbitMQ: every message goes through the driver's public calls."""

from __future__ import annotations

from tests.benchmarks import program
from tests.benchmarks.contenders.taskframework import Taskframework


class PlainDriver(Taskframework):
    settings = {**Taskframework.settings, "broker.fast_path": "off"}
    broker = {"fast_path": "off"}


if __name__ == "__main__":
    program.run(PlainDriver)
