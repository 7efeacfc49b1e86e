"""The weights that a new run, and its teacher, take over from another run."""

import dataclasses

from agent import Agent
from agent.actor_critic import Weights
from envs import require_consent, tasks, untaught
from storage.checkpoints import load_weights
from storage.run import find_run
from training.config import RunConfig
from training.factories import require_interface
from training.plain import differences, read_config, to_plain
from training.trust import checkpoint_place

VALUE = "value."
"""How the names of the weights of the value head begin."""


def inherit(config: RunConfig, agent: Agent, allow: str | None = None) -> RunConfig:
    """Gives a new run's network, and its teacher, the weights of the last readable checkpoint of `config.from_run`.

    The optimizer and all counters start anew. So do values if only one of the runs normalizes them (`learner.popart`),
    or does so for another number of tasks. The environments may differ, also in frames a step. `allow` are those whose
    code that run may name, and the URL of its checkpoints; see `envs.require_consent`.

    Returns:
        the configuration with the checkpoint in place of the run.

    Raises:
        FileNotFoundError, ValueError, ImportError, StorageError: if there is no such run or checkpoint; if its network,
            observations or actions differ; or if its environment needs a permission.
    """
    if config.from_run is None:
        return config
    source = find_run(config.from_run)
    other = read_config(source)
    # Its weights fit only the same network.
    theirs = to_plain(other)["agent"]
    ours = to_plain(config)["agent"]
    for name, expected, got in differences(theirs, ours, "agent"):
        raise ValueError(f"{name}: expected {expected} as in {source}, got {got}")

    # It may be another person's, so that its environments and its URL need a permission.
    require_consent(other.env, allow, *config.named_environments)
    place = checkpoint_place(other, source, allow)
    try:
        require_interface(untaught(config.env), untaught(other.env))
    except ValueError as error:
        raise ValueError(f"{error} (without --env, the environment is that of the preset)") from error

    def begin_with(weights: Weights) -> None:
        """Takes over all weights, but not those of the value head where it has other columns."""
        if _value_columns(config) != _value_columns(other):
            kept = {name: weight for name, weight in weights.items() if not name.startswith(VALUE)}
            own = agent.alone().state_dict()
            weights = kept | {name: weight for name, weight in own.items() if name.startswith(VALUE)}
        agent.begin_with(weights)

    checkpoint = load_weights(begin_with, place, source.config_file, source.checkpoint)
    return dataclasses.replace(config, from_run=str(checkpoint.path))


def _value_columns(config: RunConfig) -> int | None:
    """Of how many tasks a run's network has normalized values; None if values are not normalized."""
    return len(tasks(config.env)) if config.learner.popart else None
