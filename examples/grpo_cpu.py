"""GRPO without a GPU: a small policy learns GridSim, every rollout played over HTTP as a trainer plays it.

    python examples/grpo_cpu.py                          # three seeds, 40 steps each; starts both servers itself
    python examples/grpo_cpu.py --seeds 1 --steps 5 --eval-days 20 --isolation container
    python examples/grpo_cpu.py --url http://127.0.0.1:9100 --rows gym-root/resources_servers/gridsim_v1/data

The policy is a rule with five knobs: how far it looks ahead, how rare a low price has to be to buy and a high one to
sell, whether a trade must pay, and how many MW it moves. One softmax over each knob's values is all there is to learn.
A rollout draws one value of each knob and plays the day by it. A step plays 8 rollouts of each of 4 train days; the
advantage of a rollout is its reward against its group's mean, over the group's standard deviation; plain SGD moves the
logits. The eval days are played once each, by one draw a day, before and after.

Needs numpy, and matplotlib for the picture: pip install 'agent-env[openenv,plot]'.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent_env.errors import AgentEnvError
from agent_env.examples.gridsim.battery import ENERGY, greedy_schedule, optimum, profit
from agent_env.figures import new_figure, save_png
from agent_env.policies import Play, Policy
from agent_env.training.nemo_gym.client import RolloutClient, RolloutResult
from agent_env.training.nemo_gym.rows import Row, read_rows

Floats = NDArray[np.float64]

KNOBS: dict[str, tuple[float, ...]] = {
    "look_ahead": (2, 4, 6, 9, 12, 18),
    "buy_share": (0.1, 0.2, 0.35, 0.5, 0.7),
    "sell_share": (0.1, 0.2, 0.35, 0.5, 0.7),
    "profit_test": (0, 1),
    "power": (0, 2, 4, 6, 8, 10),
}
GROUP = 8
"""rollouts of one day"""
DAYS = 4
"""days a step"""

Member = tuple[int, ...]
"""one policy of the family: for each knob, which of its values"""


# The family.


@dataclass(frozen=True, slots=True)
class Rule:
    """One member's values."""

    look_ahead: int
    buy_share: float
    sell_share: float
    profit_test: bool
    power: int

    @classmethod
    def of(cls, member: Member) -> Rule:
        hours, buy, sell, test, power = (values[at] for values, at in zip(KNOBS.values(), member, strict=True))
        return cls(int(hours), buy, sell, bool(test), int(power))

    def schedule(self, prices: Sequence[float]) -> list[int]:
        """What it does with a day. Hours past midnight count as neither cheaper nor dearer: nothing can be sold then,
        so that towards the evening it keeps less and less."""
        held, moves = 0, []
        for hour, price in enumerate(prices):
            ahead = prices[hour + 1 : hour + 1 + self.look_ahead]
            cheaper = sum(later < price for later in ahead) / self.look_ahead
            dearer = sum(later > price for later in ahead) / self.look_ahead
            buys = bool(ahead) and cheaper <= self.buy_share and (not self.profit_test or 0.9 * max(ahead) > price)
            sells = dearer <= self.sell_share and (not self.profit_test or price > 0)
            if buys and sells:
                buys = cheaper < dearer
                sells = not buys
            move = min(self.power, ENERGY - held) if buys else -min(self.power, held) if sells else 0
            held += move
            moves.append(move)
        return moves


def playing(schedule: Callable[[Sequence[float]], list[int]], seen: dict[str, list[float]] | None = None) -> Policy:
    """A rollout as a model would play it: read the prices, submit, say so. `seen` gets the prices by task."""

    async def policy(play: Play) -> None:
        try:
            prices = json.loads(await play.call("get_prices", {}))["prices"]
        except (ValueError, KeyError, TypeError):  # the env is down: the rollout will be masked
            play.say("The prices could not be read.")
            return
        if seen is not None:
            seen[play.row["task_id"]] = prices
        await play.call("submit_schedule", {"schedule": schedule(prices)})
        play.say("The schedule is submitted.")

    return policy


def best_member(days: Sequence[Sequence[float]]) -> tuple[Rule, float]:
    """The member with the highest mean score over these days, by the rules of the battery: nothing is played."""
    rules = [Rule.of(member) for member in itertools.product(*(range(len(values)) for values in KNOBS.values()))]
    optima = [optimum(prices)[0] for prices in days]
    means = [
        float(np.mean([_score(prices, best, rule) for prices, best in zip(days, optima, strict=True)]))
        for rule in rules
    ]
    place = int(np.argmax(means))
    return rules[place], means[place]


