"""Evaluation: complete episodes of an actor or of a scripted policy, and their statistics."""

import math
from collections.abc import Callable

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from actors.actor import Episode, Player, stream_seeds
from actors.config import MAX_EPISODE_STEPS
from envs import EnvironmentFailed

CHOICES = ("correct_choices", "wrong_choices")
"""Counters of an episode that environments with right and wrong choices have."""


class ScriptedActor(Player):
    """Environments played by a policy: "oracle" (the environments' own `oracle_actions`) or "random" (uniform)."""

    def __init__(self, envs: VectorEnv, policy: str, seed: int, task: str = "") -> None:
        super().__init__(envs, actor_id=0, task=task)
        if policy not in ("oracle", "random"):
            raise ValueError(f"policy: expected oracle or random, got {policy!r}")
        has_oracle = hasattr(envs, "oracle_actions")
        if policy == "oracle" and not has_oracle:
            raise ValueError(f"{self.name}: expected an environment that has an oracle (rooms, diagnostic), got none")
        self.policy = policy
        env_seed, action_seed = stream_seeds(seed)
        self.generator = np.random.default_rng(action_seed)
        envs.single_action_space.seed(action_seed % 2**31)
        self.reset_envs(env_seed % 2**31)

    def play(self) -> list[Episode]:
        actions = self._choose()
        _, _, _, episodes = self.step_envs(actions)
        return episodes

    def _choose(self) -> np.ndarray:
        """The policy's actions [B, ...]."""
        if self.policy == "oracle":
            return self.envs.oracle_actions()  # type: ignore[attr-defined]
        space = self.envs.single_action_space
        rows = self.envs.num_envs
        if isinstance(space, spaces.Discrete):
            return self.generator.integers(space.n, size=rows)
        samples = [space.sample() for _ in range(rows)]
        return np.stack(samples)


def check_length(actor: Player, counted: NDArray[np.bool_], max_steps: int) -> None:
    """Raises an EnvironmentFailed if an episode in the environments `counted` [N] has not ended after `max_steps`."""
    is_too_long = counted & (actor.lengths >= max_steps)
    too_long = np.flatnonzero(is_too_long)
    if len(too_long):
        last_action = actor.last_action[too_long[0]]
        hint = "; max_episode_steps=N in its spec ends them" if actor.name.startswith("gym:") else ""
        raise EnvironmentFailed(
            f"environment {actor.name}: expected episodes of at most {max_steps} steps "
            f"(max-episode-steps), got one that has not ended; its last action was {last_action}{hint}"
        )


def play_episodes(
    actor: Player, episodes: int, progress: Callable[[int], None] | None = None, max_steps: int = MAX_EPISODE_STEPS
) -> list[Episode]:
    """Plays at least `episodes` complete episodes, the same number in every environment.

    The first episodes of each environment count, not the first to end, which would over-represent short ones.

    Args:
        actor: at the start of its environments' first episodes.
        episodes: rounded up to a multiple of the number of environments.
        progress: called after each step with the number of episodes so far.
        max_steps: of an episode; a longer one raises an EnvironmentFailed.
    """
    if episodes < 1:
        raise ValueError(f"episodes: expected 1 or more, got {episodes}")
    num_envs = actor.envs.num_envs
    each = math.ceil(episodes / num_envs)
    counts = np.zeros(num_envs, dtype=int)
    kept: list[Episode] = []
    with actor.acting():
        while counts.min() < each:
            # An environment that has played its share goes on, and its episodes do not count.
            ended = actor.play()
            for episode in ended:
                index = episode.environment
                if counts[index] < each:
                    counts[index] += 1
                    kept.append(episode)
            if progress is not None:
                progress(len(kept))
            unfinished = counts < each
            check_length(actor, unfinished, max_steps)
    return kept


def counters_of(episodes: list[Episode]) -> dict[str, np.ndarray]:
    """Each counter that environments name, but for those of choices: its values at the ends of episodes."""
    found: dict[str, list[float]] = {}
    for episode in episodes:
        for name, value in episode.metrics.items():
            if name not in CHOICES:
                found.setdefault(name, []).append(value)
    return {name: np.array(values) for name, values in found.items()}


def correct_fraction(episodes: list[Episode]) -> float:
    """Correct choices over all choices; NaN if there were none or the environment does not count them."""
    correct = sum(episode.metrics.get("correct_choices", 0) for episode in episodes)
    wrong = sum(episode.metrics.get("wrong_choices", 0) for episode in episodes)
    choices = correct + wrong
    if choices == 0:
        return float("nan")
    return correct / choices
