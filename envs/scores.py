"""What scores to expect: of people and random actions on DMLab-30, of an oracle and random actions where measured, and
how much memory the variants of the re-created level ask for.

The numbers of DMLab-30 are in `dmlab30.py`; those of the re-creation come from `python benchmarks/environment.py
--episodes 16384`; those of diagnostic tasks are exact. Nothing here runs an environment.
"""

from __future__ import annotations

from collections.abc import Mapping

from envs.dmlab30 import BY_NAME, find
from envs.registry import make_vector, parse_spec
from envs.rooms.config import VARIANTS

#: The level that was re-created, in DMLab-30, and the measured score an episode of an oracle there (every seed alike):
#: one teleport less than in the re-creation, which is 4 % faster (docs/environments.md).
LEVEL, ORACLE = BY_NAME["rooms_select_nonmatching_object"], 66.0

#: Measured score an episode by variant: of the oracle (64 episodes, all alike but for small-recall: 4096 episodes,
#: standard error 0.5) and of uniform random actions (16384 episodes of the small levels and of "full", standard errors
#: 0.05 to 0.16; 4096 of the others, 0.10 to 0.20).
MEASURED: dict[str, dict[str, float]] = {
    "full": {"oracle": 67.0, "random": 0.85},
    "full-randomised": {"oracle": 67.0, "random": 0.89},
    "full-recall-112": {"oracle": 66.0, "random": 0.34},
    "full-recall-192": {"oracle": 110.0, "random": 0.25},
    "full-recall-292": {"oracle": 165.0, "random": 0.05},
    "full-recall-532": {"oracle": 297.0, "random": 0.46},
    "small": {"oracle": 242.0, "random": 3.15},
    "small-recall": {"oracle": 131.6, "random": 50.75},
    "small-recall-18": {"oracle": 160.0, "random": 61.66},
    "small-recall-34": {"oracle": 90.0, "random": 34.53},
    "small-recall-66": {"oracle": 50.0, "random": 19.27},
    "small-recall-130": {"oracle": 20.0, "random": 7.73},
}

#: Least and most steps that a memory has to bridge, by variant: from the oracle's last look at an example to its first
#: at the choice about it (`envs.rooms.memory_spans`).
MEMORY_SPANS: dict[str, tuple[int, int]] = {
    "full": (4, 7),
    "full-randomised": (4, 7),
    "full-recall-112": (112, 112),
    "full-recall-192": (192, 192),
    "full-recall-292": (292, 292),
    "full-recall-532": (532, 532),
    "small": (1, 1),
    "small-recall": (4, 66),
    "small-recall-18": (18, 18),
    "small-recall-34": (34, 34),
    "small-recall-66": (66, 66),
    "small-recall-130": (130, 130),
}


def reference_scores(spec: str) -> dict[str, float | None]:
    """{"human", "random", "oracle"}: scores an episode to compare with; None where nobody has measured one.

    On the levels of DMLab-30, whatever an agent sees there and however it acts, and on the re-created one, "human" and
    "random" are the published ones, which human-normalised scores are made of; elsewhere "random" is from `MEASURED`.
    """
    kind, name, overrides = parse_spec(spec)
    unknown: dict[str, float | None] = {"human": None, "random": None, "oracle": None}
    if kind == "diagnostic":
        return unknown | make_vector(spec, 1).scores  # type: ignore[attr-defined]
    if kind == "dmlab":
        level = find(name)
        if level is None:
            return unknown
        return {"human": level.human, "random": level.random, "oracle": ORACLE if level is LEVEL else None}
    if kind != "rooms":
        return unknown
    if name not in VARIANTS:
        raise ValueError(f"no variant {name!r} of the rooms level; there are: {', '.join(VARIANTS)}")
    if overrides:
        return unknown
    if name == "full":
        return {"human": LEVEL.human, "random": LEVEL.random, "oracle": MEASURED["full"]["oracle"]}
    return unknown | MEASURED.get(name, {})


def human_normalised(score: float, spec: str) -> float | None:
    """100 * (score - random) / (human - random), or None where no human score is known."""
    return _normalised(score, spec, "human")


def oracle_normalised(score: float, spec: str) -> float | None:
    """100 * (score - random) / (oracle - random), or None where either has not been measured."""
    return _normalised(score, spec, "oracle")


def _normalised(score: float, spec: str, best: str) -> float | None:
    reference = reference_scores(spec)
    top, random = reference[best], reference["random"]
    return None if top is None or random is None else 100.0 * (score - random) / (top - random)


def mean_normalised(scores: Mapping[str, float]) -> dict[str, float]:
    """Means over tasks, in %, of scores by spec: human_normalised, human_normalised_capped and oracle_normalised.

    Capped: no task counts for more than 100 (Espeholt et al. 2018, section 5.3). Each mean is over the tasks that have
    such a scale, and left out where none has.
    """
    human = [value for spec, score in scores.items() if (value := human_normalised(score, spec)) is not None]
    oracle = [value for spec, score in scores.items() if (value := oracle_normalised(score, spec)) is not None]
    scales = {
        "human_normalised": human,
        "human_normalised_capped": [min(value, 100.0) for value in human],
        "oracle_normalised": oracle,
    }
    return {name: sum(values) / len(values) for name, values in scales.items() if values}
