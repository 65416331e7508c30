"""API keys: what may be shown of one."""

from __future__ import annotations

import pytest

from taskframework.model.keys import new_key, prefix_of, with_prefixes_only


def test_of_a_whole_key_only_the_prefix_may_be_shown() -> None:
    prefix, key = new_key()
    assert with_prefixes_only(key) == prefix == prefix_of(key)
    assert with_prefixes_only(f"/keys/{key}?a, 'Bearer {key}'") == f"/keys/{prefix}?a, 'Bearer {prefix}'"


@pytest.mark.parametrize("text", ["", "tf_0123456789", "billing-service", "tf_orders_daily", "tf_0123456789_"])
def test_what_is_no_key_stays(text: str) -> None:
    assert with_prefixes_only(text) == text
