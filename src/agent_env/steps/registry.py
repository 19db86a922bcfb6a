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
from agent_env.steps.refused import INSTEAD

UNKNOWN_KEY = "unknown key"
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
    """fields that name an entity of the bundle, and its kind: `envs`, `artifacts`; `a[].b` is b of each item of a"""
    scores: ClassVar[bool] = False
    """records a score under its step id"""

    def problems(self, bundle: Bundle, earlier: Mapping[str, StepModel]) -> Iterator[str]:
        """What makes the step wrong: unknown references, fields that exclude each other."""
        yield from ()

    def unsupported(self, bundle: Bundle) -> Iterator[str]:
        """What is right for the original but is not run here."""
        yield from ()

    def warnings(self, bundle: Bundle, earlier: Mapping[str, StepModel]) -> Iterator[str]:
        """What may not be meant, or differs here from the original."""
        yield from ()

    def env_of(self) -> str | None:
        """The one env that the step is about."""
        name: str | None = getattr(self, "env_id", None)
        return name

    async def run(self, step: Step, context: RunContext) -> None:
        """Raises `EpisodeFailure` when the environment fails."""
        raise AssertionError(f"step type {self.type_name} has no run")


Model = TypeVar("Model", bound=type[StepModel])

_TYPES: dict[str, type[StepModel]] = {}


def register(model: Model) -> Model:
    """Class decorator: makes the type known."""
    _TYPES[model.type_name] = model
    return model


def registered() -> Mapping[str, type[StepModel]]:
    return _TYPES


def meant(name: str) -> str | None:
    """The step type that a misspelt one probably means."""
    return next(iter(difflib.get_close_matches(name, sorted(INSTEAD.keys() | _TYPES), n=1)), None)


def type_problem(name: str) -> tuple[str, bool]:
    """Why a type can't run, and whether the original would run it."""
    if name in INSTEAD:
        return f"step type {name!r} is not run here: {INSTEAD[name]}", True
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
            warnings.append(f"{UNKNOWN_KEY} {key!r}" + (f"; did you mean {close[0]!r}?" if close else ""))
    try:
        return model.model_validate(fields), [], warnings
    except ValidationError as error:
        return None, [_pydantic_line(item) for item in error.errors()], warnings


def resolve_references(model: StepModel, bundle: Bundle) -> tuple[StepModel, list[str]]:
    """The step with bare names in place of ids, and a problem for each reference that names nothing."""
    problems: list[str] = []

    def name_of(field: str, kind: str, reference: str) -> str:
        name = refs.resolve(bundle, kind, reference)
        if name is None:
            problems.append(f"{field}: {refs.missing(bundle, kind, reference)}")
        return reference if name is None else name

    changed: dict[str, Any] = {}
    for field, kind in model.references.items():
        field, _, inner = field.partition("[].")
        value = getattr(model, field)
        if inner:
            changed[field] = [
                item.model_copy(update={inner: name_of(f"{field}.{place}.{inner}", kind, getattr(item, inner))})
                for place, item in enumerate(value)
            ]
        elif isinstance(value, list):
            changed[field] = [name_of(field, kind, reference) for reference in value]
        elif value is not None:
            changed[field] = name_of(field, kind, value)
    changed = {field: value for field, value in changed.items() if value != getattr(model, field)}
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
