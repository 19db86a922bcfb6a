"""`build_app`: a bundle as an OpenEnv server."""

from __future__ import annotations

import asyncio
import functools
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse

from agent_env.episode import Deadlines, Runtime
from agent_env.errors import ConfigError
from agent_env.observe import page
from agent_env.observe.log import EpisodeLog
from agent_env.observe.record import Observers
from agent_env.openenv import seen
from agent_env.openenv.catalog import Catalog, Reward
from agent_env.openenv.hub import Hub
from agent_env.openenv.seen import Seen
from agent_env.openenv.socket import ReadAhead
from agent_env.sandbox import Isolating, choose_provider
from agent_env.sandbox.base import Prepared, SandboxProvider
from agent_env.sandbox.capacity import Capacity
from agent_env.sandbox.demand import Warm
from agent_env.sandbox.preflight import announce
from agent_env.sandbox.variables import secrets_of
from agent_env.tokens import TokenNeeded, check_token

if TYPE_CHECKING:
    from fastapi import FastAPI

T = TypeVar("T")

FREE = ("/health",)
"""what is answered without the token"""


def build_app(
    bundle: str | Path | Mapping[str, str | Path],
    *,
    reward: Reward = None,
    sandbox: str | SandboxProvider | None = None,
    max_concurrent_envs: int = 8,
    max_starting: int | None = None,
    queue: int = 1024,
    deploy_timeout: float = Deadlines.deploy,
    load_timeout: float = Deadlines.load,
    tool_timeout: float = Deadlines.tool,
    verify_timeout: float = Deadlines.verify,
    teardown_timeout: float = Deadlines.teardown,
    turn_timeout: float | None = None,
    isolation: str | None = None,
    warm: int | str = "auto",
    sandbox_options: Mapping[str, Any] | None = None,
    episode_log: str | Path | None = None,
    token: str | None = None,
) -> FastAPI:
    """Serve every task of a bundle as an OpenEnv environment.

    `bundle` is a folder (split `all` plus one per eval), or a mapping of split to folder. `reward` picks the reward of
    tasks with several scores: a step id, or a function of the scores by step id. `sandbox` is `docker`, `process`,
    `auto` (the default: Docker where its daemon answers) or a provider. `isolation` is `container` or `fork` for every
    env, else each one's agent-env.toml says; `warm` is how many spares to keep of each env. With a `token`, every route
    but `/health` asks for it (`Authorization: Bearer ...`). `episode_log` is a file that keeps every episode as a line
    of JSON. Times are seconds.

    Reads the bundle and builds what its envs and graders need before it returns; episodes start when the app runs.

    Raises:
        BundleError: the bundle is wrong, or none of its tasks can be played.
        ConfigError: the sandbox is not known, a task needs a judge and none is set, `token` can't be one,
            `episode_log` can't be written, or the openenv library is absent or installed twice.
        EpisodeFailure: the sandbox provider is away, or an env can't be built.
        ValueError: `reward` does not fit the tasks.
    """
    if max_concurrent_envs < 1 or queue < 0 or (max_starting is not None and max_starting < 1):
        raise ConfigError("max_concurrent_envs and max_starting must be at least 1, queue at least 0")
    if token is not None:
        check_token(token)
    spares = Warm.parse(warm, max_concurrent_envs)
    catalog = Catalog.load(bundle, reward)
    options = {**(sandbox_options or {}), "isolation": isolation}
    provider_name, prepared = _blocking(functools.partial(_prepare, catalog, sandbox, options, max_concurrent_envs))
    deadlines = Deadlines(
        deploy=deploy_timeout,
        load=load_timeout,
        tool=tool_timeout,
        verify=verify_timeout,
        teardown=teardown_timeout,
        turn=turn_timeout,
    )

    async def runtime() -> Runtime:
        made = Runtime(
            await _provider(sandbox if isinstance(sandbox, SandboxProvider) else provider_name, options),
            capacity=Capacity(max_concurrent_envs, max_starting, queue),
            deadlines=deadlines,
            prepared=prepared,
            warm=spares,
        )
        await made.graders.prepare(catalog.envs)
        return made

    watcher = seen.watcher(token)
    kept = None if episode_log is None else _episode_log(Path(episode_log), catalog, token)
    hub = Hub(catalog, runtime, turn_timeout, Observers(watcher) if kept is None else Observers(watcher, kept))
    app = _app(hub, Seen(hub, watcher), sessions=max_concurrent_envs + queue)
    if kept is not None:
        app.router.on_shutdown.append(functools.partial(_end, kept, hub))
    if token is not None:
        app.add_middleware(TokenNeeded, token=token, free=FREE, pages=page.PATHS)
    return app


