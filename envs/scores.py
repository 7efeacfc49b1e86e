"""Reference scores: of people and random actions on DMLab-30, of an oracle and random actions where measured.

Those of DMLab-30 are in `dmlab30.py`; those of the re-created level come from `python -m benchmarks.environment`, see
`MEASURED`; those of diagnostic tasks follow from their rules.
"""

from collections.abc import Mapping

from envs.dmlab30 import BY_NAME, find
from envs.registry import diagnostic_task
from envs.rooms.config import VARIANTS
from envs.specs import Spec, parse_spec, tasks

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
    the published scores that define human-normalized ones; elsewhere "random" is from `MEASURED`.

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
    parsed = parse_spec(spec)
    known: dict[str, float] = {}
    if parsed.kind == "diagnostic":
        known = _scores_by_rules(parsed, spec)
    elif parsed.kind == "dmlab":
        known = _scores_of_lab(parsed.name)
    elif parsed.kind == "rooms":
        known = _scores_of_rooms(parsed)
    return {player: known.get(player) for player in PLAYERS}


def _scores_by_rules(spec: Spec, typed: str) -> dict[str, float]:
    """What is known of a diagnostic task; raises a ValueError, with the spec as typed, for impossible fields."""
    task, fields = diagnostic_task(spec.name, spec.overrides)
    try:
        task(1, **fields)
    except ValueError as error:
        raise ValueError(f"environment {typed!r}: {error}") from None
    return task.scores(**fields)


def _scores_of_lab(name: str) -> dict[str, float]:
    """What is known of a level of DeepMind Lab; empty for levels that are not in DMLab-30."""
    level = find(name)
    if level is None:
        return {}
    scores = {"human": level.human, "random": level.random}
    if level is LEVEL:
        scores["oracle"] = ORACLE
    return scores


def _scores_of_rooms(spec: Spec) -> dict[str, float]:
    """What is known of a variant of the re-created level; raises a ValueError if there is no such variant."""
    name = spec.name
    if name not in VARIANTS:
        raise ValueError(f"no variant {name!r} of the rooms level; there are: {', '.join(VARIANTS)}")
    # The level itself has the published scores, with any of its sets of actions. Other fields make another task.
    is_level = name in ("full", "full-half")
    if is_level and spec.overrides.keys() <= {"actions"}:
        return {"human": LEVEL.human, "random": LEVEL.random, "oracle": ORACLE}
    if not spec.overrides:
        return MEASURED[name]
    return {}


def chance_of_choice(spec: str) -> float | None:
    """Share of correct choices without memory: one of two objects is right. None where choices are not counted."""
    kind, name, _ = parse_spec(spec)
    is_level = kind == "dmlab" and find(name) is LEVEL
    if kind == "rooms" or is_level:
        return 0.5
    return None


def mean_normalized(scores: Mapping[str, float]) -> dict[str, float]:
    """Means over tasks, in %, of scores by spec: human_normalized, human_normalized_capped and oracle_normalized.

    100 * (score - random) / (best - random), with the human or the oracle's score as the best. Capped: no task counts
    for more than 100 (Espeholt et al. 2018, section 5.3). Each mean is over the tasks whose references are known and
    differ, and left out where there are none.
    """
    scales: dict[str, list[float]] = {"human_normalized": [], "human_normalized_capped": [], "oracle_normalized": []}
    for spec, score in scores.items():
        reference = reference_scores(spec)
        random = reference["random"]
        for player in ("human", "oracle"):
            best = reference[player]
            # They are equal where nothing is to be gained, as in "diagnostic:recall,reward=0".
            if best is None or random is None or best == random:
                continue
            scales[f"{player}_normalized"].append(100.0 * (score - random) / (best - random))
    scales["human_normalized_capped"] = [min(value, 100.0) for value in scales["human_normalized"]]

    means = {}
    for name, values in scales.items():
        if values:
            means[name] = sum(values) / len(values)
    return means
