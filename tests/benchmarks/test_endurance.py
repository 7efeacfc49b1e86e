"""The checks of the endurance benchmarks: what they call right is, and each fault that they look for is seen."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from actors import Unroll
from agent.trajectory import loss_mask
from benchmarks.kill_driver import last_step, marked, unreadable
from benchmarks.soak import Ledger, alive, family, grows, growth, kind_of, quarters
from learner import checkpoints
from tests.actors.counting import make_counting_actor


def unrolls(actor_id: int, incarnation: int, number: int) -> list[Unroll]:
    actor = make_counting_actor(2, actor_id, incarnation)
    return [actor.unroll(8) for _ in range(number)]


def ledger_of(*entered: Unroll) -> Ledger:
    ledger = Ledger()
    for unroll in entered:
        ledger.enter(unroll)
    return ledger


def test_ledger_finds_nothing_wrong_with_actors_that_take_turns_and_one_that_is_replaced() -> None:
    first, second, third = unrolls(0, 0, 3), unrolls(1, 0, 2), unrolls(0, 1, 2)
    entered = [first[0], second[0], first[1], second[1], first[2], *third]
    ledger = ledger_of(*entered)
    assert (ledger.repeated, ledger.torn, ledger.fresh) == (0, 0, 1)
    assert ledger.steps == sum(int(loss_mask(unroll.trajectory).sum()) for unroll in entered)
    assert ledger.episodes == sum(len(unroll.episodes) for unroll in entered) > 0


def test_ledger_sees_an_unroll_that_comes_twice_is_lost_or_overtaken() -> None:
    first, second, third = unrolls(0, 0, 3)
    assert ledger_of(first, second, second, third).repeated == 1
    assert ledger_of(first, third).torn == 1
    assert ledger_of(first, third, second).torn == 2
    assert ledger_of(first, first).repeated == 1


def test_ledger_disagrees_with_a_learner_or_a_row_that_counts_otherwise() -> None:
    ledger = ledger_of(*unrolls(0, 0, 2))
    ledger.updated(ledger.steps)
    assert ledger.wrong == 0
    row = {"step": ledger.steps, "learner/frames": 4 * ledger.steps, "episode/count": ledger.episodes}
    assert not ledger.disagrees(row, 4)
    for name in row:
        assert ledger.disagrees({**row, name: row[name] + 1}, 4)
    ledger.updated(ledger.steps - 1)
    assert ledger.wrong == 1


def test_family_are_the_descendants_dead_ones_included() -> None:
    sleeper = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    mark = f"mark-{os.getpid()}"
    child = subprocess.Popen([sys.executable, "-c", sleeper], env={**os.environ, "MARK": mark})
    try:
        while len(marked(mark)) < 2:
            assert child.poll() is None
            time.sleep(0.01)
        before = {process.pid: process for process in family(os.getpid())}
        assert before[os.getpid()].kind == "driver"
        assert before[os.getpid()].memory > before[child.pid].memory > 2**20
        (grandchild,) = (process for process in family(child.pid) if process.pid != child.pid)
        assert before[grandchild.pid][:3] == grandchild[:3]
        os.kill(grandchild.pid, signal.SIGKILL)
        child.kill()
        while {process.pid: process for process in family(os.getpid())}[child.pid].kind != "zombie":
            time.sleep(0.01)
    finally:
        child.kill()
        child.wait()
    assert not alive((child.pid, before[child.pid].started))
    assert alive((os.getpid(), before[os.getpid()].started))
    assert not alive((os.getpid(), before[os.getpid()].started + 1))


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["ray::RemoteActor.__init__"], "RemoteActor"),
        (["ray::IDLE", ""], "IDLE"),
        (["/bin/python", "-u", "/ray/log_monitor.py", "--x=1"], "log_monitor.py"),
        (["/ray/raylet/raylet", "--x"], "raylet"),
        ([""], "zombie"),
    ],
)
def test_kind_of_a_process(words: list[str], kind: str) -> None:
    assert kind_of(words) == kind


def test_quarters_are_of_time_not_of_number() -> None:
    assert quarters([]) == [[], [], [], []]
    assert quarters([(0, 1.0), (1, 2.0), (2, 3.0), (79, 4.0), (80, 5.0)]) == [[1, 2, 3], [], [], [4, 5]]
    assert quarters([(3, 1.0)]) == [[1], [], [], []]


def test_growth_is_that_of_the_medians_of_quarters() -> None:
    hour = [(60.0 * minute, 100.0 + minute) for minute in range(60)]
    rising = growth(hour)
    assert rising == {"first_quarter": 107.0, "last_quarter": 152.0, "slope_per_hour": 60.0}
    assert grows("memory_mb/driver", rising)
    flat = growth([(seconds, 100.0 + 50.0 * (seconds == 600)) for seconds, _ in hour])
    assert flat["first_quarter"] == flat["last_quarter"] == 100
    assert not grows("memory_mb/driver", flat)


def test_each_unreadable_checkpoint_is_found_not_only_the_newest(tmp_path: Path) -> None:
    assert last_step(tmp_path) is None
    for step in (1, 2):
        checkpoints.save(tmp_path, step, {"weights": {"w": torch.ones(3)}}, {})
    (tmp_path / "checkpoints" / "000000000003.tmp").mkdir()
    assert unreadable(tmp_path) == []
    (tmp_path / "checkpoints" / "000000000001" / "weights.safetensors").write_bytes(b"")
    with pytest.warns(UserWarning, match="skipped checkpoint"):
        (reason,) = unreadable(tmp_path)
    assert "000000000001" in reason
    assert "0 bytes" in reason
    assert last_step(tmp_path) == 2
