from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from agent_env.errors import EpisodeFailure, FailureKind
from agent_env.sandbox.ports import BLOCK, BLOCKS, FIRST_PORT, Listener, Ports

LISTEN = """
import socket, sys, time
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
s = socket.create_server((sys.argv[1], int(sys.argv[2])), family=family)
print("up", flush=True)
time.sleep(60)
"""


@pytest.fixture
def ports() -> Iterator[Ports]:
    made = Ports()
    yield made
    made.close()


def test_the_range_lies_below_the_kernels_own() -> None:
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        assert int(file.read().split()[0]) >= FIRST_PORT + BLOCK * BLOCKS


def test_two_servers_never_get_the_same_port(ports: Ports) -> None:
    other = Ports()
    taken = [ports.take() for _ in range(BLOCK * 2)] + [other.take() for _ in range(BLOCK * 2)]
    assert len(set(taken)) == len(taken)
    other.close()


def test_a_port_that_comes_back_is_the_last_to_go_out_again(ports: Ports) -> None:
    first = ports.take()
    ports.give_back(first)
    assert first not in {ports.take() for _ in range(BLOCK - 1)}
    assert ports.take() == first


def test_a_port_that_somebody_uses_is_passed_over(ports: Ports) -> None:
    expected = ports.take() + 1
    with socket.create_server(("127.0.0.1", expected)):
        assert ports.take() != expected


def listening(address: str, port: int) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", LISTEN, address, str(port)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::"])
def test_a_listener_is_ours_when_a_descendant_holds_it(ports: Ports, address: str) -> None:
    listener = Listener(ports.take(), os.getpid())
    assert listener.is_ours() is False
    with listening(address, listener.port) as process:
        assert not listener.is_proven()
        assert listener.is_ours()
        assert listener.is_proven()
        process.kill()
        process.wait()
        assert not listener.is_proven()
        assert listener.is_ours() is False


def test_a_stranger_on_the_port_is_never_taken_for_ours(ports: Ports) -> None:
    port = ports.take()
    with socket.create_server(("127.0.0.1", port)), listening("127.0.0.1", ports.take()) as unrelated:
        with pytest.raises(EpisodeFailure, match=f"port {port}.*not the env's") as raised:
            Listener(port, unrelated.pid).is_ours()
        unrelated.kill()
    assert raised.value.kind is FailureKind.DEPLOY_FAILED


def test_a_listener_that_127_0_0_1_does_not_reach_does_not_count(ports: Ports) -> None:
    listener = Listener(ports.take(), os.getpid())
    with listening("127.0.0.2", listener.port) as process:
        assert listener.is_ours() is False
        process.kill()


def test_other_ports_of_ours_are_known_for_the_message(ports: Ports) -> None:
    listener, used = Listener(ports.take(), os.getpid()), ports.take()
    with listening("127.0.0.1", used) as process:
        assert used in listener.other_ports()
        process.kill()
