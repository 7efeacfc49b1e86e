"""Evaluation: complete episodes through the same actor that trains, and what they say together."""

from collections.abc import Callable

import numpy as np

from actors.actor import Actor, Episode


def play_episodes(actor: Actor, episodes: int, progress: Callable[[int], None] | None = None) -> list[Episode]:
    """Plays at least `episodes` complete episodes, equally many in every environment.

    Counting the first episodes of each environment, rather than the first to end, keeps short ones from being
    over-represented.

    Args:
        actor: an actor at the beginning of its environments' first episodes.
        episodes: rounded up to a multiple of the number of environments.
        progress: called with the number of episodes counted so far.
    """
    if episodes < 1:
        raise ValueError(f"episodes: expected 1 or more, got {episodes}")
    each = -(-episodes // actor.envs.num_envs)
    counts = np.zeros(actor.envs.num_envs, dtype=int)
    kept: list[Episode] = []
    actor.core_state = actor.agent.core.with_cache(actor.core_state)
    while counts.min() < each:
        ended = actor.play()
        for episode in ended:
            if counts[episode.environment] < each:
                counts[episode.environment] += 1
                kept.append(episode)
        if ended and progress is not None:
            progress(len(kept))
    return kept


def mean_interval(values: np.ndarray, seed: int = 0, resamples: int = 2000) -> tuple[float, float, float]:
    """Mean of `values` [N] and its 95 % bootstrap interval (percentiles of resampled means)."""
    values = np.asarray(values, dtype=np.float64)
    choices = np.random.default_rng(seed).integers(len(values), size=(resamples, len(values)))
    low, high = np.percentile(values[choices].mean(axis=1), [2.5, 97.5])
    return float(values.mean()), float(low), float(high)


def correct_fraction(episodes: list[Episode]) -> float:
    """Correct choices over all choices; NaN where none was made or the environment does not count them."""
    correct = sum(episode.metrics.get("correct_choices", 0) for episode in episodes)
    wrong = sum(episode.metrics.get("wrong_choices", 0) for episode in episodes)
    return correct / (correct + wrong) if correct + wrong else float("nan")
