from __future__ import annotations

import docker
import pytest

from agent_env.sandbox.docker_state import read_state

pytestmark = pytest.mark.docker


def test_a_container_that_was_never_started_has_ended_without_a_code(
    api: docker.APIClient, base_image: str, mark: str
) -> None:
    """Its start time is the year 1, which no event can lie a second before."""
    made = api.create_container(base_image, ["true"], labels={"agent-env.test": mark})
    try:
        state = read_state(api, made["Id"])
        assert (state.running, state.exit_code, state.lost) == (False, None, True)
        assert not read_state(api, made["Id"], stopped_by_us=True).lost
    finally:
        api.remove_container(made["Id"], v=True, force=True)
