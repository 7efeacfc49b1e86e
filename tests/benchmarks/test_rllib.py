"""The two halves of benchmarks/rllib.py do equal work."""

from pathlib import Path

import pytest

from agent.core import LSTMConfig
from benchmarks.rllib import PEER, Options, our_config


def test_our_batches_have_as_many_steps_as_those_of_rllib() -> None:
    for envs in (4, 8, 16):
        config = our_config(Options(Path("python")), envs)
        assert config.unrolls_per_update * config.actors.envs_per_actor * config.actors.unroll_length == 1600
        assert (config.agent.core, config.actors.num_actors) == (LSTMConfig(256), 2)
    assert PEER.is_file()
    with pytest.raises(ValueError, match=r"^batch: expected a multiple of 3 environments x 100 steps, got 1600$"):
        our_config(Options(Path("python")), 3)
