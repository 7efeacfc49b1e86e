"""Plays complete episodes with a run's agent or a scripted policy, and summarizes their scores.

Seeds are never shared with training, and those of filmed episodes not with evaluated ones.
"""

import dataclasses
import math
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import numpy as np

from actors import Actor, ActorsConfig, Episode
from actors.actor import Player
from actors.evaluation import ScriptedActor, counters_of, play_episodes
from actors.intervals import mean_interval, share_interval
from actors.recorder import record_episodes
from actors.recording import Recording
from agent import Agent
from agent.encoders import part_shapes
from envs import (
    drawing,
    held_out,
    limit_calls,
    make_vector,
    mean_normalized,
    parse_spec,
    prepare,
    require_consent,
    tasks,
    untaught,
    with_view,
)
from envs.guard import closed_on_error
from storage.checkpoints import Checkpoint, load_weights
from storage.files import Json
from storage.run import Run
from training.config import RunConfig
from training.console import quantity
from training.factories import interface, make_agent, require_interface
from training.plain import read_config
from training.trust import checkpoint_place, require_core

EVALUATION_SEED = 2
"""Branch of the run's seed sequence from which evaluation draws; training draws from branch 1."""
MOST_ROWS = 64
"""Most environments that play together."""
SCALES = ("human_normalized", "human_normalized_capped", "oracle_normalized")
"""Scores in % of what people or an oracle reach, in summaries."""
VIEW = ("image_height", "image_width", "shrink")
"""Fields of the view of the rooms level and of DeepMind Lab; see `envs.with_view`."""


class TrainedAgent(NamedTuple):
    """A run's agent, and the environment in which it is to play."""

    run: Run
    config: RunConfig
    agent: Agent
    env: str
    checkpoint: Checkpoint


def tested_on(config: RunConfig) -> str:
    """The environment in which a run is evaluated."""
    return held_out(config.eval_env or config.env)


def load_trained_agent(
    run: Run,
    allow: str | None = None,
    env: str | None = None,
    limits: Callable[[ActorsConfig], ActorsConfig] = lambda actors: actors,
) -> TrainedAgent:
    """The agent of a run's last readable checkpoint, or of the one that the run names, on the CPU.

    Args:
        allow: code that the run may name, and the URL of its checkpoints; see `training.trust`.
        env: where to play, which may run its own code; by default the environment on which the run is tested. It gets
            the view of the training, see `envs.with_view`.

    Raises:
        FileNotFoundError, ValueError, ImportError, StorageError: if the folder is not a run, has no readable
            checkpoint, or does not fit the environment; or if the run's environment or core needs a permission.
    """
    # Another person's run runs no code and reads no URL without permission.
    config: RunConfig = read_config(run)
    for named in (config.env, config.eval_env):
        if named:
            require_consent(named, allow, env)
    require_core(config, allow)
    place = checkpoint_place(config, run, allow)
    config = dataclasses.replace(config, actors=limits(config.actors))
    limit_calls(config.actors.step_seconds)
    # The environment may be another than that of the training, if observations and actions are the same. The level is
    # shown as the agent knows it.
    env = with_view(env, config.env) if env else tested_on(config)
    prepare(env)
    require_interface(env, like=untaught(config.env))
    agent = make_agent(config)
    checkpoint = load_weights(agent.load_state_dict, place, run.config_file, run.checkpoint)
    return TrainedAgent(run, config, agent.alone(), env, checkpoint)


def make_evaluator(
    config: RunConfig, agent: Agent, rows: int, seed: int, sample: bool, env: str, film: bool, number: int = 0
) -> Actor:
    """An actor whose seed depends on the run's seed, its own, whether it is filmed, and the number of its task."""
    # What people see in a film is not what was measured.
    own_seed = _seed(_of_task([config.seed, EVALUATION_SEED, seed, int(film)], number))
    envs = make_vector(env, rows)
    precision = config.actors.precision
    with closed_on_error(envs, env):
        return Actor(envs, agent, actor_id=0, seed=own_seed, sample=sample, task=env, precision=precision)


def _of_task(branch: list[int], number: int) -> list[int]:
    """The seed branch of a task. Related tasks must not share one, or they would have the same episodes."""
    return [*branch, number] if number else branch


def _seed(branch: list[int]) -> int:
    """The seed at the end of a branch of seeds."""
    state = np.random.SeedSequence(branch).generate_state(1)
    return int(state[0])


