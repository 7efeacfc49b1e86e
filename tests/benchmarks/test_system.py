"""What benchmarks/system.py and benchmarks/rllib.py count and compare."""

import subprocess
import sys
from pathlib import Path

import pytest

from agent.core import LSTMConfig
from benchmarks.rllib import PEER, Options, make_config
from benchmarks.system import cpu_seconds, median, name

SPIN = "import time\nwhile time.process_time() < .3: pass\nprint(flush=True)\ninput()"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_cpu_time_of_children_and_their_children_counts() -> None:
    before = cpu_seconds()
    shell = ["sh", "-c", f"'{sys.executable}' -c '{SPIN}'; true"]  # "; true" keeps the shell between
    with subprocess.Popen(shell, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert cpu_seconds() - before >= 0.25
        child.communicate(b"\n")


def test_figures_are_medians_and_have_names() -> None:
    assert median([(1, 30), (9, 10), (2, 20)]) == (2, 20)
    assert name(1, 2) == "1 actor, 2 learners"


@pytest.mark.parametrize("envs", [4, 8, 16])
def test_ours_learns_from_batches_of_as_many_steps_as_rllib(envs: int) -> None:
    config = make_config(Options(Path("python")), envs)
    assert config.unrolls_per_update * config.actors.envs_per_actor * config.actors.unroll_length == 1600
    assert config.agent.core == LSTMConfig(256)
    assert config.actors.num_actors == 2
    assert PEER.is_file()


def test_a_batch_that_is_no_whole_number_of_unrolls_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^batch: expected a multiple of 3 environments x 100 steps, got 1600$"):
        make_config(Options(Path("python")), 3)
