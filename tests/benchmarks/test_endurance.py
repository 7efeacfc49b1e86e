"""The checks of the endurance benchmarks: each fault that they look for is found, and nothing else."""

import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.kill_driver import Options as KillOptions
from benchmarks.kill_driver import Victim, unreadable
from benchmarks.soak import Ledger, Options, checks_of, grows, growth, growth_checks, quarters
from storage import checkpoints
from tests.actors.counting import make_counting_actor


def unrolls(actor_id: int, incarnation: int, number: int) -> list[Any]:
    """Successive unrolls of one actor. A replaced actor has another incarnation."""
    actor = make_counting_actor(2, actor_id, incarnation)
    return [actor.unroll(8) for _ in range(number)]


def ledger_of(*entered: Any) -> Any:
    """The ledger of unrolls in the order in which they are learned from."""
    ledger = Ledger()
    for unroll in entered:
        ledger.enter(unroll)
    return ledger


def test_ledger_accepts_actors_in_turns_and_a_replaced_one() -> None:
    a1, a2, a3 = unrolls(0, 0, 3)
    b1, b2 = unrolls(1, 0, 2)
    replaced = unrolls(0, 1, 2)
    entered = [a1, b1, a2, b2, a3, *replaced]
    ledger = ledger_of(*entered)
    assert (ledger.repeated, ledger.torn, ledger.fresh) == (0, 0, 1)
    assert ledger.steps == sum(int((~unroll.trajectory.reset[:, 1:]).sum()) for unroll in entered)
    assert ledger.episodes == sum(len(unroll.episodes) for unroll in entered) > 0

    # Checkpoints and metrics that count what was entered, or something else.
    ledger.check_steps(ledger.steps)
    assert ledger.wrong == 0
    row = {"step": ledger.steps, "learner/frames": 4 * ledger.steps, "episode/count": ledger.episodes}
    assert not ledger.disagrees(row, 4)
    assert all(ledger.disagrees({**row, name: row[name] + 1}, 4) for name in row)
    ledger.check_steps(ledger.steps - 1)
    assert ledger.wrong == 1


def test_ledger_finds_repeated_lost_and_reordered_unrolls() -> None:
    first, second, third = unrolls(0, 0, 3)
    assert ledger_of(first, second, second, third).repeated == 1
    assert ledger_of(first, third).torn == 1
    assert ledger_of(first, third, second).torn == 2


def test_growth_compares_medians_of_quarters_of_the_time() -> None:
    assert quarters([(0, 1.0), (1, 2.0), (2, 3.0), (79, 4.0), (80, 5.0)]) == [[1, 2, 3], [], [], [4, 5]]


def test_growth_is_told_from_a_short_peak() -> None:
    """One value a minute of an hour."""
    rising = growth([(60.0 * minute, 100.0 + minute) for minute in range(60)])
    assert rising == {"first_quarter": 107.0, "last_quarter": 152.0}
    assert grows("memory_mb/driver", rising)

    peak = growth([(60.0 * minute, 150.0 if minute == 10 else 100.0) for minute in range(60)])
    assert peak["first_quarter"] == peak["last_quarter"] == 100
    assert not grows("memory_mb/driver", peak)


def test_each_unreadable_checkpoint_is_found(tmp_path: Path) -> None:
    for step in (1, 2):
        checkpoints.save(tmp_path, step, {"weights": {"w": torch.ones(3)}}, {})
    (tmp_path / "checkpoints" / "000000000003.tmp").mkdir()
    assert unreadable(tmp_path) == []
    (tmp_path / "checkpoints" / "000000000001" / "weights.safetensors").write_bytes(b"")
    (reason,) = unreadable(tmp_path)
    assert "000000000001" in reason
    assert "0 bytes" in reason


def make_trainer(**fields: Any) -> Any:
    """What `checks_of` reads of a trainer after a run without a fault, except for some fields."""
    sound: dict[str, Any] = {
        "options": Options(),
        "ledger": Ledger(steps=40, episodes_at={10: 0, 20: 1, 30: 2, 40: 3}),
        "kills": {"actor": 2, "learner": 1},
        "restarts": {"actor": 2, "learner": 1},
        "pending": None,
        "longest_gap": 1.0,
        "learner": SimpleNamespace(steps=40),
        "action_repeat": 4,
    }
    return SimpleNamespace(**(sound | fields))


def rows_of_metrics() -> list[dict[str, Any]]:
    rows = []
    for number in range(1, 5):
        step = 10 * number
        row = {"step": step, "time": float(step), "learner/frames": 4 * step, "episode/count": number - 1}
        rows.append(row | {"episode/return": float(number)})
    return rows


def failed(trainer: Any, rows: list[dict[str, Any]], saved: int = 40, left: int = 0) -> list[str]:
    return [name for name, (_, holds) in checks_of(trainer, rows, saved, left).items() if not holds]


def test_checks_of_a_sound_run_hold_and_each_fault_fails() -> None:
    rows = rows_of_metrics()
    assert failed(make_trainer(), rows) == []
    assert failed(make_trainer(kills={"actor": 0, "learner": 0}, restarts={"actor": 0, "learner": 0}), rows) == [
        "kills"
    ]
    assert failed(make_trainer(restarts={"actor": 3, "learner": 1}), rows) == ["actors replaced"]
    assert failed(make_trainer(restarts={"actor": 2, "learner": 2}), rows) == ["learners replaced"]
    assert failed(make_trainer(pending=("actor", 0.0, 0)), rows) == ["victims not back"]
    assert failed(make_trainer(longest_gap=121.0), rows) == ["seconds between updates"]
    assert failed(make_trainer(learner=SimpleNamespace(steps=41)), rows) == ["updates with other steps"]
    assert failed(make_trainer(), [*rows, rows[-1]]) == ["rows of metrics"]
    assert failed(make_trainer(), rows, saved=30) == ["steps of the last checkpoint"]
    assert failed(make_trainer(), rows, left=1) == ["processes left"]


def test_growth_of_too_few_samples_fails() -> None:
    """Processes that were there for a moment are left out."""
    steady = [(10.0 * sample, 100.0) for sample in range(4)]
    found = growth_checks({"memory_mb/driver": steady, "memory_mb/sh": steady[:1]})
    assert found == {"growth of memory_mb/driver": ({"first_quarter": 100.0, "last_quarter": 100.0}, True)}
    assert growth_checks({"memory_mb/driver": steady[:3]}) == {"growth: too short": (3, False)}
    assert growth_checks({}) == {"growth: too short": (0, False)}


def test_phases_that_were_aimed_at_and_not_hit_are_missed(tmp_path: Path) -> None:
    victim = Victim(tmp_path / "run", True, KillOptions(), random.Random(0))
    victim.aimed = Counter({"start": 3, "learning": 2, "checkpoint": 3})  # two kills may miss by chance
    victim.hit = Counter({"start": 8})
    assert victim.missed() == ["checkpoint"]
