"""Runs NeMo Gym's own session check against servers: gym_conformance.py URL... < SEED. For the client's venv.

The check asks for an app to call in process. This one hands each request on to the URL.
"""

import json
import sys
import urllib.error
import urllib.request
from typing import Any

import anyio.to_thread
from nemo_gym.base_resources_server import ResourcesSeedSessionRequest
from nemo_gym.testing.session_conformance import check_resources_session_contract


class Elsewhere:
    def __init__(self, url: str) -> None:
        self.url = url

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = {key.decode(): value.decode() for key, value in scope["headers"] if key != b"host"}
        request = urllib.request.Request(self.url + scope["path"], body, headers, method=scope["method"])
        status, told, content = await anyio.to_thread.run_sync(_send, request)
        await send({"type": "http.response.start", "status": status, "headers": told})
        await send({"type": "http.response.body", "body": content})


def _send(request: urllib.request.Request) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        answer = opener.open(request, timeout=60)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        headers = [(key.lower().encode(), value.encode()) for key, value in answer.headers.items()]
        return answer.status, headers, answer.read()


if __name__ == "__main__":
    seed = ResourcesSeedSessionRequest.model_validate(json.load(sys.stdin))
    for url in sys.argv[1:]:
        check_resources_session_contract(Elsewhere(url), seed, keeps_state=True)  # type: ignore[arg-type]
