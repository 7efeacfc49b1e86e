"""Reference scores: of people and random actions on DMLab-30, of an oracle and random actions where measured.

Those of DMLab-30 are in `dmlab30.py`; those of the re-created level come from `python -m benchmarks.environment`, see
`MEASURED`; those of diagnostic tasks follow from their rules.
"""

from collections.abc import Mapping

from envs.dmlab30 import BY_NAME, find
from envs.registry import diagnostic_task
from envs.rooms.config import VARIANTS
from envs.specs import parse_spec, tasks

LEVEL = BY_NAME["rooms_select_nonmatching_object"]
"""The level of DMLab-30 that is re-created."""
ORACLE = 77.0
"""What the oracle that plans (`rooms.planner`) scores on it: the same for every seed, and with nine and fifteen
actions."""

PLAYERS = ("human", "random", "oracle", "memoryless")
"""Those whose scores are known of some tasks."""

MEASURED: dict[str, dict[str, float]] = {
    "full": {"oracle": 77.0, "random": 0.82},
    "transfer": {"oracle": 76.8, "random": 0.81},
    "full-half": {"oracle": 77.0, "random": 0.82},  # this and the next two were not measured: only what is seen differs
    "transfer-choose": {"oracle": 76.8, "random": 0.81},
    "unseen": {"oracle": 76.8, "random": 0.81},
    "full-recall-112": {"oracle": 66.0, "random": 0.06},
    "full-recall-192": {"oracle": 110.0, "random": 0.13},
    "full-recall-292": {"oracle": 165.0, "random": 0.16},
    "full-recall-532": {"oracle": 297.0, "random": 0.33},
    "small": {"oracle": 242.0, "random": 2.99},
    "small-recall": {"oracle": 131.1, "random": 53.77},
    "small-recall-long": {"oracle": 105.8, "random": 43.28},
    "small-recall-18": {"oracle": 160.0, "random": 64.61},
    "small-recall-34": {"oracle": 90.0, "random": 36.69},
    "small-recall-66": {"oracle": 50.0, "random": 20.21},
    "small-recall-130": {"oracle": 20.0, "random": 8.11},
}
"""Measured score per episode by variant: of the oracle (64 episodes, all equal; small-recall and -long: 8192 episodes,
standard errors 0.3 and 0.2; transfer: 256, 0.08) and of uniform random actions (65536 episodes of "full", standard
error 0.03; 32768 of the others, 0.03 to 0.12).

    python -m benchmarks.environment --specs --levels full --episodes 65536
    python -m benchmarks.environment --specs --levels small-recall small-recall-long --episodes 32768 \
        --oracle-episodes 8192
    python -m benchmarks.environment --specs --levels transfer --episodes 32768 --oracle-episodes 256
"""


def reference_scores(spec: str) -> dict[str, float | None]:
    """Mean scores per episode of "human", "random", "oracle" and the best "memoryless" player, None where not known.

    Those of several tasks are means over them, where all have one. No environment is made but of diagnostic tasks, to
    check their fields.

    On the levels of DMLab-30, with any observations and actions, and on the re-created one, "human" and "random" are
    the published scores that define human-normalised ones; elsewhere "random" is from `MEASURED`.

    Raises a ValueError for what is no task.
    """
    by_task = [_scores_of_task(task) for task in tasks(spec)]
    means: dict[str, float | None] = {}
    for player in PLAYERS:
        scores = [known[player] for known in by_task]
        values = [score for score in scores if score is not None]
        means[player] = sum(values) / len(values) if len(values) == len(scores) else None
    return means


def _scores_of_task(spec: str) -> dict[str, float | None]:
    """The same of one task."""
    kind, name, overrides = parse_spec(spec)
    known: dict[str, float | None] = dict.fromkeys(PLAYERS)
    if kind == "diagnostic":
        task, fields = diagnostic_task(name, overrides)
        try:
            task(1, **fields)
        except ValueError as error:
            raise ValueError(f"environment {spec!r}: {error}") from None
        scores = task.scores(**fields)
        return {name: scores.get(name) for name in known}
    if kind == "dmlab":
        level = find(name)
        if level is not None:
            known |= {"human": level.human, "random": level.random}
        if level is LEVEL:
            known["oracle"] = ORACLE
        return known
    if kind != "rooms":
        return known
    if name not in VARIANTS:
        raise ValueError(f"no variant {name!r} of the rooms level; there are: {', '.join(VARIANTS)}")
    is_level = name in ("full", "full-half")
    if not overrides:
        known |= MEASURED[name]
    if is_level and overrides.keys() <= {"actions"}:
        known |= {"human": LEVEL.human, "random": LEVEL.random, "oracle": ORACLE}
    return known


def chance_of_choice(spec: str) -> float | None:
    """Share of correct choices without memory: one of two objects is right. None where choices are not counted."""
    kind, name, _ = parse_spec(spec)
    is_level = kind == "dmlab" and find(name) is LEVEL
    if kind == "rooms" or is_level:
        return 0.5
    return None


def mean_normalised(scores: Mapping[str, float]) -> dict[str, float]:
    """Means over tasks, in %, of scores by spec: human_normalised, human_normalised_capped and oracle_normalised.

    100 * (score - random) / (best - random), with the human or the oracle's score as the best. Capped: no task counts
    for more than 100 (Espeholt et al. 2018, section 5.3). Each mean is over the tasks whose references are known and
    differ, and left out where there are none.
    """
    scales: dict[str, list[float]] = {"human_normalised": [], "human_normalised_capped": [], "oracle_normalised": []}
    for spec, score in scores.items():
        reference = reference_scores(spec)
        random = reference["random"]
        for player in ("human", "oracle"):
            best = reference[player]
            # They are equal where nothing is to be gained, as in "diagnostic:recall,reward=0".
            if best is None or random is None or best == random:
                continue
            scales[f"{player}_normalised"].append(100.0 * (score - random) / (best - random))
    scales["human_normalised_capped"] = [min(value, 100.0) for value in scales["human_normalised"]]

    means = {}
    for name, values in scales.items():
        if values:
            means[name] = sum(values) / len(values)
    return means
