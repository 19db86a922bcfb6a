"""What each step of a task does: one module per family, one class per type."""

from agent_env.steps import configure, deploy, grade, load, probes, prompt, responses, rubrics, sandboxes
from agent_env.steps.registry import StepModel, parse_fields, registered, type_problem

__all__ = [
    "StepModel",
    "configure",
    "deploy",
    "grade",
    "load",
    "parse_fields",
    "probes",
    "prompt",
    "registered",
    "responses",
    "rubrics",
    "sandboxes",
    "type_problem",
]
