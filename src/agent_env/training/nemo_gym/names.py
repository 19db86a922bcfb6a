"""Names that leave this toolkit: server folders, split files, tools.

NeMo Gym finds a server folder by its name alone, and a user's folder hides a built-in one; a split becomes a file name
and a dataset name; a tool becomes a URL path and a function name in a model's request. Each has its rule here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping

from agent_env.errors import ConfigError

NEMO_GYM_VERSION = "0.7.0"
"""The release whose `resources_servers/` folders are listed below."""

_BUILT_IN = """
aalcr abstention aegis_v4_safety agentif arc_agi arena arena_judge asr_with_pc assaybench aviary bbq
bigcodebench bird_sql blackjack browsecomp_advanced_harness bunsenbench_chemistry_mcq calendar circle_click
circle_count citation_if code_fim code_gen competitive_coding_challenges conversational_tool_use_simulation
critpt cvdp deepsearchqa deepswe denovo_swe equivalence_llm_judge equivalence_rule ether0 evalplus
example_mcp_weather example_multi_step example_multi_turn_gymnasium example_session_state_mgmt
example_single_tool_call example_tool_call_multireward false_statement_judge finance_agent_v2
finance_sec_search format_verification frontierscience_judge fukuyamabench gdp_pdf gdpval
generative_reward_model genrm_compare google_search gpqa_diamond graphwalks grl_sokoban grl_tetris
gui_coordinate gymnasium hotpotqa_qa ifbench iheval image_tools imo_gradingbench imo_proofbench_judge
indian_banking indirect_prompt_injection instruction_following interactive_browser inverse_if
jailbreak_detection job_bench labbench2_vlm lc_niah legal_agent_bench litmus_agent longmemeval longmt_eval
math_advanced_calculations math_formal_lean math_proof_judgement math_with_autograder math_with_code
math_with_judge mcqa moldetox mrcr multichallenge nemo_user_sim newton_bench ns_tools nvarc omniscience
openair_congestion openenv osworld over_refusal_detection physics_judge polymath proof_genselect proof_judge
proof_verification ragtruth reasoning_gym rolemrc ruler ruler2 scale_swe scicode scicodepile sec_local_index
simpleqa single_step_tool_use_with_argument_comparison spartqa speed_bench spider2_lite string_match
structeval structured_outputs swe_next swe_pivot swe_rebench swebench swebench_pro swemer_oml swemer_v1
swemer_v2 swerl_gen swerl_llm_judge tales tavily_search terminal_bench_2_1 terminal_bench_4
terminal_multi_harness terminus_judge text_to_sql toolsandbox ugphysics_judge verifif vibench vlm_eval_kit
widesearch wmt_translation wordle workplace_assistant workspace_bench xlam_fc xstest
"""
BUILT_IN_SERVERS = frozenset(_BUILT_IN.split())

RESERVED_ROUTES = frozenset(
    {"seed_session", "verify", "close_session", "aggregate_metrics", "reverify_mode", "mcp", "ng-rollout"}
)
"""First path segments that a resources server answers itself (NeMo Gym 0.7.0 and ours), so no tool may have them."""

_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SPLIT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_TAKEN_SPLITS = ("all", "example")
_TAKEN_SUFFIXES = ("_metrics", "_prepare")


def folder_name(name: str) -> str:
    """The server folder's name: lower case, every character outside `a-z0-9_` becomes `_`.

    Raises ConfigError for the name of one of NeMo Gym's own servers, with a proposal, and for a name of `_` alone.
    """
    folder = re.sub(r"[^a-z0-9_]", "_", name.lower())
    if not re.search(r"[a-z0-9]", folder):
        raise ConfigError(f"no server name can be made of {name!r}: give one with --name")
    if len(folder) > 100:
        raise ConfigError(f"the server name {folder[:40]}... has {len(folder)} characters, at most 100: give --name")
    if folder in BUILT_IN_SERVERS:
        raise ConfigError(
            f"{folder!r} is the name of one of NeMo Gym's own servers, which it would hide: give --name {folder}_env"
        )
    return folder


def check_split(name: str) -> None:
    """Raises ConfigError for a split whose file would collide with another or leave the data folder."""
    if name in _TAKEN_SPLITS or name.endswith(_TAKEN_SUFFIXES):
        raise ConfigError(
            f"the eval {name!r} can't be a data file, NeMo Gym or this writer uses that name: "
            f"rename evals/{name}.toml, to {name}_days for example, or pick others with --split"
        )
    if not _SPLIT_NAME.fullmatch(name) or ".." in name:
        raise ConfigError(
            f"the split {name!r} can't be a file name: letters, digits, '.', '_' and '-' only, a letter or digit first"
        )


def tool_alias(name: str) -> str:
    """The name under which clients call a tool: its own when they can carry it, else a stand-in.

    Model APIs take `[A-Za-z0-9_-]{1,64}` only, and a few paths are the server's own.
    """
    if not name:
        raise ConfigError("a tool of the env has an empty name")
    alias = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    if len(alias) > 64:
        alias = f"{alias[:55]}_{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"
    if alias in RESERVED_ROUTES:
        alias = f"{alias}_tool"
    return alias


def tool_aliases(names: Iterable[str]) -> dict[str, str]:
    """`{alias: tool}` for those of a server's tools that need one, sorted.

    Raises ConfigError when two tools would be called by the same name.
    """
    by_alias: dict[str, str] = {}
    for name in sorted(set(names)):
        alias = tool_alias(name)
        if (other := by_alias.setdefault(alias, name)) != name:
            raise ConfigError(f"the tools {other!r} and {name!r} would both be called {alias!r} by clients: rename one")
    return {alias: name for alias, name in sorted(by_alias.items()) if alias != name}


def alias_of(aliases: Mapping[str, str], tool: str) -> str:
    """What rows call `tool`, given a config's `{alias: tool}`."""
    return next((alias for alias, name in aliases.items() if name == tool), tool)
