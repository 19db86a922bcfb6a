"""An env server on the env protocol's own SDK."""

from typing import Any

from agentenv_protocol import (
    AgentEnvEnvironment,
    AgentEnvError,
    DataPart,
    ToolContext,
    add_data,
    environment_card,
    extension,
    get_data,
    reset_data,
    tool,
)


@environment_card(name="sdk")
class Sdk(AgentEnvEnvironment):
    def __init__(self) -> None:
        self.parts: list[Any] = []
        self.day: dict[str, Any] = {}

    @reset_data
    def reset(self) -> None:
        self.parts = []

    @add_data
    async def add(self, parts: list[Any]) -> None:
        if any(part.kind == "text" and part.text == "boom" for part in parts):
            raise ValueError("boom asked for")
        self.parts += parts

    @get_data
    async def get(self) -> list[DataPart]:
        return [DataPart(data={"count": len(self.parts), "day": self.day, "nan": float("nan")})]

    @extension("urn:sdk:load-day/v1", description="Load one day.")
    def load_day(self, date: str, prices: list) -> dict:
        if not prices:
            raise AgentEnvError("bad_day", "no prices", hint="one price per hour")
        self.day = {"date": date, "prices": prices}
        return {"date": date, "hours": len(prices)}

    @extension("urn:sdk:peek/v1", op="peek", method="GET")
    def peek(self, hour: int) -> dict:
        return {"price": self.day["prices"][hour]}

    @extension("urn:sdk:broken/v1")
    def broken(self) -> dict:
        raise RuntimeError("it broke")

    @tool()
    def get_prices(self) -> dict[str, Any]:
        """Prices of the loaded day."""
        return self.day

    @tool()
    def refuse(self) -> dict[str, Any]:
        raise AgentEnvError("no_day", "no day is loaded", retryable=True)

    @tool(hidden_by_default=True)
    def plumbing(self) -> dict[str, Any]:
        """Hidden."""
        return {"ok": True}

    @tool()
    def whoami(self, context: ToolContext) -> dict[str, Any]:
        """The caller."""
        return {"role": context.caller.role}


if __name__ == "__main__":
    Sdk().serve()
