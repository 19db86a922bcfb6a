"""Step types: their fields, and how a task's raw steps become typed ones.

Each type is one `StepModel` subclass, registered by its `type_name`. A type that the original framework has and this
one does not run is known by name, so that its tasks are left out with a reason instead of called misspelt.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from agent_env.bundle import Bundle, Step, refs
from agent_env.steps.context import RunContext

Phase = Literal["deploy", "load", "turn", "verify"]


class StepModel(BaseModel):
    """Fields of one step type and what it does."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    type_name: ClassVar[str]
    phase: ClassVar[Phase]
    fatal: ClassVar[bool] = True
    """the default of `fail_task_on_error`"""
    without_effect: ClassVar[frozenset[str]] = frozenset()
    """keys the original knows that change nothing here: accepted with a warning"""
    references: ClassVar[Mapping[str, str]] = {}
    """fields that name an entity of the bundle, and its kind: `envs`, `artifacts`"""
    scores: ClassVar[bool] = False
    """records a score under its step id"""

    def problems(self, bundle: Bundle, earlier: Mapping[str, StepModel]) -> Iterator[str]:
        """What makes the step wrong: unknown references, fields that exclude each other."""
        yield from ()

    def unsupported(self, bundle: Bundle) -> Iterator[str]:
        """What is right for the original but is not run here."""
        yield from ()

    async def run(self, step: Step, context: RunContext) -> None:
        """Raises `EpisodeFailure` when the environment fails."""
        raise AssertionError(f"step type {self.type_name} has no run")


Model = TypeVar("Model", bound=type[StepModel])

_TYPES: dict[str, type[StepModel]] = {}

ORIGINAL_TYPES = frozenset(
    {
        "deploy_env",
        "deploy_agent",
        "install_agent",
        "deploy_human_agent",
        "deploy_sandbox",
        "run_docker_container",
        "load_artifact",
        "add_skills",
        "apply_server_config",
        "modify_env_tool_access",
        "register_env_triggers",
        "register_agent_triggers",
        "sync_env_clock",
        "peer_agents",
        "reset_env",
        "review",
        "run_code",
        "build_mcp_cli",
        "collect_artifacts",
        "snapshot_env",
        "snapshot_agent_state",
        "teardown_sandboxes",
        "prompt_agent",
        "env_outcome_verifier",
        "agent_prompt_response_verifier",
        "rubrics_verifier",
        "verify_sandbox",
        "run_container_unit_tests_verifier",
        "aggregate_verifiers",
        "verify_env_card",
        "verify_env_core_protocol",
        "verify_mcp_tool_schema",
        "verify_spec_conformance",
        "verify_mcp_env_assessment",
        "validation_gate_aggregator",
        "verify_universe_load_export_roundtrip",
        "combine_universe_verdicts",
    }
)
"""Step types of agentenv-framework 0.9.1364, and every type that starts with `verify_a2a_`."""


def register(model: Model) -> Model:
    """Class decorator: makes the type known."""
    _TYPES[model.type_name] = model
    return model


def registered() -> Mapping[str, type[StepModel]]:
    return _TYPES


def meant(name: str) -> str | None:
    """The step type that a misspelt one probably means."""
    return next(iter(difflib.get_close_matches(name, sorted(ORIGINAL_TYPES | set(_TYPES)), n=1)), None)


def type_problem(name: str) -> tuple[str, bool]:
    """Why a type can't run, and whether the original would run it."""
    if name in ORIGINAL_TYPES or name.startswith("verify_a2a_"):
        return f"step type {name!r} is not run here", True
    close = meant(name)
    hint = f"; did you mean {close!r}?" if close else f"; known types: {', '.join(sorted(_TYPES))}"
    return f"unknown step type {name!r}{hint}", False


def parse_fields(model: type[StepModel], fields: Mapping[str, Any]) -> tuple[StepModel | None, list[str], list[str]]:
    """The typed step, problems, and warnings (keys nobody knows, keys without effect)."""
    warnings = [f"key {key!r} has no effect here" for key in fields if key in model.without_effect]
    known = model.model_fields.keys() | model.without_effect
    for key in fields:
        if key not in known:
            close = difflib.get_close_matches(key, sorted(known), n=1)
            warnings.append(f"unknown key {key!r}" + (f"; did you mean {close[0]!r}?" if close else ""))
    try:
        return model.model_validate(fields), [], warnings
    except ValidationError as error:
        return None, [_pydantic_line(item) for item in error.errors()], warnings


def resolve_references(model: StepModel, bundle: Bundle) -> tuple[StepModel, list[str]]:
    """The step with bare names in place of ids, and a problem for each reference that names nothing."""
    changed: dict[str, Any] = {}
    problems: list[str] = []
    for field, kind in model.references.items():
        value = getattr(model, field)
        if value is None:
            continue
        given = value if isinstance(value, list) else [value]
        names = [refs.resolve(bundle, kind, reference) for reference in given]
        problems += [
            f"{field}: {refs.missing(bundle, kind, reference)}"
            for reference, name in zip(given, names, strict=True)
            if name is None
        ]
        if None not in names and names != given:
            changed[field] = names if isinstance(value, list) else names[0]
    return (model.model_copy(update=changed) if changed else model), problems


def stand_in(model: type[StepModel], fields: Mapping[str, Any]) -> StepModel:
    """An unchecked step in place of one with wrong fields, so that its fault is not reported again by later steps."""
    required = {name: "" for name, info in model.model_fields.items() if info.is_required()}
    return model.model_construct(**{**required, **{key: fields[key] for key in fields if key in model.model_fields}})


def _pydantic_line(item: Mapping[str, Any]) -> str:
    where = ".".join(str(part) for part in item["loc"])
    if item["type"] == "missing":
        return f"{where} is required"
    return f"{where}: {str(item['msg'])[:1].lower()}{str(item['msg'])[1:]}"