def _score(prices: Sequence[float], best: int, rule: Rule) -> float:
    return min(1.0, max(0.0, 0.2 + 0.8 * profit(prices, rule.schedule(prices)) / best))


# The learner.


@dataclass
class Softmaxes:
    """An independent softmax over each knob's values; uniform to begin with."""

    logits: list[Floats] = field(default_factory=lambda: [np.zeros(len(values)) for values in KNOBS.values()])

    def probabilities(self) -> list[Floats]:
        shifted = [np.exp(logits - logits.max()) for logits in self.logits]
        return [weights / weights.sum() for weights in shifted]

    def draw(self, rng: np.random.Generator) -> Member:
        return tuple(int(rng.choice(len(chances), p=chances)) for chances in self.probabilities())

    def learn(self, members: Sequence[Member], advantages: Sequence[float], rate: float) -> None:
        """One step of SGD on the mean of advantage x log-probability."""
        chances = self.probabilities()
        for head, logits in enumerate(self.logits):
            gradient = np.zeros_like(logits)
            for member, advantage in zip(members, advantages, strict=True):
                gradient -= advantage * chances[head]
                gradient[member[head]] += advantage
            logits += rate * gradient / max(1, len(members))

    def favourite(self) -> Rule:
        return Rule.of(tuple(int(np.argmax(logits)) for logits in self.logits))


def advantages_of(rewards: Sequence[float | None]) -> list[float | None]:
    """Of one group. A masked or failed rollout (None) has no part in it, nor has a group without differences."""
    measured = np.array([reward for reward in rewards if reward is not None])
    if len(measured) < 2 or measured.std() < 1e-9:
        return [None] * len(rewards)
    mean, spread = float(measured.mean()), float(measured.std())
    return [None if reward is None else (reward - mean) / spread for reward in rewards]


# Rollouts.


class Player:
    """Plays through the resources server, so many at once."""

    def __init__(self, client: RolloutClient, concurrency: int) -> None:
        self.rollouts = self.lost = 0
        self._client = client
        self._places = asyncio.Semaphore(concurrency)

    async def rewards(self, rows: Sequence[Row], policies: Sequence[Policy]) -> list[float | None]:
        """One rollout for each pair, in their order; None: the environment failed it."""
        return list(await asyncio.gather(*map(self._reward, rows, policies)))

    async def _reward(self, row: Row, policy: Policy) -> float | None:
        async with self._places:
            result = await self._client.play(row, policy)
        self.rollouts += 1
        if not result.measured:
            self.lost += 1
            _say(f"  lost: {row.id}: {_reason(result)}")
            return None
        return result.reward


def _reason(result: RolloutResult) -> str:
    return result.error or f"masked, {result.kind}: {result.reason}"


@dataclass
class Run:
    """What one seed did."""

    seed: int
    curve: list[float] = field(default_factory=list)
    """mean reward of each step's rollouts"""
    before: list[float | None] = field(default_factory=list)
    after: list[float | None] = field(default_factory=list)
    """reward of each eval day"""
    favourite: Rule | None = None
    seconds: float = 0.0


async def train(player: Player, train_rows: Sequence[Row], eval_rows: Sequence[Row], seed: int, options: Any) -> Run:
    begun = time.monotonic()
    rng = np.random.default_rng(seed)
    policy, run = Softmaxes(), Run(seed)
    run.before = await evaluate(player, policy, eval_rows, seed)
    _say(f"seed {seed}: eval before {_mean(run.before):.4f}")
    order = rng.permutation(len(train_rows))
    for step in range(options.steps):
        rows = [train_rows[order[(step * DAYS + place) % len(order)]] for place in range(DAYS)]
        members = [policy.draw(rng) for _ in range(DAYS * GROUP)]
        plays = [playing(Rule.of(member).schedule) for member in members]
        rewards = await player.rewards([row for row in rows for _ in range(GROUP)], plays)
        advantages = [
            advantage
            for group in range(0, len(rewards), GROUP)
            for advantage in advantages_of(rewards[group : group + GROUP])
        ]
        kept = [(member, value) for member, value in zip(members, advantages, strict=True) if value is not None]
        policy.learn([member for member, _ in kept], [value for _, value in kept], options.rate)
        run.curve.append(_mean(rewards))
        if step % 5 == 4 or step + 1 == options.steps:
            _say(f"seed {seed}: step {step + 1}/{options.steps}, reward {run.curve[-1]:.4f}")
    run.after = await evaluate(player, policy, eval_rows, seed)
    run.favourite, run.seconds = policy.favourite(), time.monotonic() - begun
    _say(f"seed {seed}: eval after {_mean(run.after):.4f}, {run.seconds:.0f} s; favourite {run.favourite}")
    return run


