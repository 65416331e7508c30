"""Samples become figures."""

from __future__ import annotations

import pytest

from tests.benchmarks.metrics import METRICS, Figure, Metric, best, figures, quantile


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([3, 1, 2], 0.5, 2), ([4, 1, 2, 3], 0.5, 2.5), (range(1, 101), 0.99, 99), ([7], 0.99, 7), ([1, 2], 0.99, 2)],
)
def test_a_quantile_is_the_smallest_value_that_enough_do_not_exceed(
    values: list[float], share: float, expected: float
) -> None:
    assert quantile(values, share) == expected


def test_no_values_have_no_quantile() -> None:
    with pytest.raises(ValueError, match="no values"):
        quantile([], 0.5)


def test_a_figure_counts_all_samples_and_has_the_range_of_its_rounds() -> None:
    latency = Metric("latency", "Latency", "ms", "probe")
    found = figures({"probe": [[1, 2, 3], [], [10, 20, 30, 40]]}, [latency])
    assert found == {"latency": Figure(10, low=2, high=25)}


def test_a_metric_that_was_not_measured_has_no_figure() -> None:
    assert figures({}, METRICS) == {}


def test_the_best_rate_is_the_highest_and_the_best_cost_the_lowest() -> None:
    by_contender = {"a": {"x": Figure(1, 1, 1)}, "b": {"x": Figure(2, 2, 2)}, "c": {}}
    assert best(Metric("x", "", "", "x", is_rate=True), by_contender) == ("b", 2)
    assert best(Metric("x", "", "", "x"), by_contender) == ("a", 1)
    assert best(Metric("y", "", "", "y"), by_contender) is None


def test_a_peer_counts_with_its_best_way() -> None:
    by_contender = {"a": {"bulk": Figure(3, 3, 3)}, "b": {"single": Figure(5, 5, 5)}}
    assert best(Metric("bulk", "", "", "bulk", is_rate=True, also=("single",)), by_contender) == ("b", 5)


def test_no_two_metrics_have_one_name() -> None:
    names = [metric.name for metric in METRICS]
    assert len(names) == len(set(names))
