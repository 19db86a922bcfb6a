"""`AGENT_ENV_TEST_ISOLATION=fork`: the tests again, each env that can be forked as a fork; `make modes` runs them.

What is played through our own runtime, in this process or in a server that a test starts, gets the other isolation and
two spares of each env; a test that asks for one way itself keeps it.
"""

from __future__ import annotations

import os
from typing import Any

from agent_env.episode import Runtime
from agent_env.sandbox.docker import DockerProvider
from agent_env.sandbox.fork import Isolating
from agent_env.sandbox.process import ProcessProvider

FORKED = os.environ.get("AGENT_ENV_TEST_ISOLATION") == "fork"


def play_in(isolation: str) -> None:
    os.environ["AGENT_ENV_ISOLATION"] = isolation
    os.environ.setdefault("AGENT_ENV_WARM", "2")
    make_isolating, make_runtime = Isolating.__init__, Runtime.__init__

    def isolating(self: Isolating, provider: Any, isolated: str | None = None, **options: Any) -> None:
        make_isolating(self, provider, isolated or isolation, **options)

    def runtime(self: Runtime, provider: Any, **options: Any) -> None:
        if type(provider) not in (DockerProvider, ProcessProvider, Isolating):
            provider = Isolating(provider, "container")
        make_runtime(self, provider, **options)

    Isolating.__init__ = isolating  # type: ignore[method-assign]
    Runtime.__init__ = runtime  # type: ignore[method-assign]
