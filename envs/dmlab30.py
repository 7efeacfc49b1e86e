"""The thirty levels of DMLab-30: their training and test versions and the scores of people and of random actions.

Published with the code of IMPALA (Espeholt et al. 2018): github.com/google-deepmind/scalable_agent, `dmlab30.py`.
"""

from typing import NamedTuple


class PublishedLevel(NamedTuple):
    """A level for training, its test version (mostly the same), and scores per episode on the latter."""

    train: str
    test: str
    human: float
    random: float


LEVELS: tuple[PublishedLevel, ...] = (
    PublishedLevel("rooms_collect_good_objects_train", "rooms_collect_good_objects_test", 10, 0.073),
    PublishedLevel("rooms_exploit_deferred_effects_train", "rooms_exploit_deferred_effects_test", 85.65, 8.501),
    PublishedLevel("rooms_select_nonmatching_object", "rooms_select_nonmatching_object", 65.9, 0.312),
    PublishedLevel("rooms_watermaze", "rooms_watermaze", 54, 4.065),
    PublishedLevel("rooms_keys_doors_puzzle", "rooms_keys_doors_puzzle", 53.8, 4.135),
    PublishedLevel("language_select_described_object", "language_select_described_object", 389.5, -0.07),
    PublishedLevel("language_select_located_object", "language_select_located_object", 280.7, 1.929),
    PublishedLevel("language_execute_random_task", "language_execute_random_task", 254.05, -5.913),
    PublishedLevel("language_answer_quantitative_question", "language_answer_quantitative_question", 184.5, -0.33),
    PublishedLevel("lasertag_one_opponent_small", "lasertag_one_opponent_small", 12.65, -0.224),
    PublishedLevel("lasertag_three_opponents_small", "lasertag_three_opponents_small", 18.55, -0.214),
    PublishedLevel("lasertag_one_opponent_large", "lasertag_one_opponent_large", 18.6, -0.083),
    PublishedLevel("lasertag_three_opponents_large", "lasertag_three_opponents_large", 31.5, -0.102),
    PublishedLevel("natlab_fixed_large_map", "natlab_fixed_large_map", 36.9, 2.173),
    PublishedLevel("natlab_varying_map_regrowth", "natlab_varying_map_regrowth", 24.45, 2.989),
    PublishedLevel("natlab_varying_map_randomized", "natlab_varying_map_randomized", 42.35, 7.346),
    PublishedLevel("skymaze_irreversible_path_hard", "skymaze_irreversible_path_hard", 100, 0.1),
    PublishedLevel("skymaze_irreversible_path_varied", "skymaze_irreversible_path_varied", 100, 14.4),
    PublishedLevel("psychlab_arbitrary_visuomotor_mapping", "psychlab_arbitrary_visuomotor_mapping", 58.75, 0.163),
    PublishedLevel("psychlab_continuous_recognition", "psychlab_continuous_recognition", 58.3, 0.224),
    PublishedLevel("psychlab_sequential_comparison", "psychlab_sequential_comparison", 39.5, 0.129),
    PublishedLevel("psychlab_visual_search", "psychlab_visual_search", 78.5, 0.085),
    PublishedLevel("explore_object_locations_small", "explore_object_locations_small", 74.45, 3.575),
    PublishedLevel("explore_object_locations_large", "explore_object_locations_large", 65.65, 4.673),
    PublishedLevel("explore_obstructed_goals_small", "explore_obstructed_goals_small", 206, 6.76),
    PublishedLevel("explore_obstructed_goals_large", "explore_obstructed_goals_large", 119.5, 2.61),
    PublishedLevel("explore_goal_locations_small", "explore_goal_locations_small", 267.5, 7.66),
    PublishedLevel("explore_goal_locations_large", "explore_goal_locations_large", 194.5, 3.14),
    PublishedLevel("explore_object_rewards_few", "explore_object_rewards_few", 77.7, 2.073),
    PublishedLevel("explore_object_rewards_many", "explore_object_rewards_many", 106.7, 2.438),
)
BY_NAME: dict[str, PublishedLevel] = {level.train: level for level in LEVELS} | {level.test: level for level in LEVELS}
"""The levels by either of their names."""
PATH = "contributed/dmlab30/"
"""Where DeepMind Lab has them."""


def find(level: str) -> PublishedLevel | None:
    """The level of a name, with or without its path; None if it is not in DMLab-30."""
    return BY_NAME.get(level.removeprefix(PATH))
