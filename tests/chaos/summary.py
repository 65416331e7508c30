"""What the chaos tests did and found, at the end of the run.

A plugin rather than a part of their conftest: the process that writes the summary has not collected the tests itself
when they run in others.
"""

from __future__ import annotations

from typing import cast

import pytest

#: The property of a test that holds its lines: properties come along with its report.
SUMMARY = "chaos summary"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what was done to the framework, and what became of it."""
    ended = [report for reports in terminalreporter.stats.values() for report in reports]
    told = {report.nodeid: _lines(report) for report in ended if getattr(report, "when", None) == "teardown"}
    if any(told.values()):
        terminalreporter.section("chaos")
    for name, lines in told.items():
        if lines:
            terminalreporter.write_line(name)
        for line in lines:
            terminalreporter.write_line(f"    {line}")


def _lines(report: pytest.TestReport) -> list[str]:
    return [str(line) for name, lines in report.user_properties if name == SUMMARY for line in cast("list[str]", lines)]
