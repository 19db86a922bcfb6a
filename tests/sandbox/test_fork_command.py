from __future__ import annotations

import pytest

from agent_env.sandbox.fork_command import take_apart

CASES = {
    "python server.py": ("python", "", "server.py"),
    "python3.12 server.py --port 1": ("python3.12", "", "server.py --port 1"),
    "/opt/venv/bin/python -u -m pkg.server x": ("/opt/venv/bin/python", "-u", "-m pkg.server x"),
    "python -Wignore -X dev -Iu server.py -u": ("python", "-Wignore -X dev -Iu", "server.py -u"),
    "python -uX utf8 -c pass": ("python", "-uX utf8", "-c pass"),
}


@pytest.mark.parametrize("command", CASES)
def test_interpreter_options_and_the_rest_are_told_apart(command: str) -> None:
    interpreter, options, words = CASES[command]
    launch = take_apart(command.split())
    assert launch.python
    assert (launch.interpreter, " ".join(launch.options), " ".join(launch.words)) == (interpreter, options, words)


@pytest.mark.parametrize("command", ["uvicorn server:app", "./start.sh", "python", "python -u"])
def test_a_command_without_a_program_for_the_interpreter_stays_whole(command: str) -> None:
    launch = take_apart(command.split())
    assert not launch.python
    assert launch.words == tuple(command.split())


def test_a_plain_shell_command_is_looked_into() -> None:
    assert take_apart(["/bin/sh", "-c", "exec python -m server --port 1"]).words == ("-m", "server", "--port", "1")
    assert take_apart(["/bin/sh", "-c", "uvicorn server:app"]).words == ("uvicorn", "server:app")


@pytest.mark.parametrize(
    "line", ["cd /app && python server.py", "python server.py > log", "A=1 python server.py", "$PY x"]
)
def test_what_needs_a_shell_keeps_it(line: str) -> None:
    launch = take_apart(["/bin/sh", "-c", line])
    assert not launch.python
    assert launch.words == ("/bin/sh", "-c", line)
