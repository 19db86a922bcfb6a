from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from agent_env.sandbox.ownership import owner, owner_state


def of_child(child: subprocess.Popen[bytes]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().decode().strip()


def child_that_waits(*prefix: str) -> subprocess.Popen[bytes]:
    code = "import sys; from agent_env.sandbox.ownership import owner; print(owner(), flush=True); sys.stdin.read()"
    return subprocess.Popen([*prefix, sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def end(child: subprocess.Popen[bytes]) -> None:
    child.communicate(timeout=30)


def changed(owner_id: str, field: int, value: str) -> str:
    parts = owner_id.split(".")
    parts[field] = value
    return ".".join(parts)


def test_this_process_is_its_own_owner() -> None:
    assert owner() == owner()
    assert owner_state(owner()) == "own"


def test_a_process_that_lives_is_live_and_dead_once_it_ended() -> None:
    child = child_that_waits()
    theirs = of_child(child)
    assert owner_state(theirs) == "live"
    end(child)
    assert owner_state(theirs) == "dead"


def test_a_process_that_ended_but_was_not_reaped_is_dead() -> None:
    child = child_that_waits()
    theirs = of_child(child)
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.close()
    child.stdout.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert owner_state(theirs) == "dead"
    child.wait()


def test_a_pid_given_to_another_process_is_not_the_owner() -> None:
    assert owner_state(changed(owner(), 4, "1")) == "dead"


def test_an_owner_of_a_former_boot_of_this_machine_is_dead() -> None:
    assert owner_state(changed(owner(), 1, "0" * 32)) == "dead"


def test_an_owner_on_another_machine_is_foreign() -> None:
    assert owner_state(changed(changed(owner(), 0, "f" * 16), 1, "0" * 32)) == "foreign"


@pytest.mark.parametrize("text", ["", "nonsense", "a.b.c.d.e", "1.2.3"])
def test_what_is_not_an_owner_is_foreign(text: str) -> None:
    assert owner_state(text) == "foreign"


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="making a pid namespace needs root")
def test_an_owner_in_a_pid_namespace_of_its_own_is_seen_from_outside() -> None:
    child = child_that_waits("unshare", "--pid", "--fork", "--mount-proc")
    theirs = of_child(child)
    assert theirs.split(".")[3] == "1"
    assert owner_state(theirs) == "live"
    end(child)
    assert owner_state(theirs) == "dead"


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="making a pid namespace needs root")
def test_from_inside_a_pid_namespace_the_owners_outside_are_foreign() -> None:
    code = "import sys; from agent_env.sandbox.ownership import owner_state; print(owner_state(sys.argv[1]))"
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", code, owner()]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "foreign"
