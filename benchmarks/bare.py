"""The floor: a container of the same image by the docker command alone, until the same card answers."""

from __future__ import annotations

import http.client
import time
import uuid
from dataclasses import dataclass

from agent_env.env.card import CARD_PATH
from agent_env.sandbox.docker_config import PORT
from benchmarks.context import free_port
from benchmarks.processes import Failed, run

_PAUSE = 0.005


@dataclass(frozen=True, slots=True)
class Bare:
    image: str

    def start(self) -> str:
        """The name of a container whose card answered."""
        name = f"agent-env-bare-{uuid.uuid4().hex[:8]}"
        port = self._run(name)
        until = time.monotonic() + 60
        while not _card(port):
            if time.monotonic() > until:
                self.remove(name)
                raise Failed(f"a bare container of {self.image} gave no card in 60 s: does the bridge docker0 work?")
            time.sleep(_PAUSE)
        return name

    def _run(self, name: str, tries: int = 3) -> int:
        """Its port on this machine. A port that was free may be taken when Docker comes to it: then another one."""
        port = free_port()
        try:
            run("docker", "run", "--detach", "--name", name, "--publish", f"127.0.0.1:{port}:{PORT}", self.image)
        except Failed as failure:
            self.remove(name)
            if tries == 1 or "port is already allocated" not in str(failure):
                raise
            return self._run(name, tries - 1)
        return port

    def remove(self, name: str) -> None:
        run("docker", "rm", "--force", name)

    def episode(self) -> None:
        self.remove(self.start())


def _card(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", CARD_PATH)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
