"""`compressive evaluate`: complete episodes with a trained agent, through the same actor that trained it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import tyro
from rich.console import Console

from actors import Actor, Episode
from actors.evaluation import correct_fraction, mean_interval, play_episodes
from actors.recording import Recording, record_episodes
from actors.video import write_video
from agent import Agent
from commands import UserError
from commands.config import RunConfig, read_config
from commands.display import table, task_table
from commands.options import parse
from commands.training import interface, make_agent
from envs import held_out, make_vector, mean_normalised, prepare, tasks
from learner import checkpoints
from learner.storage import StorageError

EVALUATION_SEED = 2
"""Branch of the run's seed sequence from which evaluation draws; training draws from 1."""


@dataclass(frozen=True)
class Options:
    """Plays episodes with the agent of a run and reports its scores with 95 % bootstrap intervals."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """Folder of the run, as `compressive launch` made it; its last readable checkpoint is taken."""
    episodes: int = 128
    """Episodes of each task, rounded up to a multiple of the environments that are played together (up to 64)."""
    greedy: bool = False
    """Take the most probable action rather than a sample of the policy."""
    seed: int = 0
    """Seed of the episodes; never shared with training."""
    env: Annotated[str | None, tyro.conf.arg(metavar="ENV")] = None
    """Another environment than the run's own (in DeepMind Lab: its test level), with the same observations and
    actions."""
    video: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Also film two episodes, of the first task if there are several, to this MP4."""

    def __post_init__(self) -> None:
        if self.episodes < 1:
            raise ValueError(f"episodes: expected 1 or more, got {self.episodes}")
        if self.seed < 0:
            raise ValueError(f"seed: expected 0 or more, got {self.seed}")
        if self.video and self.video.is_dir():
            raise ValueError(f"video: expected a file to write, got the folder {self.video}")


def evaluate(arguments: Sequence[str]) -> None:
    """Runs the command."""
    options = parse(Options, "compressive evaluate", args=list(arguments), config=(tyro.conf.FlagCreatePairsOff,))
    console = Console()
    torch.set_num_threads(1)
    try:
        config = read_config(options.run)
        env = options.env or held_out(config.env)
        prepare(env)
        _require_same_interface(config.env, env)
        if options.video and not filmable(env):
            raise ValueError(f"video: expected images in RGB, got {list(interface(env).observation_shape)} from {env}")
    except (ValueError, FileNotFoundError, ImportError) as error:
        raise UserError(str(error)) from error
    config, agent, checkpoint = load_agent(options.run, console)
    with console.status(f"playing {options.episodes} episodes{' of each task' if len(tasks(env)) > 1 else ''}"):
        episodes = play(config, agent, options.episodes, options.seed, not options.greedy, env)
    summary = evaluation_summary(episodes, env)
    rows = {"checkpoint": str(checkpoint.path), "environment": env} | evaluation_rows(summary)
    if options.video:
        with console.status("filming"):
            try:
                recordings = record(config, agent, 2, options.seed, not options.greedy, env)
                rows["video"] = str(write_video(recordings, options.video))
            except OSError as error:
                raise UserError(f"video: {error}") from error
    if "tasks" in summary:
        console.print(task_table(summary["tasks"]))
    console.print(table("evaluation", rows))


def load_agent(run: Path, console: Console) -> tuple[RunConfig, Agent, checkpoints.Checkpoint]:
    """The agent of a run's last readable checkpoint; says which checkpoints were skipped.

    Raises:
        UserError: if there is no run, or no checkpoint that fits it, or its environment cannot be made.
    """
    try:
        config = read_config(run)
        agent = make_agent(config)
        checkpoint = checkpoints.load_latest(config.checkpoint_url or run)
        agent.load_state_dict(checkpoint.parts["weights"])
    except (ValueError, FileNotFoundError, ImportError, StorageError) as error:
        raise UserError(str(error)) from error
    except (RuntimeError, KeyError) as error:
        raise UserError(f"{checkpoint.path} does not fit {run / 'config.json'}: {error}") from error
    for skipped in checkpoint.skipped:
        console.print(f"[yellow]skipped checkpoint[/] {skipped}", highlight=False, soft_wrap=True)
    return config, agent, checkpoint


def _require_same_interface(trained: str, other: str) -> None:
    expected, actual = interface(trained), interface(other)
    if expected._replace(action_repeat=0) != actual._replace(action_repeat=0):
        raise ValueError(f"env: expected {expected} as in {trained}, got {actual} in {other}")


