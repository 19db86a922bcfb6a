"""What our Docker sandboxes cost over a bare `docker run`, and what each way of reaching them costs.

    python -m benchmarks.docker_start --base-image python:3.12-slim

Interleaved pairs on the same image: `docker run -d -p ...` until the card answers, against `start` until ready. The
ratio's interval is a bootstrap of the pairs' medians. Then start, ready and removal for each way.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import statistics
import tempfile
import time
from pathlib import Path

from agent_env.env.card import wait_ready
from agent_env.sandbox.base import Prepared, SandboxSpec
from agent_env.sandbox.conformance import conformance_env
from agent_env.sandbox.docker import DockerProvider
from agent_env.sandbox.docker_net import Way
from benchmarks.stats import ratio_interval


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-image", default="python:3.12-slim")
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--each", type=int, default=15, help="sandboxes per way of reaching them")
    arguments = parser.parse_args()
    env = conformance_env(Path(tempfile.mkdtemp()) / "bundle" / "envs")
    build_args = {"BASE_IMAGE": arguments.base_image}

    provider = DockerProvider(build_args=build_args)
    prepared = await provider.prepare(env)
    await ours(provider, prepared)
    await bare(prepared.handle)
    pairs = []
    for number in range(arguments.pairs):
        if number % 2:
            cost = (await ours(provider, prepared))[1]
            pairs.append((cost, await bare(prepared.handle)))
        else:
            other = await bare(prepared.handle)
            pairs.append(((await ours(provider, prepared))[1], other))
    await provider.aclose()
    mine, theirs = [a for a, _ in pairs], [b for _, b in pairs]
    low, high = ratio_interval(mine, theirs)
    print(f"start to ready, {len(pairs)} interleaved pairs, {provider.networks.way}:")
    print(f"  ours        {statistics.median(mine) * 1000:6.0f} ms (median)")
    print(f"  docker run  {statistics.median(theirs) * 1000:6.0f} ms (median)")
    ratio = statistics.median(mine) / statistics.median(theirs)
    print(f"  ratio       {ratio:6.2f} (95 %: {low:.2f} to {high:.2f}); the limit is 1.1")

    ways: tuple[Way, ...] = ("netns", "bridge", "port")
    providers = {way: DockerProvider(build_args=build_args, reach=way) for way in ways}
    taken: dict[Way, list[tuple[float, float, float]]] = {way: [] for way in ways}
    for way in ways:
        await ours(providers[way], prepared)
    for _ in range(arguments.each):
        for way in ways:
            taken[way].append(await ours(providers[way], prepared))
    print(f"each way, {arguments.each} sandboxes, medians in ms:   start  ready  removal")
    for way, times in taken.items():
        columns = [statistics.median(column) * 1000 for column in zip(*times, strict=True)]
        print(f"  {way:44} {columns[0]:5.0f}  {columns[1]:5.0f}  {columns[2]:7.0f}")
        await providers[way].aclose()


async def ours(provider: DockerProvider, prepared: Prepared) -> tuple[float, float, float]:
    """Seconds to the return of `start`, to ready, and of the removal."""
    began = time.perf_counter()
    sandbox = await provider.start(SandboxSpec(prepared=prepared, episode="benchmark"))
    started = time.perf_counter() - began
    await wait_ready(sandbox, timeout=60, expected_name=prepared.env.environment_name)
    ready = time.perf_counter() - began
    began = time.perf_counter()
    await sandbox.stop(grace=0)
    return started, ready, time.perf_counter() - began


async def bare(image: str) -> float:
    """Seconds of `docker run -d -p` until the card answers."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    variables = ["-e", "MCP_HOST=0.0.0.0", "-e", "MCP_PORT=18765", "-e", "ENVIRONMENT_NAME=conformance"]
    began = time.perf_counter()
    container = await docker("run", "-d", "-p", f"127.0.0.1:{port}:18765", *variables, image)
    await answered(port)
    taken = time.perf_counter() - began
    await docker("rm", "-f", container)
    return taken


async def answered(port: int) -> None:
    while True:
        if await answers(port):
            return
        await asyncio.sleep(0.005)


async def answers(port: int) -> bool:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    try:
        writer.write(b"GET /.well-known/agent-env.json HTTP/1.0\r\n\r\n")
        return b"200" in await reader.readline()
    except OSError:
        return False
    finally:
        writer.close()


async def docker(*arguments: str) -> str:
    process = await asyncio.create_subprocess_exec("docker", *arguments, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    if process.returncode != 0:
        raise SystemExit(f"docker {' '.join(arguments)} failed")
    return output.decode().strip()


if __name__ == "__main__":
    asyncio.run(main())
