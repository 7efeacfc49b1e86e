"""The weights that a new run, and its teacher, take over from another run."""

import dataclasses

from agent import Agent
from envs import require_consent, untaught
from storage.checkpoints import load_weights
from storage.run import Run
from training.config import RunConfig
from training.factories import require_interface
from training.plain import differences, read_config, to_plain
from training.trust import checkpoint_place


def inherit(config: RunConfig, agent: Agent, allow: str | None = None) -> RunConfig:
    """Gives a new run's network, and its teacher, the weights of the last readable checkpoint of `config.from_run`.

    The optimizer and all counters start anew. The environments may differ, also in frames a step. `allow` are those
    whose code that run may name, and the URL of its checkpoints; see `envs.require_consent`.

    Returns:
        the configuration with the checkpoint in place of the run.

    Raises:
        FileNotFoundError, ValueError, ImportError, StorageError: if there is no such run or checkpoint; if its network,
            observations or actions differ; or if its environment needs a permission.
    """
    if config.from_run is None:
        return config
    source = Run(config.from_run)
    other = read_config(source)
    # Its weights fit only the same network.
    theirs = to_plain(other)["agent"]
    ours = to_plain(config)["agent"]
    for name, expected, got in differences(theirs, ours, "agent"):
        raise ValueError(f"{name}: expected {expected} as in {source}, got {got}")

    # It may be another person's, so that its environments and its URL need a permission.
    require_consent(other.env, allow, *config.named_environments)
    place = checkpoint_place(other, source, allow)
    require_interface(untaught(config.env), untaught(other.env))
    checkpoint = load_weights(agent.begin_with, place, source.config_file)
    return dataclasses.replace(config, from_run=str(checkpoint.path))