def _episode_log(path: Path, catalog: Catalog, token: str | None) -> EpisodeLog:
    secrets = [*([token] if token else []), *secrets_of(env.settings.env for env in catalog.envs)]
    return EpisodeLog(path, secrets=secrets, facts={"server": catalog.name, "bundle": catalog.digest})


async def _end(kept: EpisodeLog, hub: Hub) -> None:
    await asyncio.to_thread(kept.close, hub.summary())


async def _prepare(
    catalog: Catalog, sandbox: str | SandboxProvider | None, options: dict[str, Any], places: int
) -> tuple[str, dict[str, Prepared]]:
    provider = await _provider(sandbox, options)
    runtime = Runtime(provider, close_provider=not isinstance(sandbox, SandboxProvider))
    try:
        await announce(provider, catalog.envs, places=places)
        await runtime.prepare_tasks(catalog.plans)
    finally:
        await runtime.aclose()
    return provider.name, runtime.prepared


async def _provider(sandbox: str | SandboxProvider | None, options: Mapping[str, Any]) -> SandboxProvider:
    if isinstance(sandbox, SandboxProvider):
        return sandbox if isinstance(sandbox, Isolating) else Isolating(sandbox, options["isolation"])
    return await choose_provider(sandbox or "auto", **options)


def _app(hub: Hub, shown: Seen, sessions: int) -> FastAPI:
    library = _openenv()
    from openenv.core.env_server.mcp_types import CallToolAction

    from agent_env.openenv.environment import AgentEnvEnvironment
    from agent_env.openenv.models import EpisodeState, ResetObservation, StepObservation

    app: FastAPI = library.create_fastapi_app(
        functools.partial(AgentEnvEnvironment, hub),
        CallToolAction,
        StepObservation,
        max_concurrent_envs=sessions,
        env_name=hub.catalog.name,
        state_cls=EpisodeState,
        mode="production",
        reset_observation_cls=ResetObservation,
    )
    app.title = hub.catalog.name
    app.state.hub = hub
    app.router.routes[:] = [route for route in app.router.routes if getattr(route, "path", None) != "/health"]
    app.add_middleware(ReadAhead)
    app.router.on_startup += [hub.open, shown.begin]
    app.router.on_shutdown += [shown.stop, hub.aclose]

    async def health(request: Request) -> JSONResponse:
        answer = await hub.health()
        return JSONResponse(answer, status_code=200 if answer["status"] == "healthy" else 503)

    async def capacity(request: Request) -> JSONResponse:
        deadlines = {"tool_s": hub.runtime.deadlines.tool, "verify_s": hub.runtime.deadlines.verify}
        return JSONResponse({**hub.capacity(), "deadlines": deadlines})

    app.add_route("/health", health)
    app.add_route("/capacity", capacity)
    app.add_route("/metrics", shown.metrics)
    app.add_route("/status", shown.status)
    return app


def _openenv() -> Any:
    """The openenv library's server side, without its web page (gradio costs ten seconds of imports)."""
    for name in ("openenv-core", "agentenv-framework"):
        if _installed(name):
            raise ConfigError(f"{name} is installed beside agent-env and shares an import name: uninstall {name}")
    hide = "gradio" not in sys.modules
    if hide:
        sys.modules["gradio"] = None  # type: ignore[assignment]
    try:
        from openenv.core.env_server import http_server
    except ImportError as error:
        raise ConfigError(f"the openenv library is missing ({error}): pip install 'agent-env[openenv]'") from error
    finally:
        if hide:
            del sys.modules["gradio"]
    return http_server


def _installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _blocking(function: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine to its end on a loop of its own, also where the caller's thread already runs one."""
    outcome: list[T] = []
    errors: list[BaseException] = []
    cancel: list[Callable[[], object]] = []

    async def run() -> None:
        task = asyncio.current_task()
        assert task is not None
        cancel.append(functools.partial(asyncio.get_running_loop().call_soon_threadsafe, task.cancel))
        outcome.append(await function())

    def target() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=target, name="build_app")
    thread.start()
    try:
        thread.join()
    except BaseException:
        for stop in cancel:
            stop()
        thread.join()
        raise
    if errors:
        raise errors[0]
    return outcome[0]
