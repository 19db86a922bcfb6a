"""Whether a server does its work, as one word and the reasons for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from agent_env.observe.troubles import Troubles

FAILING_SHARE = 0.5
DEGRADED_SHARE = 0.1
"""of the last rollouts that the environment failed; as many as make the ERROR line of the log"""
_FEWEST = 3
"""failed rollouts that say anything"""
LATE = 0.5
"""seconds that an event loop may be late"""


class State(IntEnum):
    """The worst reason gives the state."""

    HEALTHY = 0
    DEGRADED = 1
    FAILING = 2

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Finding:
    state: State
    why: str


@dataclass(frozen=True, slots=True)
class Health:
    state: State
    why: tuple[str, ...]
    """the worst first; what is well when nothing is wrong"""


def judge(troubles: Troubles, lag: float, more: Iterable[Finding] = ()) -> Health:
    """`lag`: seconds that the event loop was late by of late; `more`: what only this kind of server can find."""
    findings = [*more, *_masked(troubles), *_listed(troubles), *_late(lag)]
    wrong = sorted((f for f in findings if f.state is not State.HEALTHY), key=lambda finding: -finding.state)
    if wrong:
        return Health(wrong[0].state, tuple(finding.why for finding in wrong))
    return Health(State.HEALTHY, (_well(troubles),))


def _masked(troubles: Troubles) -> Iterable[Finding]:
    kinds = Counter(kind for kind in troubles.recent if kind is not None)
    count, of = kinds.total(), len(troubles.recent)
    if count < _FEWEST or count <= DEGRADED_SHARE * of:
        return
    state = State.FAILING if count > FAILING_SHARE * of else State.DEGRADED
    leading, most = kinds.most_common(1)[0]
    yield Finding(
        state,
        f"the environment failed {count} of the last {of} rollouts, most often {leading.value} ({most}): "
        f"{leading.remedy}",
    )


def _listed(troubles: Troubles) -> Iterable[Finding]:
    if listed := list(troubles.listed()):
        what = "1 task fails" if len(listed) == 1 else f"{len(listed)} tasks fail"
        more = ", ..." if len(listed) > 3 else ""
        yield Finding(State.DEGRADED, f"{what} again and again ({', '.join(listed[:3])}{more})")


def _late(lag: float) -> Iterable[Finding]:
    if lag > LATE:
        yield Finding(
            State.DEGRADED,
            f"the event loop was late by up to {lag:.1f} s in the last minutes: is the machine's processor taken?",
        )


def _well(troubles: Troubles) -> str:
    count, of = sum(kind is not None for kind in troubles.recent), len(troubles.recent)
    if not of:
        return "no rollout has ended yet"
    return f"{of - count} of the last {of} rollouts were measured" + (f", {count} masked" if count else "")
