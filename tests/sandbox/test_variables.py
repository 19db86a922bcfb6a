from __future__ import annotations

import pytest

from agent_env.errors import ConfigError
from agent_env.sandbox.variables import redact, resolve_variables


def test_secrets_are_taken_from_the_servers_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "s3cret")
    resolved, secrets = resolve_variables({"KEY": "env:JUDGE_KEY", "MODE": "fast"}, env_name="shop")
    assert resolved == {"KEY": "s3cret", "MODE": "fast"}
    assert redact("calling with s3cret", secrets) == "calling with ***"


def test_a_secret_that_is_not_set_is_named_with_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    with pytest.raises(ConfigError, match=r"envs/shop/agent-env.toml: env.KEY.*JUDGE_KEY is not set"):
        resolve_variables({"KEY": "env:JUDGE_KEY"}, env_name="shop")


def test_an_empty_secret_hides_nothing() -> None:
    assert redact("abc", ["", "b"]) == "a***c"