def count_played(episodes: int, together: int, env: str) -> int:
    """How many episodes are played if some of each task are asked for: as many in each of the environments."""
    rows = _rows(episodes, together)
    return math.ceil(episodes / rows) * rows * len(tasks(env))


def _rows(episodes: int, together: int) -> int:
    """How many environments play together; more than episodes would play in vain."""
    return min(MOST_ROWS, together, episodes)


def play(
    config: RunConfig,
    agent: Agent,
    episodes: int,
    seed: int = 0,
    sample: bool = True,
    env: str | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Episode]:
    """Plays episodes of each task, as many environments together as an actor of the run has. The agent is on the CPU.

    Args:
        sample: draw actions from the policy; if false, take the most probable one.
        env: by default the tasks on which the run is tested.
        progress: called with the number of episodes so far, over all tasks.
    """
    limit_calls(config.actors.step_seconds)  # that of the run which was loaded last may be another
    rows = _rows(episodes, config.actors.envs_per_actor)

    def make(task: str, number: int) -> Actor:
        return make_evaluator(config, agent, rows, seed, sample, task, film=False, number=number)

    return _play(make, env or tested_on(config), episodes, config.actors.max_episode_steps, progress)


def evaluate(config: RunConfig, agent: Agent, progress: Callable[[int], None] = lambda done: None) -> Json:
    """The summary of the evaluation that a run's configuration asks for; the agent may be on any device."""
    # The agent goes on learning where it is. A copy is not compiled, so that other shapes cost nothing.
    copied = agent.alone().to("cpu")
    episodes = play(config, copied, config.eval_episodes, sample=not config.eval_greedy, progress=progress)
    return summarize(episodes, tested_on(config)) | {"greedy": config.eval_greedy, "seed": 0}


def play_script(
    policy: str, env: str, episodes: int, seed: int, max_steps: int, progress: Callable[[int], None]
) -> list[Episode]:
    """Plays episodes of each task by a policy of `actors.evaluation.ScriptedActor`; arguments as in `play`."""
    rows = _rows(episodes, episodes)

    def make(task: str, number: int) -> ScriptedActor:
        own_seed = _seed(_of_task([EVALUATION_SEED, seed], number))
        envs = make_vector(task, rows)
        with closed_on_error(envs, task):
            return ScriptedActor(envs, policy, own_seed, task)

    return _play(make, env, episodes, max_steps, progress)


def _play(
    make: Callable[[str, int], Player], env: str, episodes: int, max_steps: int, progress: Callable[[int], None]
) -> list[Episode]:
    """Plays episodes of each task of an environment by the actor that `make` makes for it and its number."""
    played: list[Episode] = []
    for number, task in enumerate(tasks(env)):
        actor = make(task, number)
        before = len(played)

        def count(done: int, before: int = before) -> None:
            progress(before + done)

        try:
            played += play_episodes(actor, episodes, count, max_steps)
        finally:
            actor.close()
    return played


def record(
    config: RunConfig,
    agent: Agent,
    episodes: int,
    seed: int = 0,
    sample: bool | None = None,
    env: str | None = None,
    in_detail: bool = True,
    with_effects: bool = False,
    progress: Callable[[int, int], None] = lambda finished, step: None,
) -> list[Recording]:
    """Plays episodes of the first task one after the other and keeps every step of them.

    Actions are drawn from the policy or, without `sample`, the most probable ones; None is as in the run's evaluations.
    An environment whose observations are no images is asked to draw itself. `in_detail`, `with_effects` and `progress`
    are those of `record_episodes`.
    """
    limit_calls(config.actors.step_seconds)
    if sample is None:
        sample = not config.eval_greedy
    shown = tasks(env or tested_on(config))[0]
    column = value_column(config, shown)
    # People see nothing in a vector.
    has_images = any(len(shape) == 3 for shape in part_shapes(interface(shown).observation_shape))
    if not has_images:
        shown = drawing(shown)
    actor = make_evaluator(config, agent, 1, seed, sample, shown, film=True)
    try:
        max_steps = config.actors.max_episode_steps
        return record_episodes(actor, episodes, max_steps, in_detail, with_effects, progress, column)
    finally:
        actor.close()