def make_evaluator(config: RunConfig, agent: Agent, rows: int, seed: int, sample: bool, env: str, film: bool) -> Actor:
    """An actor whose episodes share no seed with training, nor filmed ones with evaluated ones."""
    branch = [config.seed, EVALUATION_SEED, seed, int(film)]
    derived = np.random.SeedSequence(branch).generate_state(1)[0]
    return Actor(make_vector(env, rows), agent, actor_id=0, seed=int(derived), sample=sample, task=env)


def play(
    config: RunConfig, agent: Agent, episodes: int, seed: int = 0, sample: bool = True, env: str | None = None
) -> list[Episode]:
    """Plays episodes of each task with an agent on the CPU, as many together as an actor of the run does.

    Without `env` the tasks are those that the run is tested on.
    """
    played: list[Episode] = []
    for task in tasks(env or held_out(config.env)):
        rows = min(64, config.actors.envs_per_actor, episodes)
        actor = make_evaluator(config, agent, rows, seed, sample, task, film=False)
        try:
            played += play_episodes(actor, episodes)
        finally:
            actor.envs.close()
    return played


def filmable(env: str) -> bool:
    """Whether what an agent sees in an environment is an image in RGB, which can be filmed."""
    shape = interface(env).observation_shape
    return len(shape) == 3 and shape[2] == 3


def record(
    config: RunConfig, agent: Agent, episodes: int, seed: int = 0, sample: bool = True, env: str | None = None
) -> list[Recording]:
    """Plays episodes of the first task one by one, step by step to look at."""
    first = tasks(env or held_out(config.env))[0]
    actor = make_evaluator(config, agent, 1, seed, sample, first, film=True)
    try:
        return record_episodes(actor, episodes)
    finally:
        actor.envs.close()


def evaluation_summary(episodes: list[Episode], env: str) -> dict[str, Any]:
    """What the episodes of all tasks say, ready for JSON; intervals are 95 % bootstrap over episodes.

    Of several tasks: a summary of each, in "tasks", and the means over them.
    """
    names = tuple(dict.fromkeys(tasks(env)))
    if len(names) == 1:
        return _summary(episodes, env)
    parts = [_summary([episode for episode in episodes if episode.task == task], task) for task in names]
    scores = {part["environment"]: part["return"]["mean"] for part in parts}
    return {
        "environment": env,
        "episodes": len(episodes),
        "return": {"mean": float(np.mean(list(scores.values())))},
        **mean_normalised(scores),
        "tasks": parts,
    }


def _summary(episodes: list[Episode], env: str) -> dict[str, Any]:
    """Of one task."""
    scores = np.array([episode.score for episode in episodes])
    mean, low, high = mean_interval(scores)
    correct = sum(episode.metrics.get("correct_choices", 0.0) for episode in episodes)
    wrong = sum(episode.metrics.get("wrong_choices", 0.0) for episode in episodes)
    summary: dict[str, Any] = {
        "environment": env,
        "episodes": len(episodes),
        "return": {"mean": mean, "low": low, "high": high},
        **mean_normalised({env: mean}),
    }
    if correct + wrong:
        right = np.array([episode.metrics.get("correct_choices", 0.0) for episode in episodes])
        choices = right + np.array([episode.metrics.get("wrong_choices", 0.0) for episode in episodes])
        picks = np.random.default_rng(0).integers(len(episodes), size=(2000, len(episodes)))
        ratios = right[picks].sum(axis=1) / np.maximum(choices[picks].sum(axis=1), 1)
        low, high = np.percentile(ratios, [2.5, 97.5])
        summary["correct_choices"] = {"mean": correct_fraction(episodes), "low": float(low), "high": float(high)}
        summary["choices_per_episode"] = float(choices.mean())
    return summary


def evaluation_rows(summary: dict[str, Any]) -> dict[str, str]:
    """The summary as rows of a table."""
    score, played = summary["return"], summary.get("tasks", [])
    rows = {
        "episodes": str(summary["episodes"]) + (f" of {len(played)} tasks" if played else ""),
        "return": f"{score['mean']:.2f}" + ("" if played else f"  [{score['low']:.2f}, {score['high']:.2f}]"),
    }
    if "correct_choices" in summary:
        part = summary["correct_choices"]
        rows["correct choices"] = (
            f"{100 * part['mean']:.1f} %  [{100 * part['low']:.1f}, {100 * part['high']:.1f}]  "
            f"of {summary['choices_per_episode']:.1f} an episode"
        )
    for name in ("human_normalised", "human_normalised_capped", "oracle_normalised"):
        if name in summary and (played or name != "human_normalised_capped"):
            scale = name.replace("_normalised", "-normalised").replace("_", ", ")
            over = f", mean of {sum(name in part for part in played)} of {len(played)} tasks" if played else ""
            rows[scale] = f"{summary[name]:.1f} %{over}"
    return rows