async def evaluate(player: Player, policy: Softmaxes, rows: Sequence[Row], seed: int) -> list[float | None]:
    """One rollout a day, by one draw a day. The same random numbers before and after."""
    rng = np.random.default_rng([seed, 1])
    return await player.rewards(rows, [playing(Rule.of(policy.draw(rng)).schedule) for _ in rows])


def _mean(rewards: Sequence[float | None]) -> float:
    measured = [reward for reward in rewards if reward is not None]
    return float(np.mean(measured)) if measured else float("nan")


# What it adds up to.


def summary_of(runs: Sequence[Run], greedily: Sequence[float | None], best: tuple[Rule, float]) -> dict[str, Any]:
    """`z`: the mean over the eval days of (policy - greedy), in standard errors; a day's policy is its seeds' mean."""
    differences = [
        float(np.mean(rewards)) - reference
        for *rewards, reference in zip(*(run.after for run in runs), greedily, strict=True)
        if reference is not None and None not in rewards
    ]
    spread = float(np.std(differences, ddof=1)) if len(differences) > 1 else float("nan")
    error = spread / max(1, len(differences)) ** 0.5
    ahead = float(np.mean(differences)) if differences else 0.0
    before, after = [_mean(run.before) for run in runs], [_mean(run.after) for run in runs]
    return {
        "seeds": [run.seed for run in runs],
        "eval_before": [round(mean, 6) for mean in before],
        "eval_after": [round(mean, 6) for mean in after],
        "greedy": round(_mean(greedily), 6),
        "ahead_of_greedy": round(ahead, 6),
        "z": round(ahead / error, 3) if error > 0 else None,
        "best_member": {"rule": str(best[0]), "score": round(best[1], 6)},
        "favourites": [str(run.favourite) for run in runs],
        "curves": [[round(reward, 6) for reward in run.curve] for run in runs],
        "seconds": [round(run.seconds, 1) for run in runs],
        "met": {
            "uniform start below 0.5": max(before) < 0.5,
            "ahead of greedy by 2 standard errors": bool(ahead >= 2 * error),
            "best member below 0.97": best[1] < 0.97,
        },
    }


def draw(path: Path, runs: Sequence[Run], greedily: float, best: float) -> Path:
    """The reward by step, each seed thin and their mean thick, and the eval days before and after as dots."""
    figure = new_figure(8, 4.5)
    axes = figure.subplots()
    for run in runs:
        axes.plot(range(1, len(run.curve) + 1), run.curve, color="tab:blue", alpha=0.35, linewidth=0.8)
    mean = np.mean([run.curve for run in runs], axis=0)
    axes.plot(range(1, len(mean) + 1), mean, color="tab:blue", label=f"train reward, mean of {len(runs)} seeds")
    for run in runs:
        points = [_mean(run.before), _mean(run.after)]
        axes.plot([0, len(run.curve) + 1], points, "o", color="tab:red", label="eval days" if run is runs[0] else None)
    axes.axhline(greedily, color="tab:grey", linestyle="--", label=f"greedy on the eval days, {greedily:.3f}")
    axes.axhline(best, color="tab:green", linestyle=":", label=f"best member on the eval days, {best:.3f}")
    axes.set_xlabel("step")
    axes.set_ylabel("reward")
    axes.set_ylim(0, 1)
    axes.legend(loc="lower right", fontsize="small")
    return save_png(figure, path)


# The servers.


