"""What a task means when it is played: spec -> episode -> turn, and the scores."""

from agent_env.bundle.model import Skill
from agent_env.episode.plan import TaskPlan, plan_bundle, plan_task
from agent_env.episode.run import Episode
from agent_env.episode.runtime import Runtime
from agent_env.episode.spec import EpisodeSpec
from agent_env.episode.turn import Turn, TurnTools
from agent_env.errors import EpisodeError, EpisodeFailure
from agent_env.limits import Deadlines

__all__ = [
    "Deadlines",
    "Episode",
    "EpisodeError",
    "EpisodeFailure",
    "EpisodeSpec",
    "Runtime",
    "Skill",
    "TaskPlan",
    "Turn",
    "TurnTools",
    "plan_bundle",
    "plan_task",
]
