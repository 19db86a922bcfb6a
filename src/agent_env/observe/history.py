"""What happened in one session, noted while it plays: its times, and its calls when somebody wants them in full."""

from __future__ import annotations

import time
from collections.abc import Callable

from agent_env.cuts import cut
from agent_env.observe.record import Call, Observers, Phase

KEPT_OUTPUT = 4096
"""Bytes of a call's output that are kept."""
KEPT_ARGUMENTS = 64 * 1024
"""Bytes of a call's arguments. Longer ones are cut, and the session can't be replayed."""
KEPT_TEXT = 64 * 1024
"""Bytes of a prompt or a final text."""
KEPT_SESSION = 8 * 1024 * 1024
"""Characters of all calls of one session; calls past that are only counted."""
_CALL = 200


class History:
    """`clock` is the event loop's; every time is kept as seconds since the session began."""

    def __init__(self, observers: Observers, clock: Callable[[], float]) -> None:
        self.at = time.time()
        self.calls: list[Call] = []
        self.calls_made = 0
        self.prompt: str | None = None
        self.system_prompt: str | None = None
        self.final: str | None = None
        self._room = KEPT_SESSION
        self._observers = observers
        self._clock = clock
        self._began = clock()
        self._placed: float | None = None
        self._waited = 0.0
        self._ready: float | None = None
        self._failed: float | None = None
        self._first_call: float | None = None
        self._last_call = 0.0
        self._verifying: float | None = None
        self._decided: float | None = None

    def now(self) -> float:
        return self._clock() - self._began

    def placed(self, waited: float, prompt: str | None = None, system_prompt: str | None = None) -> None:
        self._placed, self._waited = self.now(), waited
        if self._observers.full:
            self.prompt, self.system_prompt = prompt, system_prompt

    def ready(self) -> None:
        self._ready = self.now()

    def failed(self) -> None:
        self._failed = self.now()

    def called(self, turn: int, tool: str, arguments: str, output: str, since: float, error: str | None) -> None:
        """A call was answered that began at `since`."""
        now = self.now()
        self.calls_made += 1
        self._first_call = since if self._first_call is None else self._first_call
        self._last_call = now
        observers = self._observers
        observers.called(tool, now - since, error)
        if observers.full and self._room > 0:
            arguments, output = cut(arguments, KEPT_ARGUMENTS), cut(output, KEPT_OUTPUT)
            self._room -= _CALL + len(arguments) + len(output)
            self.calls.append(Call(turn, tool, arguments, output, since, now - since, error))

    def verifying(self, final: str) -> None:
        self._verifying = self.now()
        if self._observers.full:
            self.final = cut(final, KEPT_TEXT)

    def decided(self) -> None:
        self._decided = self.now()

    def phases(self) -> list[Phase]:
        """Those that began. One that is still under way, or was cut short, ends with the session's failure or now."""
        end = self.now() if self._failed is None else self._failed
        phases = [Phase("wait", 0.0, end if self._placed is None else self._waited)]
        if self._placed is not None:
            ready = end if self._ready is None else self._ready
            phases.append(Phase("start", self._placed, max(ready - self._placed, 0.0)))
        if self._first_call is not None:
            phases.append(Phase("calls", self._first_call, self._last_call - self._first_call))
        if self._verifying is not None:
            decided = self.now() if self._decided is None else self._decided
            phases.append(Phase("verify", self._verifying, decided - self._verifying))
        return phases
