"""Tokens at the door of a server: who is let in, and what the others are told."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets
from stubs.quick_server import quick
from websockets.asyncio.client import connect

from agent_env.cli import main
from agent_env.errors import ConfigError
from agent_env.observe.redact import LEAST as LEAST_REDACTED
from agent_env.openenv import build_app
from agent_env.tokens import LEAST, TokenNeeded, allowed, check_token, read_token, refuse_strangers

TOKEN = "t0ken-of-the-test"


async def inner(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        while (kind := (await receive())["type"]) != "lifespan.shutdown":
            await send({"type": f"{kind}.complete"})
        await send({"type": f"{kind}.complete"})
    elif scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.close", "code": 1000})
    else:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})


@pytest.mark.parametrize(
    ("value", "enters"),
    [
        (f"Bearer {TOKEN}", True),
        (f"bearer {TOKEN}", True),
        (f"Bearer  {TOKEN}", True),
        (f"Bearer {TOKEN}x", False),
        (f"Bearer {TOKEN[:-1]}", False),
        (f"Bearer {TOKEN.upper()}", False),
        (f"Basic {TOKEN}", False),
        (TOKEN, False),
        ("Bearer", False),
        ("", False),
        ("Bearer t\xf6ken", False),
    ],
)
def test_only_the_whole_token_under_its_scheme_is_let_in(value: str, enters: bool) -> None:
    assert allowed([(b"host", b"x"), (b"authorization", value.encode("latin-1"))], TOKEN) is enters


@pytest.mark.parametrize(("login", "enters"), [(f"me:{TOKEN}", True), (f":{TOKEN}", True), (f"{TOKEN}:", False)])
def test_a_browser_logs_in_to_a_page_with_the_token_as_password_and_to_nothing_else(login: str, enters: bool) -> None:
    headers = [(b"authorization", b"Basic " + base64.b64encode(login.encode()))]
    assert allowed(headers, TOKEN, page=True) is enters
    assert not allowed(headers, TOKEN)
    assert not allowed([(b"authorization", b"Basic ?")], TOKEN, page=True)


def test_without_a_header_nobody_is_let_in_and_without_a_token_everybody_is() -> None:
    assert not allowed([(b"host", b"x")], TOKEN)
    assert allowed([], None)


@pytest.mark.anyio
@pytest.mark.parametrize("header", [None, "Bearer wrong"])
async def test_all_but_the_free_paths_are_401_with_a_challenge(header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header}
    async with quick(TokenNeeded(inner, TOKEN, ("/health",))) as url:
        async with httpx.AsyncClient(base_url=url, trust_env=False, headers=headers) as http:
            assert (await http.get("/health")).status_code == 204
            for method, path in [("GET", "/"), ("POST", "/tool"), ("GET", "/health/"), ("GET", "/healthy")]:
                answer = await http.request(method, path)
                assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), path
                assert answer.json() == {"detail": "a bearer token is needed (--token-file)"}
            assert (await http.get("/", headers={"Authorization": f"Bearer {TOKEN}"})).status_code == 204


@pytest.mark.anyio
async def test_a_websocket_without_the_token_is_refused_at_the_handshake() -> None:
    async with quick(TokenNeeded(inner, TOKEN, ("/health",))) as url:
        for path in ("/ws", "/health"):
            with pytest.raises(websockets.InvalidStatus) as refused:
                await connect(f"ws{url[4:]}{path}", proxy=None)
            assert refused.value.response.status_code == 401
            assert refused.value.response.headers["www-authenticate"] == "Bearer"
        sent = {"Authorization": f"Bearer {TOKEN}"}
        async with connect(f"ws{url[4:]}/ws", proxy=None, additional_headers=sent) as socket:
            await socket.wait_closed()
        assert socket.close_code == 1000


@pytest.mark.anyio
async def test_a_server_that_can_only_close_a_websocket_closes_it_before_it_is_open() -> None:
    said: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        said.append(message)

    await TokenNeeded(inner, TOKEN, ())({"type": "websocket", "path": "/ws", "headers": []}, receive, send)
    assert [message["type"] for message in said] == ["websocket.close"]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_no_token(host: str) -> None:
    refuse_strangers(host, None)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "box.example", ""])
def test_other_addresses_need_one(host: str) -> None:
    with pytest.raises(ConfigError, match="--token-file"):
        refuse_strangers(host, None)
    refuse_strangers(host, TOKEN)


@pytest.mark.parametrize("text", ["", "\n", "two words", "tö", "two\nlines"])
def test_what_is_no_token_is_refused_by_its_file_and_never_shown(tmp_path: Path, text: str) -> None:
    (tmp_path / "token").write_text(text)
    with pytest.raises(ConfigError) as error:
        read_token(str(tmp_path / "token"))
    file = f"{tmp_path}/token"
    empty = f"{file}: no token stands in it; make one with: openssl rand -hex 32 > {file}"
    assert str(error.value) == (
        f"{file} (--token-file): a token is one line of visible ASCII characters" if text.strip() else empty
    )
    with pytest.raises(ConfigError, match=r"^token: "):
        check_token(text.strip() or " ")


@pytest.mark.parametrize("text", ["a", "abc", "abcd", "1234567"])
def test_a_token_that_logs_could_not_keep_out_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "token").write_text(f"{text}\n")
    said = "a token has at least 8 characters; make one with: openssl rand -hex 32"
    with pytest.raises(ConfigError) as error:
        read_token(str(tmp_path / "token"), "--openenv-token-file")
    assert str(error.value) == f"{tmp_path}/token (--openenv-token-file): {said}"
    with pytest.raises(ConfigError) as error:
        build_app(tmp_path, token=text)
    assert str(error.value) == f"token: {said}"
    assert read_token(str(_written(tmp_path / "other", "12345678"))) == "12345678"
    assert LEAST >= LEAST_REDACTED


def _written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize("text", [f"{TOKEN}\n", f"{TOKEN}\r\n", f"\ufeff{TOKEN}\n"])
def test_a_tokens_last_line_break_and_byte_order_mark_are_no_part_of_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "token").write_text(text, newline="")
    assert read_token(str(tmp_path / "token")) == TOKEN
    assert read_token(None) is None


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--host", "0.0.0.0"], "--token-file"),
        (["--host", "::", "--token-file", "/no/such/file"], "/no/such/file: can't read the token"),
    ],
)
def test_the_openenv_server_refuses_strangers_with_one_line_and_exit_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, flags: list[str], said: str
) -> None:
    monkeypatch.setattr("sys.argv", ["agent-env", "serve", "bundles/none", *flags])
    with pytest.raises(SystemExit) as exit:
        main()
    assert exit.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
