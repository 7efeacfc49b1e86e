"""The two halves of benchmarks/rllib.py do equal work."""

from pathlib import Path

import pytest

from agent.core import LSTMConfig
from benchmarks.rllib import PEER, Options, our_config


@pytest.mark.parametrize("envs", [4, 8, 16])
def test_our_batches_have_as_many_steps_as_those_of_rllib(envs: int) -> None:
    config = our_config(Options(Path("python")), envs)
    assert config.unrolls_per_update * config.actors.envs_per_actor * config.actors.unroll_length == 1600
    assert config.agent.core == LSTMConfig(256)
    assert config.actors.num_actors == 2
    assert PEER.is_file()


def test_a_batch_of_a_fraction_of_an_unroll_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^batch: expected a multiple of 3 environments x 100 steps, got 1600$"):
        our_config(Options(Path("python")), 3)
