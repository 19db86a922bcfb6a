"""The main job end to end: bundle -> OpenEnv server -> writer -> resources server -> client -> reward.

Everything it writes is under build/demo. Whatever ends it, its servers are stopped and their sandboxes removed.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import FrameType

POLICIES = ("idle", "greedy", "optimal", "broken")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sandbox", default="auto", choices=("auto", "docker", "process"))
    parser.add_argument("--rows", type=int, default=24, help="eval rows a policy")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("build/demo"))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    demo = Demo(options.out)
    try:
        return demo.run(options.sandbox, options.rows, options.concurrency)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except DemoError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        demo.stop()


class DemoError(Exception):
    """A step failed; the message says which and where its log is."""


class Demo:
    def __init__(self, out: Path) -> None:
        self.out = out
        self.started: list[subprocess.Popen[str]] = []

    def run(self, sandbox: str, rows: int, concurrency: int) -> int:
        shutil.rmtree(self.out, ignore_errors=True)
        self.out.mkdir(parents=True)
        bundle = self.out / "gridsim-v1"
        self._step("write the GridSim bundle", "agent_env", "example", "gridsim", str(bundle))
        openenv = self._server(
            "build what its env and grader need, and serve it as an OpenEnv server",
            "openenv",
            [
                *("agent_env", "serve", str(bundle), "--port", "0", "--sandbox", sandbox),
                *("--max-concurrent-envs", str(concurrency), *_docker_options()),
            ],
        )
        used = json.load(urllib.request.urlopen(f"{openenv}/health", timeout=30))["sandbox"]
        print(f"  sandbox: {used}" + (" (isolates nothing)" if used == "process" else ""), flush=True)
        gym = "agent_env.training.nemo_gym"
        self._step("write the resources server's folder", gym, openenv, str(self.out / "gym-root"))
        folder = self.out / "gym-root/resources_servers/gridsim_v1"
        serve = self._server("run it", "serve", [gym, "serve", str(folder), "--port", "0", "--masked-as-error"])
        print(f"play {rows} eval days with each of: {', '.join(POLICIES)}", flush=True)
        play = [
            *(gym, "play", serve, "--rows", str(folder / "data/eval.jsonl"), "--limit", str(rows)),
            *("--policy", ",".join(POLICIES), "--concurrency", str(concurrency), "--plot", str(self.out / "plots")),
            *("--out", str(self.out / "play.jsonl"), "--summary", str(self.out / "summary.json")),
            *("--note", f"sandbox={used}"),
        ]
        code = self._start(play).wait()
        self.stop()
        print(f"wrote {self.out}/summary.json, play.jsonl and plots/")
        return code

    def _step(self, what: str, *module: str) -> None:
        print(what, flush=True)
        begun = time.monotonic()
        code = self._start(list(module)).wait()
        if code:
            raise DemoError(f"{what}: exit code {code}")
        print(f"  {time.monotonic() - begun:.1f} s", flush=True)

    def _server(self, what: str, name: str, module: list[str]) -> str:
        """Start a server and wait for the line that gives its URL."""
        print(what, flush=True)
        begun = time.monotonic()
        log = self.out / f"{name}.log"
        with log.open("w") as stderr:
            process = self._start(module, stdout=subprocess.PIPE, stderr=stderr)
        assert process.stdout is not None
        for line in process.stdout:
            if " http://" in line:
                url = line.strip().rpartition(" ")[2]
                print(f"  {url} after {time.monotonic() - begun:.1f} s, log in {log}", flush=True)
                return url
        last = log.read_text().strip().splitlines()[-5:]
        raise DemoError("\n".join([f"{what}: exit code {process.wait()}; the end of {log}:", *last]))

    def _start(self, module: list[str], **pipes: object) -> subprocess.Popen[str]:
        process = subprocess.Popen([sys.executable, "-m", *module], text=True, preexec_fn=_die_with_parent, **pipes)  # type: ignore[call-overload]
        self.started.append(process)
        return process

    def stop(self) -> None:
        """End every process, the newest first, and wait for it."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for process in reversed(self.started):
            if process.poll() is None:
                process.terminate()
        for process in reversed(self.started):
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _docker_options() -> list[str]:
    options = []
    if base := os.environ.get("BASE_IMAGE"):
        options += ["--build-arg", f"BASE_IMAGE={base}"]
    if network := os.environ.get("BUILD_NETWORK"):
        options += ["--build-network", network]
    return options


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _die_with_parent() -> None:
    """SIGTERM to the child when this process dies, however it dies (Linux)."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
