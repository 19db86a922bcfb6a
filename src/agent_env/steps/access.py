"""Which tools of an env an agent sees: the env's own wish, and the rules of `modify_env_tool_access`.

Rules are kept per role and per tool; `*` stands for all of either. The meaning is that of agentenv-framework 0.9.1364.
"""

from __future__ import annotations

from collections.abc import Iterable

ANY = "*"
DEFAULT_ROLE = "default"


class ToolAccess:
    """The rules of one deployed env."""

    def __init__(self) -> None:
        self._hidden: dict[str, dict[str, bool]] = {}
        """role -> tool -> whether it is hidden"""

    def change(self, role: str, tools: Iterable[str], *, hide: bool) -> None:
        """A rule for all tools of a role takes the place of the role's earlier rules; for all roles, of everybody's."""
        for tool in tools:
            if tool == ANY:
                if role == ANY:
                    self._hidden.clear()
                self._hidden[role] = {ANY: hide}
                continue
            if role == ANY:
                for rules in self._hidden.values():
                    rules[tool] = hide
            self._hidden.setdefault(role, {})[tool] = hide

    def hides(self, tool: str, role: str | None, *, by_default: bool) -> bool:
        """Whether the tool is kept from the role. A tool that the env hides is shown only by a rule that names it."""
        for who in (role or DEFAULT_ROLE, ANY):
            rules = self._hidden.get(who, {})
            if tool in rules:
                return rules[tool]
            if ANY in rules and not by_default:
                return rules[ANY]
        return by_default
