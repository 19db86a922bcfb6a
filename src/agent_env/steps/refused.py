"""Step types of the original framework that are not run here, and what to use in their place.

The list is the registry of agentenv-framework 0.9.1364: with the types that are run, 49.
"""

from __future__ import annotations

from collections.abc import Mapping

_AGENT = "use deploy_agent: the agent is the model in training, and it is played from outside"
_ENV_CHECK = "`agent-env check` examines the envs of a bundle"
_AGENT_CHECK = "it examines an agent, and the agent is played from outside: leave it out"
_FRESH = "each episode deploys anew; a state to start from is loaded with load_artifact"
_TRIGGERS = "let the env's own tools change its state when they are called"

INSTEAD: Mapping[str, str] = {
    "install_agent": _AGENT,
    "deploy_human_agent": _AGENT,
    "run_docker_container": "make it an env in envs/<name>/ and use deploy_env",
    "add_skills": "write what the skill says into the system_prompt of deploy_agent",
    "register_env_triggers": _TRIGGERS,
    "register_agent_triggers": _TRIGGERS,
    "sync_env_clock": "set the env's clock through an extension of its own, with apply_server_config",
    "peer_agents": "one agent is played; what the others did can be tools of an env",
    "review": "leave it out: nobody waits for an answer in training",
    "run_code": "use env_outcome_verifier, whose verify.py is any Python",
    "build_mcp_cli": "name the env in env_ids of deploy_agent: its tools are then the agent's",
    "collect_artifacts": "read what is to be graded from the env, in the verify.py of env_outcome_verifier",
    "snapshot_env": _FRESH,
    "snapshot_agent_state": _FRESH,
    "run_container_unit_tests_verifier": "use verify_sandbox with the criterion bash_cmd_succeeds",
    "verify_env_card": _ENV_CHECK,
    "verify_env_core_protocol": _ENV_CHECK,
    "verify_mcp_tool_schema": _ENV_CHECK,
    "verify_spec_conformance": _ENV_CHECK,
    "verify_mcp_env_assessment": _ENV_CHECK,
    "validation_gate_aggregator": "use aggregate_verifiers",
    "verify_universe_load_export_roundtrip": "load with load_artifact, and compare in the verify.py of a grader",
    "combine_universe_verdicts": "use aggregate_verifiers",
    "verify_a2a_agent_card": _AGENT_CHECK,
    "verify_a2a_agent_config_identity": _AGENT_CHECK,
    "verify_a2a_agent_mcp": _AGENT_CHECK,
    "verify_a2a_core_protocol": _AGENT_CHECK,
    "verify_a2a_install": _AGENT_CHECK,
    "verify_a2a_modalities": _AGENT_CHECK,
    "verify_a2a_peer_agents": _AGENT_CHECK,
    "verify_a2a_role": _AGENT_CHECK,
    "verify_a2a_skill_config": _AGENT_CHECK,
    "verify_a2a_snapshot": _AGENT_CHECK,
    "verify_a2a_system_prompt": _AGENT_CHECK,
    "verify_a2a_trajectory": _AGENT_CHECK,
}
