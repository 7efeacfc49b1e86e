"""Evaluation: complete episodes of an actor or of a scripted policy, and their statistics."""

from collections.abc import Callable

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from actors.actor import Episode, Player
from actors.config import MAX_EPISODE_STEPS
from envs import EnvironmentFailed


class ScriptedActor(Player):
    """Environments played by a policy: "oracle" (the environments' own `oracle_actions`) or "random" (uniform)."""

    def __init__(self, envs: VectorEnv, policy: str, seed: int, task: str = "") -> None:
        super().__init__(envs, actor_id=0, task=task)
        if policy == "oracle" and not hasattr(envs, "oracle_actions"):
            raise ValueError(f"{self.name}: expected an environment that has an oracle (rooms, diagnostic), got none")
        self.policy = policy
        env_seed, action_seed = np.random.SeedSequence(seed).generate_state(2, np.uint64)
        self.generator = np.random.default_rng(action_seed)
        envs.single_action_space.seed(int(action_seed % 2**31))
        self.reset_envs(int(env_seed % 2**31))

    def play(self) -> list[Episode]:
        if self.policy == "oracle":
            actions = self.envs.oracle_actions()  # type: ignore[attr-defined]
        else:
            space = self.envs.single_action_space
            if isinstance(space, spaces.Discrete):
                actions = self.generator.integers(space.n, size=self.envs.num_envs)
            else:
                actions = np.stack([space.sample() for _ in range(self.envs.num_envs)])
        _, _, _, episodes = self.step_envs(actions)
        return episodes


def check_length(actor: Player, counted: NDArray[np.bool_], max_steps: int) -> None:
    """Raises an EnvironmentFailed if an episode in the environments `counted` [N] has not ended after `max_steps`."""
    too_long = np.flatnonzero(counted & (actor.lengths >= max_steps))
    if len(too_long):
        raise EnvironmentFailed(
            f"environment {actor.name}: expected episodes of at most {max_steps} steps "
            f"(max-episode-steps), got one that has not ended; its last action was {actor.last_action[too_long[0]]}"
        )


def play_episodes(
    actor: Player, episodes: int, progress: Callable[[int], None] | None = None, max_steps: int = MAX_EPISODE_STEPS
) -> list[Episode]:
    """Plays at least `episodes` complete episodes, the same number in every environment.

    The first episodes of each environment count, not the first to end, which would over-represent short ones.

    Args:
        actor: at the start of its environments' first episodes.
        episodes: rounded up to a multiple of the number of environments.
        progress: called with the number of episodes so far.
        max_steps: of an episode; a longer one raises an EnvironmentFailed.
    """
    if episodes < 1:
        raise ValueError(f"episodes: expected 1 or more, got {episodes}")
    each = -(-episodes // actor.envs.num_envs)  # rounded up
    counts = np.zeros(actor.envs.num_envs, dtype=int)
    kept: list[Episode] = []
    with actor.acting():
        while counts.min() < each:
            # An environment that has played its share goes on, and its episodes do not count.
            ended = actor.play()
            for episode in ended:
                if counts[episode.environment] < each:
                    counts[episode.environment] += 1
                    kept.append(episode)
            if ended and progress is not None:
                progress(len(kept))
            check_length(actor, counts < each, max_steps)
    return kept


def correct_fraction(episodes: list[Episode]) -> float:
    """Correct choices over all choices; NaN if there were none or the environment does not count them."""
    correct = sum(episode.metrics.get("correct_choices", 0) for episode in episodes)
    wrong = sum(episode.metrics.get("wrong_choices", 0) for episode in episodes)
    if correct + wrong == 0:
        return float("nan")
    return correct / (correct + wrong)
