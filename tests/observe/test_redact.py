from __future__ import annotations

import json

import orjson
import pytest

from agent_env.cuts import cut
from agent_env.observe.line import line_of
from agent_env.observe.record import Call, Fate, Of, Record
from agent_env.observe.redact import Redactor, environment_secrets, secret_key, without_secrets


@pytest.mark.parametrize(
    "key",
    [
        "password",
        "db_password",
        "PASSWORD_CONFIRM",
        "apiKey",
        "api_key",
        "x-api-key",
        "token",
        "authToken",
        "secret",
        "client_secret",
        "pwd",
        "clientSecretValue",
        "Authorization",
        "aws_secret_access_key",
        "privateKey",
        "cookie",
    ],
)
def test_a_key_that_names_a_secret(key: str) -> None:
    assert secret_key(key)


@pytest.mark.parametrize(
    "key",
    ["max_tokens", "token_count", "key", "monkey", "author", "keys", "passage", "secretary", "pass", "cookies_on"],
)
def test_a_key_that_names_none(key: str) -> None:
    assert not secret_key(key)


def test_secrets_are_taken_from_arguments_at_any_depth() -> None:
    given = {"user": "ann", "auth": {"password": "hunter2", "tries": [{"token": "abc"}, 3]}, "api_key": None}
    shown = {"user": "ann", "auth": "[redacted]", "api_key": None}
    assert without_secrets(given) == shown
    assert without_secrets([{"n": {"pwd": ["x"]}}]) == [{"n": {"pwd": "[redacted]"}}]


def test_arguments_without_anything_suspect_stay_as_they_were_written() -> None:
    text = '{"mw": 1.50,  "big": 123456789012345678901234567890, "a": 1, "a": 2}'
    assert orjson.dumps(Redactor().arguments(text)).decode() == text


def test_a_key_written_with_escapes_or_over_lines_is_seen_all_the_same() -> None:
    shown = orjson.dumps(Redactor().arguments('{\n "p\\u0061ssword": "hunter2"\n}'))
    assert shown == b'{"password":"[redacted]"}'


def test_values_that_are_secret_are_taken_from_every_text_in_every_form() -> None:
    redactor = Redactor(['to"ken\\1', "abc"])
    inner = orjson.dumps({"text": 'to"ken\\1'}).decode()
    line = redactor.line(orjson.dumps({"output": inner, "final": 'it is to"ken\\1', "abc": "abc"}))
    assert orjson.loads(line) == {"output": '{"text":"[redacted]"}', "final": "it is [redacted]", "abc": "abc"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("curl -H 'Authorization: Bearer abcdef123456'", "curl -H 'Authorization: Bearer [redacted]'"),
        ("authorization: Basic dXNlcjpwYXNz and more", "authorization: Basic [redacted] and more"),
        ('{"Authorization": "abcdef123456"}', '{"Authorization": "[redacted]"}'),
        ("HTTP_AUTHORIZATION=Basic dXNlcjpwYXNz", "HTTP_AUTHORIZATION=Basic [redacted]"),
        ("bearer of bad news", "bearer of bad news"),
    ],
)
def test_what_follows_authorization_is_taken_out(text: str, shown: str) -> None:
    assert orjson.loads(Redactor().line(orjson.dumps({"output": text})))["output"] == shown


def test_secrets_of_the_environment_are_those_whose_name_says_so() -> None:
    environ = {
        "SHOP_API_KEY": "k-12345678",
        "HOME": "/home/somebody",
        "DB_PASSWORD": "short",
        "HF_TOKEN": "hf_abcdefgh",
        "MAIL_PASS": "passpass",
        "DB_PWD": "pwdpwdpwd",
        "PWD": "/home/somebody/run",
        "OLDPWD": "/home/somebody",
        "TOKEN_FILE": "/run/secrets/token",
        "PASSWORD_FILE": "/run/secrets/password",
        "DATABASE_URL": "postgres://me:p4ssw0rd!@db:5432/x",
        "HTTP_PROXY": "http://proxy:3128",
    }
    assert environment_secrets(environ) == ["k-12345678", "hf_abcdefgh", "passpass", "pwdpwdpwd", "p4ssw0rd!"]


@pytest.mark.parametrize("depth", [200, 600, 1000])
def test_arguments_that_are_nested_deeply_cost_no_line(depth: int) -> None:
    call = Call(1, "look", '{"key":' + "[" * depth + "]" * depth + "}", "out", 0.0, 0.1)
    line = json.loads(line_of(Record(Of.SESSION, 1, Fate.VERIFIED, 0.0, calls=[call]), "run", Redactor()))
    assert line["calls"][0]["name"] == "look"


@pytest.mark.parametrize("kept", range(1, 14))
def test_a_secret_that_a_cut_went_through_shows_none_of_its_beginning(kept: int) -> None:
    secret = "abababcdcdcdxy"
    output = cut("x" * (400 - kept) + secret + "y" * 100, 400)
    call = Call(1, "look", "{}", output, 0.0, 0.1)
    record = Record(Of.SESSION, 1, Fate.MASKED, 0.0, calls=[call, call], reason=output.replace("\n", " "), final=output)
    line = line_of(record, "run", Redactor([secret])).decode()
    assert secret[:4] not in line
    assert json.loads(line)["calls"][0]["output"].endswith(" bytes are shown]")


def test_a_secret_with_quotes_is_taken_out_of_plain_text_too() -> None:
    redactor = Redactor(['pa"ss\\word'])
    assert redactor.text('it said pa"ss\\word, \ud800') == "it said [redacted], ?"
    assert redactor.line(orjson.dumps('it said pa"ss\\word')) == b'"it said [redacted]"'


def test_a_variable_that_is_no_unicode_stops_no_server() -> None:
    broken = b"\xff\xfeabcdefgh".decode("utf-8", "surrogateescape")
    redactor = Redactor(environment_secrets({"MY_TOKEN": broken}))
    assert redactor.text(f"it said {broken}") == "it said [redacted]"
