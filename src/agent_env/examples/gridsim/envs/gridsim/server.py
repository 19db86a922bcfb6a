"""GridSim's env: one battery, one day of prices, two tools."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from agentenv_protocol import (
    AgentEnvEnvironment,
    AgentEnvError,
    DataPart,
    FilePart,
    Part,
    add_data,
    environment_card,
    extension,
    get_data,
    reset_data,
    tool,
)
from pydantic import StrictInt

# --- rules: begin ---
HOURS = 24
ENERGY = 40  # MWh that the battery holds
POWER = 10  # MWh that it takes or gives in one hour


def cents(price: float) -> int:
    return round(100 * price)


def refusal(schedule: object) -> str | None:
    """Why this is not a feasible schedule: one sentence that names the hour and the rule. None: it is one."""
    if not isinstance(schedule, list | tuple):
        return "the schedule must be a list of 24 integers, one an hour"
    if len(schedule) != HOURS:
        return f"the schedule must have {HOURS} integers, one an hour: this one has {len(schedule)}"
    soc = 0
    for hour, move in enumerate(schedule):
        if type(move) is not int:
            return f"hour {hour}: {move!r:.40} is not an integer"
        if not -POWER <= move <= POWER:
            return f"hour {hour}: {move} MWh is outside [-{POWER}, {POWER}], the battery's power"
        soc += move
        if not 0 <= soc <= ENERGY:
            return f"hour {hour}: the state of charge would be {soc} MWh, outside [0, {ENERGY}]"
    return None


def profit(prices: Sequence[float], schedule: Sequence[int]) -> int:
    """Tenths of a cent that the schedule earns: charging s pays 10*cents*s, drawing d earns 9*cents*d."""
    return sum(cents(price) * (-10 if move > 0 else -9) * move for price, move in zip(prices, schedule, strict=True))


# --- rules: end ---


@environment_card(name="gridsim")
class GridSim(AgentEnvEnvironment):
    """The loaded day and the last valid schedule. State is per process: every MCP session sees the same day."""

    def __init__(self) -> None:
        self.reset()

    @reset_data
    def reset(self) -> None:
        self.date: str | None = None
        self.hub: str | None = None
        self.prices: list[float] = []
        self.schedule: list[int] | None = None

    @add_data
    def add(self, parts: list[Part]) -> None:
        """Each part is one day as JSON, in the form of `data/get`; the last one stays."""
        for part in parts:
            day = dict(_content(part))
            schedule = day.pop("schedule", None)
            self.load_day(**day)
            if schedule is not None:
                self.submit_schedule(schedule)

    @get_data
    def get(self) -> list[DataPart]:
        day = {"date": self.date, "hub": self.hub, "prices": self.prices, "schedule": self.schedule}
        return [DataPart(data=day)]

    @extension("urn:gridsim:load-day/v1", description="Load one day of prices; forgets the schedule.")
    def load_day(self, date: str, hub: str, prices: list[float]) -> dict[str, Any]:
        if not (isinstance(date, str) and date and isinstance(hub, str) and hub):
            raise AgentEnvError("bad_day", "date and hub must be text")
        if not isinstance(prices, list) or len(prices) != HOURS:
            raise AgentEnvError("bad_day", f"prices must be a list of {HOURS} numbers, one an hour")
        for hour, price in enumerate(prices):
            if type(price) not in (int, float) or not -1e6 < price < 1e6:  # also refuses NaN
                raise AgentEnvError("bad_day", f"hour {hour}: {price!r:.40} is not a price")
        self.date, self.hub, self.prices, self.schedule = date, hub, prices, None
        return {"date": date, "hub": hub, "hours": HOURS}

    @tool(structured_output=False)
    def get_prices(self) -> str:
        """The day's 24 hourly prices in $/MWh (the first is the hour from midnight), and the battery."""
        self._need_day()
        battery = {"energy_mwh": ENERGY, "power_mw": POWER, "start_mwh": 0, "sold_share": 0.9}
        day = {"date": self.date, "hub": self.hub, "prices": self.prices, "battery": battery}
        return json.dumps(day, separators=(",", ":"))

    @tool()
    def submit_schedule(self, schedule: list[StrictInt]) -> dict[str, Any]:
        """Submit the day's schedule: 24 integers, one an hour, in MWh.

        Positive charges, negative sells, 0 idles. The last valid schedule counts; an invalid one is refused.
        """
        self._need_day()
        reason = refusal(schedule)
        if reason is not None:
            raise AgentEnvError("refused", reason)
        self.schedule = schedule
        return {"accepted": True, "profit": profit(self.prices, schedule) / 1000}

    def _need_day(self) -> None:
        if not self.prices:
            raise AgentEnvError("no_day", "no day is loaded")


def _content(part: Part) -> dict[str, Any]:
    if isinstance(part, DataPart):
        return part.data
    if not isinstance(part, FilePart):
        raise AgentEnvError("bad_day", "a day is a data part or a JSON file")
    data = getattr(part.file, "bytes", None)
    uri = urlsplit(getattr(part.file, "uri", ""))
    if data is None and uri.scheme != "file":
        raise AgentEnvError("bad_day", "only file:// URIs can be read")
    day = json.loads(b64decode(data) if data is not None else Path(unquote(uri.path)).read_bytes())
    if not isinstance(day, dict):
        raise AgentEnvError("bad_day", "the file must hold one JSON object")
    return day


if __name__ == "__main__":
    GridSim().serve()
