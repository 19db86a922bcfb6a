"""What happened in one session, noted while it plays: its times, and its calls when somebody wants them in full."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import orjson

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
    """`clock` is monotonic; every time is kept as seconds since the session began."""

    # Defaults of the class, since one of these is made for every session, and most of it is set later if ever.
    calls_made = 0
    prompt: str | None = None
    system_prompt: str | None = None
    final: str | None = None
    reward: float | None = None
    _room = KEPT_SESSION
    _placed: float | None = None
    _waited = 0.0
    _ready: float | None = None
    _failed: float | None = None
    _first_call: float | None = None
    _last_call = 0.0
    _verifying: float | None = None
    _decided: float | None = None

    def __init__(self, observers: Observers, clock: Callable[[], float]) -> None:
        self.at = time.time()
        self.calls: list[Call] = []
        self._observers = observers
        self._clock = clock
        self._began = clock()

    def now(self) -> float:
        return self._clock() - self._began

    def placed(self, waited: float, prompt: str | None = None, system_prompt: str | None = None) -> None:
        self._placed, self._waited = self.now(), waited
        if self._observers.full:
            self.prompt, self.system_prompt = prompt, system_prompt

    def ready(self) -> None:
        """The first time counts."""
        if self._ready is None:
            self._ready = self.now()

    def failed(self) -> None:
        self._failed = self.now()

    def called(
        self, turn: int, tool: str, arguments: str | Mapping[str, Any], output: str, since: float, error: str | None
    ) -> None:
        """A call was answered that began at `since`. `arguments` are JSON text, or were read from it."""
        seconds = self._note(turn, tool, arguments, output, since, error)
        self._observers.called(tool, seconds, error)

    def ended_turn(self, turn: int, response: str, following: str, since: float) -> None:
        """A reply ended a turn; `following` is the next prompt. No tool of the env's was called."""
        self._note(turn, "end_turn", {"response": response}, following, since, None)

    def _note(
        self, turn: int, tool: str, arguments: str | Mapping[str, Any], output: str, since: float, error: str | None
    ) -> float:
        now = self._clock() - self._began
        self.calls_made += 1
        if self._first_call is None:
            self._first_call = since
        self._last_call = now
        if self._observers.full and self._room > 0:
            text = arguments if isinstance(arguments, str) else _json(arguments)
            text, output = cut(text, KEPT_ARGUMENTS), cut(output, KEPT_OUTPUT)
            self._room -= _CALL + len(text) + len(output)
            self.calls.append(Call(turn, tool, text, output, since, now - since, error))
        return now - since

    def forget(self) -> None:
        """What was said and called is needed no more; nothing of it is kept from here on."""
        self.calls, self._room = [], 0
        self.prompt = self.system_prompt = self.final = None

    def verifying(self, final: str) -> None:
        self._verifying = self.now()
        if self._observers.full:
            self.final = cut(final, KEPT_TEXT)

    def decided(self) -> None:
        self._decided = self.now()

    def graded(self, since: float) -> None:
        """The grading that began at `since` is over."""
        self._verifying, self._decided = since, self.now()

    def took(self) -> tuple[float, float | None, float | None]:
        """The seconds of wait, start and verify, as `phases` has them."""
        now = self._clock() - self._began
        end = now if self._failed is None else self._failed
        if self._placed is None:
            return end, None, None
        ready = end if self._ready is None else self._ready
        start = ready - self._placed if ready > self._placed else 0.0
        if self._verifying is None:
            return self._waited, start, None
        return self._waited, start, (now if self._decided is None else self._decided) - self._verifying

    @property
    def characters(self) -> int:
        """Of the calls that are kept, about."""
        return KEPT_SESSION - self._room if self.calls else 0

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


def _json(arguments: Mapping[str, Any]) -> str:
    try:
        return orjson.dumps(arguments).decode()
    except TypeError:  # a number that is too large for orjson, half of a surrogate pair, or deep nesting
        pass
    try:
        return json.dumps(arguments)
    except RecursionError:
        return "(nested too deeply to be kept)"
