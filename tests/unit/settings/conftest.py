from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from taskframework.errors import ConfigurationError
from taskframework.settings import LoadedSettings, load_settings

Load = Callable[..., LoadedSettings]
Refusal = Callable[..., str]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Load from a text of application.yml, variables and overrides; nothing of this machine is read."""

    def call(
        text: str | None = None,
        environ: Mapping[str, str] | None = None,
        overrides: Mapping[str, object] | None = None,
    ) -> LoadedSettings:
        if text is not None:
            (tmp_path / "application.yml").write_text(text, encoding="utf-8")
        return load_settings(directory=tmp_path, environ=environ or {}, overrides=overrides)

    return call


@pytest.fixture
def refusal(load: Load) -> Refusal:
    """The whole text of the error that loading ends with."""

    def call(*arguments: object, **options: object) -> str:
        with pytest.raises(ConfigurationError) as caught:
            load(*arguments, **options)
        return str(caught.value)

    return call
