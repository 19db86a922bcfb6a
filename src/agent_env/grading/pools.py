"""One pool of graders for each set of packages that graders need."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable

from agent_env.bundle import Env
from agent_env.errors import ConfigError, EpisodeFailure
from agent_env.grading.pool import DEFAULT_REQUIREMENTS, GraderPool
from agent_env.sandbox.venvs import requirements_of

log = logging.getLogger(__name__)

_NAME = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")


class GraderPools:
    """The default pool, and one for each other set that an env's `requirements` ask for."""

    def __init__(self, default: GraderPool | None = None) -> None:
        self.default = default or GraderPool()
        self._others: dict[frozenset[str], GraderPool] = {}

    def of(self, env: Env) -> GraderPool:
        """The pool whose graders can import what the env's `requirements` name."""
        return self._others.get(frozenset(grader_requirements(env)), self.default)

    async def prepare(self, envs: Iterable[Env]) -> None:
        """Build what graders of these envs need. A set that can't be built is left out with a warning: most graders
        need nothing of it, and one that does says what it lacks.

        Raises:
            ConfigError: a requirements file is wrong, or no grader can run.
            EpisodeFailure: the default set can't be built.
        """
        await self.default.prepare()
        for env in envs:
            wanted = grader_requirements(env)
            if frozenset(wanted) in (*self._others, frozenset(DEFAULT_REQUIREMENTS)):
                continue
            pool = GraderPool(wanted)
            try:
                await pool.prepare()
            except (ConfigError, EpisodeFailure) as error:
                await pool.aclose()
                log.warning("graders of env %s have the default packages only: %s", env.name, error)
            else:
                self._others[frozenset(wanted)] = pool

    async def aclose(self) -> None:
        for pool in (self.default, *self._others.values()):
            await pool.aclose()


def grader_requirements(env: Env) -> tuple[str, ...]:
    """The default set; where the env's `requirements` name a package as well, in their version.

    Raises:
        ConfigError: the file can't be read, or has a line that names no package.
    """
    if env.settings.requirements is None:
        return DEFAULT_REQUIREMENTS
    named = requirements_of(env.path / env.settings.requirements)
    names = set(map(_name, named))
    return (*named, *(line for line in DEFAULT_REQUIREMENTS if _name(line) not in names))


def _name(requirement: str) -> str:
    found = _NAME.match(requirement)
    return re.sub(r"[._-]+", "-", found[1]).lower() if found else requirement