@contextmanager
def servers(out: Path, sandbox: str, isolation: str, places: int) -> Iterator[tuple[str, Path]]:
    """The bundle behind both servers: the resources server's URL, and the folder of its rows."""
    bundle = out / "gridsim-v1"
    started: list[subprocess.Popen[str]] = []
    isolated = [] if isolation == "container" else ["--isolation", isolation]
    try:
        _run("agent_env", "example", "gridsim", str(bundle))
        openenv = _serve(
            started,
            out / "openenv.log",
            *("agent_env", "serve", str(bundle), "--port", "0", "--sandbox", sandbox, *isolated),
            *("--max-concurrent-envs", str(places), "--log-level", "warning"),
        )
        gym = "agent_env.training.nemo_gym"
        _run(gym, openenv, str(out / "gym-root"))
        folder = out / "gym-root/resources_servers/gridsim_v1"
        yield _serve(started, out / "serve.log", gym, "serve", str(folder), "--port", "0"), folder / "data"
    finally:
        for process in reversed(started):
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def _run(*module: str) -> None:
    subprocess.run([sys.executable, "-m", *module], check=True, stdout=subprocess.DEVNULL)


def _serve(started: list[subprocess.Popen[str]], log: Path, *module: str) -> str:
    with log.open("w") as stderr:
        process = subprocess.Popen([sys.executable, "-m", *module], stdout=subprocess.PIPE, stderr=stderr, text=True)
    started.append(process)
    assert process.stdout is not None
    for line in process.stdout:
        if " http://" in line:
            return line.strip().rpartition(" ")[2]
    raise SystemExit(f"{' '.join(module)} ended with {process.wait()}; its log: {log}")


# The command.


def main() -> int:
    options = _options()
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        if options.url:
            return asyncio.run(learn(options.url, options.rows, options))
        with servers(options.out, options.sandbox, options.isolation, options.concurrency) as (url, rows):
            return asyncio.run(learn(url, rows, options))
    except AgentEnvError as error:
        _say(f"error: {error}")
        return 1
    except subprocess.CalledProcessError as error:
        return int(error.returncode)
    except KeyboardInterrupt:
        return 130


async def learn(url: str, rows: Path, options: Any) -> int:
    begun = time.monotonic()
    train_rows, eval_rows = read_rows(rows / "train.jsonl"), read_rows(rows / "eval.jsonl", options.eval_days)
    client = RolloutClient(url, pooled=True)
    await client.check()
    player = Player(client, options.concurrency)
    days: dict[str, list[float]] = {}
    greedily = await player.rewards(eval_rows, [playing(greedy_schedule, days)] * len(eval_rows))
    _say(f"greedy: {_mean(greedily):.4f} on {len(eval_rows)} eval days")
    runs = [await train(player, train_rows, eval_rows, seed, options) for seed in range(options.seeds)]
    await client.aclose()
    best = best_member(list(days.values()))
    wall = time.monotonic() - begun
    summary = summary_of(runs, greedily, best) | {
        "rollouts": player.rollouts,
        "lost": player.lost,
        "wall_s": round(wall, 1),
    }
    (options.out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    picture = draw(options.out / "curve.png", runs, _mean(greedily), best[1])
    print(
        f"eval days, before: {_numbers(summary['eval_before'])}; after: {_numbers(summary['eval_after'])}; "
        f"greedy {summary['greedy']:.3f}\n"
        f"ahead of greedy by {summary['ahead_of_greedy']:.4f}, z = {summary['z']}\n"
        f"best member {best[1]:.4f}: {best[0]}\n"
        f"{player.rollouts} rollouts ({player.lost} lost) in {wall:.0f} s, {player.rollouts / wall:.1f} a second\n"
        + "\n".join(f"{what}: {'yes' if met else 'NO'}" for what, met in summary["met"].items())
        + f"\nwrote {options.out / 'summary.json'} and {picture}"
    )
    return 1 if player.lost else 0


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.3f}" for value in values)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40, help="default 40")
    parser.add_argument("--seeds", type=int, default=3, help="runs, with the seeds 0, 1, ...; default 3")
    parser.add_argument("--eval-days", type=int, default=200, help="default 200: all")
    parser.add_argument("--rate", type=float, default=3.0, help="learning rate; default 3")
    parser.add_argument("--concurrency", type=int, default=16, help="rollouts at once; default 16")
    parser.add_argument("--sandbox", default="process", help="default process")
    parser.add_argument("--isolation", default="fork", help="fork (default) or container: a start of its own each")
    parser.add_argument("--url", help="a resources server that runs already; starts both servers by default")
    parser.add_argument("--rows", type=Path, help="with --url: the folder of train.jsonl and eval.jsonl")
    parser.add_argument("--out", type=Path, default=Path("build/grpo"), help="default build/grpo")
    options = parser.parse_args()
    if bool(options.url) != bool(options.rows):
        parser.error("--url and --rows go together")
    return options


if __name__ == "__main__":
    sys.exit(main())
