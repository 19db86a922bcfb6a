"""What each step of a task does: one module per family, one class per type."""

from agent_env.steps import configure, deploy, grade, prompt
from agent_env.steps.registry import StepModel, parse_fields, registered, type_problem

__all__ = ["StepModel", "configure", "deploy", "grade", "parse_fields", "prompt", "registered", "type_problem"]