def value_column(config: RunConfig, task: str) -> int:
    """Which of the agent's values is that of a task; for a task that it was not trained on, that of the first one.

    A task may be in the version that is tested, and with the view of the training.
    """
    if not config.learner.popart:
        return 0

    # All tasks of a training have the same view. The task itself comes before another one's version.
    for view in ((), VIEW):
        for version in (str, held_out):
            for column, trained in enumerate(tasks(config.env)):
                if _identity(version(trained), view) == _identity(task, view):
                    return column
    return 0


def _identity(task: str, ignored: Sequence[str]) -> Hashable:
    """Equal for specs of one task that differ in these fields at most."""
    spec = parse_spec(task)
    overrides = {name: value for name, value in spec.overrides.items() if name not in ignored}
    return spec._replace(overrides=overrides).identity


def recording_title(run: Run, config: RunConfig, steps: int) -> str:
    """The title of recordings: the run and how long its agent had learned."""
    title = f"{run.name}, {quantity(steps)} steps"
    repeat = interface(config.env).action_repeat
    if repeat > 1:
        title += f" ({quantity(steps * repeat)} frames)"
    return title


def summarize(episodes: list[Episode], env: str) -> Json:
    """Scores of the episodes of all tasks, ready for JSON; intervals are 95 % over episodes (`actors.intervals`).

    A single episode has no interval. If there are several tasks, "tasks" has a summary of each, and scores are means
    over tasks, whose episodes are drawn task by task.
    """
    names = tasks(env)
    if len(names) == 1:
        return _summarize(episodes, env)
    parts = []
    scores = []
    mean_scores = {}
    for task in names:
        played = [episode for episode in episodes if episode.task == task]
        part = _summarize(played, task)
        parts.append(part)
        scores.append(_scores(played))
        mean_scores[task] = part["return"]["mean"]
    # Episodes are drawn within their task, so that each task keeps its weight.
    interval = mean_interval(*scores)
    return {
        "environment": env,
        "episodes": len(episodes),
        "return": _known(*interval),
        **mean_normalized(mean_scores),
        "tasks": parts,
    }


def _scores(episodes: list[Episode]) -> np.ndarray:
    return np.array([episode.score for episode in episodes])


def _known(mean: float, low: float, high: float) -> dict[str, float]:
    """A mean and the ends of its interval, if it has one."""
    if math.isnan(low):
        return {"mean": mean}
    return {"mean": mean, "low": low, "high": high}


def as_metrics(summary: Json) -> dict[str, float]:
    """The scores of a summary and the ends of their intervals as metrics, "evaluation/return" and alike."""
    found = {"evaluation/episodes": float(summary["episodes"])}
    scores = dict(summary)
    for name, value in scores.pop("counters", {}).items():
        scores[f"counter/{name}"] = value
    for name, value in scores.items():
        metric = f"evaluation/{name}"
        if isinstance(value, dict) and "mean" in value:
            found[metric] = value["mean"]
            # A single episode has no interval.
            for end in ("low", "high"):
                if end in value:
                    found[f"{metric}_{end}"] = value[end]
        elif name in SCALES:
            found[metric] = value
            if f"{name}_interval" in summary:
                low, high = summary[f"{name}_interval"]
                found[f"{metric}_low"] = low
                found[f"{metric}_high"] = high
    return found


def _summarize(episodes: list[Episode], env: str) -> Json:
    """The summary of one task."""
    # The return, and what it is on the scales of people and of the oracle.
    mean, low, high = mean_interval(_scores(episodes))
    summary: Json = {
        "environment": env,
        "episodes": len(episodes),
        "return": _known(mean, low, high),
        **mean_normalized({env: mean}),
    }
    # On each scale a better score is not worse, so the ends of the interval are those of the scaled score.
    if "low" in summary["return"]:
        lows = mean_normalized({env: low})
        highs = mean_normalized({env: high})
        for name in SCALES:
            if name in summary:
                summary[f"{name}_interval"] = [lows[name], highs[name]]
    # Choices, in levels that count them.
    right = _counts(episodes, "correct_choices")
    choices = right + _counts(episodes, "wrong_choices")
    if choices.any():
        summary["correct_choices"] = _known(*share_interval(right, choices))
        summary["choices_per_episode"] = float(choices.mean())
    # Other counters of the environment.
    counters = {name: _known(*mean_interval(values)) for name, values in counters_of(episodes).items()}
    if counters:
        summary["counters"] = counters
    return summary


def _counts(episodes: list[Episode], name: str) -> np.ndarray:
    """A counter of each episode; 0 where an episode has none."""
    return np.array([episode.metrics.get(name, 0.0) for episode in episodes])
