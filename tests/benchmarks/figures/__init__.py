"""What is measured: one file a figure, one function a trial. A trial returns raw samples by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

#: Raw values of one trial by the name of the figure: one value, or one for each task that was looked at.
Samples = Mapping[str, Sequence[float]]
