"""API keys: what may be shown of one."""

from __future__ import annotations

import pytest

from taskframework.model.keys import new_key, prefix_of, with_prefixes_only


def test_only_the_prefix_of_an_api_key_is_shown() -> None:
    prefix, key = new_key()
    assert with_prefixes_only(key) == prefix == prefix_of(key)
    assert with_prefixes_only(f"/keys/{key}?a, 'Bearer {key}'") == f"/keys/{prefix}?a, 'Bearer {prefix}'"


@pytest.mark.parametrize("text", ["", "tf_0123456789", "billing-service", "tf_orders_daily", "tf_0123456789_"])
def test_a_text_without_an_api_key_is_not_changed(text: str) -> None:
    assert with_prefixes_only(text) == text
