"""What scores to expect: human and random players on the original level, an oracle and random on the re-created one.

The numbers of the original are DeepMind's (DMLab-30, Leibo et al. 2018; Beattie et al. 2016); those of the re-creation
come from `python benchmarks/environment.py --episodes 16384`; those of diagnostic tasks are exact. Nothing here runs an
environment.
"""

from __future__ import annotations

from envs.registry import make_vector, parse_spec
from envs.rooms.config import VARIANTS

#: Score an episode of people and of uniform random actions on rooms_select_nonmatching_object_test.
HUMAN, RANDOM = 65.9, 0.312

#: Measured score an episode by variant, of the oracle (64 episodes, all alike) and of uniform random actions (16384
#: episodes; standard errors 0.07 and 0.14).
MEASURED: dict[str, dict[str, float]] = {
    "full": {"oracle": 67.0, "random": 0.85},
    "small": {"oracle": 242.0, "random": 3.15},
}


def reference_scores(spec: str) -> dict[str, float | None]:
    """{"human", "random", "oracle"}: scores an episode to compare with; None where nobody has measured one.

    On the level itself, "human" and "random" are the published ones, which human-normalised scores are made of, for
    DeepMind Lab and for the re-creation alike; elsewhere "random" is what `MEASURED` holds.
    """
    kind, name, overrides = parse_spec(spec)
    if kind == "diagnostic":
        return {"human": None, "random": None, "oracle": None} | make_vector(spec, 1).scores  # type: ignore[attr-defined]
    if kind in ("gym", "dm"):
        return {"human": None, "random": None, "oracle": None}
    if kind == "rooms" and name not in VARIANTS:
        raise ValueError(f"no variant {name!r} of the rooms level; there are: {', '.join(VARIANTS)}")
    if kind == "rooms" and name != "full":
        measured = {} if overrides else MEASURED[name]
        return {"human": None, "random": measured.get("random"), "oracle": measured.get("oracle")}
    if overrides or (kind == "dmlab" and not name.endswith("rooms_select_nonmatching_object")):
        return {"human": None, "random": None, "oracle": None}
    return {"human": HUMAN, "random": RANDOM, "oracle": MEASURED["full"]["oracle"] if kind == "rooms" else 66.0}


def human_normalised(score: float, spec: str) -> float | None:
    """100 * (score - random) / (human - random), or None where no human score is known."""
    reference = reference_scores(spec)
    human, random = reference["human"], reference["random"]
    return None if human is None or random is None else 100.0 * (score - random) / (human - random)


def oracle_normalised(score: float, spec: str) -> float | None:
    """100 * (score - random) / (oracle - random), or None where either has not been measured."""
    reference = reference_scores(spec)
    oracle, random = reference["oracle"], reference["random"]
    return None if oracle is None or random is None else 100.0 * (score - random) / (oracle - random)
