"""Prints the alerts as rules for Prometheus, or with `--dashboard` the dashboard for Grafana."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

import yaml

from taskframework.observability.alerts import PAGE, rules
from taskframework.observability.dashboard import dashboard

_ABOUT_RULES = """\
# Alerts for Prometheus. Made by `python -m taskframework.observability.monitoring`; with --page ADDRESS each alert
# links to your copy of docs/operations/alerts.md.
"""


class _Readable(yaml.SafeDumper):
    """Writes expressions with quotes as YAML blocks, so that they need no further quotes."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if '"' in text else None)


_Readable.add_representer(str, _text)


def rules_yaml(page: str = PAGE) -> str:
    """Return the alerts as a rules file."""
    return _ABOUT_RULES + yaml.dump(rules(page), Dumper=_Readable, sort_keys=False, width=1_000)


def dashboard_json() -> str:
    """Return the dashboard as a file to import."""
    return json.dumps(dashboard(), indent=1) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m taskframework.observability.monitoring", description=__doc__)
    parser.add_argument("--dashboard", action="store_true", help="print the dashboard")
    parser.add_argument("--page", default=PAGE, metavar="ADDRESS", help="the page that each alert leads to")
    options: Any = parser.parse_args(arguments)
    sys.stdout.write(dashboard_json() if options.dashboard else rules_yaml(options.page))


if __name__ == "__main__":
    main()
