"""`compressive evaluate`: complete episodes, with trained agents through the actor that trained them or by a script."""

import dataclasses
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
import tyro
from rich.console import Console
from rich.markup import escape

from actors import Actor, ActorsConfig, Episode
from actors.evaluation import ScriptedActor, correct_fraction, mean_interval, play_episodes
from actors.recording import Recording, record_episodes
from agent import Agent
from agent.fields import Count, Positive
from commands.options import PlayOptions, parse, user_errors
from envs import (
    foreign_code,
    held_out,
    limit_calls,
    make_vector,
    mean_normalised,
    prepare,
    require_consent,
    tasks,
)
from envs.guard import close
from learner import checkpoints
from learner.files import replacing, require_output
from learner.storage import StorageError
from reports.video import write_video
from training import UserError
from training.config import RunConfig, read_config
from training.console import SCALES, evaluation_rows, evaluation_table, say_skipped, table, task_table
from training.impala import interface, make_agent

EVALUATION_SEED = 2
"""Branch of the run's seed sequence from which evaluation draws; training draws from 1."""


@dataclass(frozen=True)
class Options(PlayOptions):
    """Plays episodes with the agents of runs and reports their scores with 95 % bootstrap intervals.

    compressive evaluate runs/NAME                              the agent of a run
    compressive evaluate runs/A runs/B --greedy                 of several, in one table
    compressive evaluate --policy oracle --env rooms:full       what can be reached there, or by chance (random)
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[DIR [DIR ...]]")] = ()
    """Folders of runs, as `compressive launch` made them; of each the last readable checkpoint is taken."""
    policy: Literal["agent", "oracle", "random"] = "agent"
    """Who plays: the agents of the runs, or in an environment (--env) without any run an oracle that reads its state,
    or uniform random actions."""
    episodes: Positive = 128
    """Episodes of each task, rounded up to a multiple of the environments that are played together (up to 64)."""
    greedy: bool = False
    """Take the most probable action rather than a sample of the policy."""
    seed: Count = 0
    """Seed of the episodes; never shared with training."""
    env: Annotated[str | None, tyro.conf.arg(metavar="ENV")] = None
    """Another environment than the run's own (in DeepMind Lab: its test level), with the same observations and
    actions."""
    json: bool = False
    """Print JSON, a list with an object for each run, instead of a table."""
    video: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Also film two episodes, of the first task if there are several, to this MP4."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.policy == "agent" and not self.runs:
            raise ValueError("expected DIR, the folder of a run, or --policy oracle or random with --env; got neither")
        if self.policy != "agent" and (self.runs or not self.env):
            got = f"the run {self.runs[0]}" if self.runs else "no --env"
            raise ValueError(f"policy: expected --env and no run for {self.policy}, got {got}")
        if self.video and len(self.runs) != 1:
            raise ValueError(f"video: expected one run to film, got {len(self.runs)}")


class Player(NamedTuple):
    """A run whose agent is about to play in `env`."""

    run: Path
    config: RunConfig
    agent: Agent
    env: str
    checkpoint: checkpoints.Checkpoint


def evaluate(arguments: Sequence[str]) -> None:
    """Runs the command."""
    options = parse(Options, "compressive evaluate", args=list(arguments), config=(tyro.conf.FlagCreatePairsOff,))
    # With JSON the standard output is for that alone; "[...]" in a path and ":x:" in an environment mean themselves.
    console = Console(stderr=options.json, markup=False, emoji=False)
    torch.set_num_threads(1)
    if options.policy != "agent":
        _show([_scripted(options, console)], options, console)
        return
    if options.video:
        with user_errors("video"):
            require_output(options.video)
    players = [load_player(run, console, options, options.env) for run in options.runs]  # all, before any plays
    if options.video and not filmable(players[0].env):
        shape = list(interface(players[0].env).observation_shape)
        raise UserError(f"video: expected images in RGB, got {shape} from {players[0].env}")
    evaluated = []
    for player in players:
        each = " of each task" if len(tasks(player.env)) > 1 else ""
        with console.status(f"playing {options.episodes} episodes{each} with {escape(str(player.run))}"):
            episodes = play(player.config, player.agent, options.episodes, options.seed, not options.greedy, player.env)
        about = {"run": str(player.run), "checkpoint": str(player.checkpoint.path), "core": player.config.core_name}
        evaluated.append(about | evaluation_summary(episodes, player.env))
    if options.video:
        config, agent, env = players[0].config, players[0].agent, players[0].env
        with console.status("filming"):
            try:
                film(record(config, agent, 2, options.seed, not options.greedy, env), options.video)
            except OSError as error:
                raise UserError(f"video: {error}") from error
    _show(evaluated, options, console)


def load_player(run: Path, console: Console, options: PlayOptions, env: str | None = None) -> Player:
    """The agent of a run's last readable checkpoint, on the CPU, to play in `env` or what the run is tested on.

    Says which checkpoints were skipped. The environment that the user names is allowed to run its code.

    Raises:
        UserError: if the folder is no run, has no checkpoint or a damaged one, the environment is of another shape, or
            the run's own needs a permission.
    """
    try:
        config = read_config(run)
        require_consent(config.env, options.allow_env, env)
        config = dataclasses.replace(config, actors=options.limits(config.actors))
        limit_calls(config.actors.step_seconds)
        env = env or held_out(config.env)
        prepare(env)
        _require_same_interface(config.env, env)
        agent = make_agent(config)
        checkpoint = checkpoints.load_latest(config.checkpoint_url or run)
    except (ValueError, FileNotFoundError, ImportError, StorageError) as error:
        raise UserError(str(error)) from error
    try:
        agent.load_state_dict(checkpoint.parts["weights"])
    except (RuntimeError, KeyError) as error:
        raise UserError(f"{checkpoint.path} does not fit {run / 'config.json'}: {error}") from error
    say_skipped(console, checkpoint.skipped)
    return Player(run, config, agent, env, checkpoint)


def permissions(*envs: str) -> str:
    """The words behind a command that allow environments of the user's own, which begin with a space; none if all are
    of this program or installed."""
    names = ",".join(dict.fromkeys(name for env in envs for name in foreign_code(env)))
    return f" --allow-env {shlex.quote(names)}" if names else ""


def _scripted(options: Options, console: Console) -> dict[str, Any]:
    """The summary of what a scripted policy plays."""
    env = options.env or ""
    limit_calls(options.limits(ActorsConfig()).step_seconds)
    try:
        names = tasks(env)
        prepare(env)
        with console.status(f"playing {options.episodes} episodes{' of each task' if len(names) > 1 else ''}"):
            episodes = [episode for task in names for episode in play_script(options.policy, task, options)]
    except (ValueError, ImportError) as error:
        raise UserError(str(error)) from error
    return {"policy": options.policy, **evaluation_summary(episodes, env)}


def play_script(policy: str, task: str, options: Options) -> list[Episode]:
    """Plays episodes of a task by a policy of `ScriptedActor`."""
    seed = np.random.SeedSequence([EVALUATION_SEED, options.seed]).generate_state(1)[0]
    envs = make_vector(task, min(64, options.episodes))
    try:
        actor = ScriptedActor(envs, policy, int(seed), task)
        return play_episodes(actor, options.episodes, max_steps=options.limits(ActorsConfig()).max_episode_steps)
    finally:
        close(envs, task)


def _show(evaluated: list[dict[str, Any]], options: Options, console: Console) -> None:
    """Prints summaries as JSON, or one as a table of its own and several as rows of one."""
    if options.json:
        print(checkpoints.format_json(evaluated, indent=2))
        return
    if len(evaluated) > 1:
        console.print(evaluation_table(evaluated))
        return
    (summary,) = evaluated
    rows: dict[str, str] = {name: summary[name] for name in ("policy", "checkpoint", "environment") if name in summary}
    rows |= evaluation_rows(summary)
    if options.video:
        rows["video"] = str(options.video)
    if "tasks" in summary:
        console.print(task_table(summary["tasks"]))
    console.print(table("evaluation", rows))


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
            played += play_episodes(actor, episodes, max_steps=config.actors.max_episode_steps)
        finally:
            actor.close()
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
        return record_episodes(actor, episodes, config.actors.max_episode_steps)
    finally:
        actor.close()


def film(recordings: Sequence[Recording], path: Path) -> Path:
    """Writes a video as `write_video` does; it is there whole or as it was before.

    Raises:
        OSError: if it cannot be written, or would replace what is no regular file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        write_video(recordings, temporary)
    return path


def evaluation_summary(episodes: list[Episode], env: str) -> dict[str, Any]:
    """What the episodes of all tasks say, ready for JSON; intervals are 95 % bootstrap over episodes.

    Of several tasks: a summary of each, in "tasks", and the means over them.
    """
    names = tasks(env)
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
    ends = mean_normalised({env: low}), mean_normalised({env: high})
    summary |= {f"{name}_interval": [end[name] for end in ends] for name in SCALES if name in summary}
    if correct + wrong:
        right = np.array([episode.metrics.get("correct_choices", 0.0) for episode in episodes])
        choices = right + np.array([episode.metrics.get("wrong_choices", 0.0) for episode in episodes])
        picks = np.random.default_rng(0).integers(len(episodes), size=(2000, len(episodes)))
        ratios = right[picks].sum(axis=1) / np.maximum(choices[picks].sum(axis=1), 1)
        low, high = np.percentile(ratios, [2.5, 97.5])
        summary["correct_choices"] = {"mean": correct_fraction(episodes), "low": float(low), "high": float(high)}
        summary["choices_per_episode"] = float(choices.mean())
    return summary
