"""`compressive export`: a trained agent as a small folder, or as a file for other programs."""

import shlex
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from rich.console import Console

from actors.interface import action_names
from agent.acting_step import INSTRUCTION, ActingStep
from commands.options import ExportOptions
from envs import ActionVector, make_vector, parse_spec, tasks
from envs.names import gymnasium_name
from envs.words import explain_ids
from reports.actions import columns_of
from storage.errors import UserError, user_errors
from storage.exchange import write_onnx, write_program
from storage.files import folder_bytes
from storage.run import Run, find_run
from training.console import program, say
from training.evaluation import TrainedAgent, load_trained_agent
from training.plain import read_config
from training.sharing import share
from training.trust import permissions

WRITERS = {".onnx": write_onnx, ".pt2": write_program}
"""How a file is written, by the end of its name."""
OTHER_FILES = (".onx", ".pt", ".pth", ".ckpt", ".safetensors", ".zip", ".bin")
"""Endings of files that are not written; a folder hardly has such a name."""


def export(options: ExportOptions) -> None:
    """Runs the command."""
    run = find_run(options.run)
    if options.output.resolve().is_relative_to(run.path.resolve()):
        raise UserError(f"output: expected a place outside the run, got {options.output}, which is in {run.path}")
    console = Console()
    ending = options.output.suffix
    if ending in WRITERS:
        _export_file(options, run, console)
        return
    if ending.lower() in (*WRITERS, *OTHER_FILES):
        raise UserError(f"output: expected a folder, or a file that ends in {' or '.join(WRITERS)}, got {ending}")
    folder = options.output
    if folder.exists():
        raise UserError(f"output: expected a new folder, and {folder} exists")
    with user_errors():
        share(run, folder, options.allow)
    size = folder_bytes(folder)
    play = f"{program()} visualize {shlex.quote(str(folder))}{permissions(read_config(Run(folder)))}"
    say(console, f"{folder}  {size / 1e6:.1f} MB; play with it: {play}")


def _export_file(options: ExportOptions, run: Run, console: Console) -> None:
    """Writes one step of acting in a form of `storage.exchange`."""
    path = options.output
    if path.exists():
        raise UserError(f"output: expected a new file, and {path} exists")
    with user_errors("output"):
        path.parent.mkdir(parents=True, exist_ok=True)
    with user_errors():
        trained = load_trained_agent(run, options.allow)
        about: dict[str, Any] = {"run": run.name, "environment": trained.env, "steps": trained.checkpoint.step}
        first, *_ = tasks(trained.env)
        envs = make_vector(first, 1)
        try:
            about["action"] = _action_columns(envs)
            num_ids = _num_ids(envs)
            # Names of the observation's parts and of a vector's elements, where the environment has them.
            for field in ("observation_names", "element_names"):
                if names := envs.metadata.get(field):
                    about[field] = list(names)
        finally:
            envs.close()
    if trained.agent.made_for.popart_tasks:
        about["value"] = {"tasks": list(tasks(trained.config.env)), "unit": "rewards"}
    if num_ids:
        about[INSTRUCTION] = explain_ids(trained.agent.made_for.vocabulary, num_ids)
    with user_errors("output"):
        WRITERS[path.suffix](ActingStep(trained.agent, num_ids), path, about)
    said = f"{path}  {path.stat().st_size / 1e6:.1f} MB"
    name = _name_for_example(trained)
    if path.suffix == ".onnx" and name:
        said += f"; play with it: python examples/play_onnx.py {shlex.quote(str(path))} {name}"
    say(console, said)


def _num_ids(envs: VectorEnv) -> int:
    """How many ids an instruction has; 0 without instructions."""
    space = envs.single_observation_space
    if not isinstance(space, spaces.Dict):
        return 0
    ids = space[INSTRUCTION]
    assert isinstance(ids, spaces.Box)
    return ids.shape[0]


def _action_columns(envs: VectorEnv) -> list[dict[str, Any]]:
    """The columns of an action: names, and sizes of choices or bounds of numbers.

    A choice is an index, of which 0 stands for the environment's value `first`. A number from -1 to 1 stands for its
    bounds; without bounds, which are None then, it is the number itself. A Discrete space has one column, with the
    names of its values.
    """
    space = envs.single_action_space
    names = action_names(envs)
    if not isinstance(space, ActionVector):
        return [{"name": "action", "size": len(names), "values": list(names)}]
    found: list[dict[str, Any]] = []
    for column in columns_of(space.parts, names):
        if column.size:
            found.append({"name": column.name, "size": column.size, "first": int(column.low)})
        else:
            bounds = [column.low, column.high] if column.is_bounded else None
            found.append({"name": column.name, "bounds": bounds})
    return found


def _name_for_example(trained: TrainedAgent) -> str | None:
    """The name by which `examples/play_onnx.py` makes an agent's environment; None if it cannot play the agent."""
    # The example plays one task, with actions of a Discrete space and without instructions.
    made_for = trained.agent.made_for
    is_discrete = isinstance(made_for.actions, int)
    played = tasks(trained.env)
    if len(played) > 1 or not is_discrete or made_for.vocabulary:
        return None
    (task,) = played
    name = gymnasium_name(*parse_spec(task))
    if name is None:
        return None

    # It gives the agent what the environment returns, and the environment the index of the agent's action.
    made = gymnasium.make(name)
    observations = made.observation_space
    actions = made.action_space
    made.close()
    shape = made_for.observation_shape
    is_image = len(shape) == 3
    dtype = np.uint8 if is_image else np.float32
    sees_the_same = isinstance(observations, spaces.Box) and (observations.shape, observations.dtype) == (shape, dtype)
    acts_the_same = isinstance(actions, spaces.Discrete) and actions.start == 0
    return name if sees_the_same and acts_the_same else None
