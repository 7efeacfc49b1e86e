"""Exported agents in onnxruntime beside the same agents in torch: equal actions, and the time of a step.

    python -m benchmarks.exported [--steps 10000] [--rows 1 3 64] [--run pretrained/level]

Agents of every core play random observations, with an episode of a hundred steps in the mean, or the agent of a run
does. Both get the same actions and rewards, and have one thread. New agents have a policy whose logits are of the size
that trained ones have. The time is CPU time of the process, the median step after ten that are not counted; who steps
first changes from step to step. In a median the step that ends a segment does not show.
"""

import dataclasses
import functools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agent import Agent
from agent.acting_step import ActingStep
from agent.core import CORES
from benchmarks.common import require_least, require_some, run
from storage.exchange import KEY, write_onnx
from storage.run import Run
from training.config import require_one_of
from training.evaluation import load_trained_agent
from training.factories import make_agent
from training.presets import make_preset

ENV = "gym:CartPole-v1"
RESETS = 0.01
"""Share of steps at which an episode begins."""
WARM_UP = 10
"""Steps whose time is not counted."""


@dataclass
class Options:
    steps: int = 10_000
    """Steps with each number of rows."""
    rows: tuple[int, ...] = (1, 3, 64)
    cores: tuple[str, ...] = tuple(name for name in CORES if name != "wavenet")
    run: Path | None = None
    """The run of an agent that sees one image or vector and has a Discrete space of actions, in place of new agents."""


def measure(options: Options) -> dict[str, Any]:
    for core in options.cores:
        require_one_of("--cores", core, CORES)
    require_least("steps", options.steps, WARM_UP + 1)
    require_some("rows", options.rows)
    for rows in options.rows:
        require_least("rows", rows, 1)
    found: dict[str, Any] = {"steps": options.steps}
    failed = []
    for name, agent in _agents(options):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "agent.onnx"
            write_onnx(ActingStep(agent), path, {})
            found[name] = {"megabytes": round(path.stat().st_size / 1e6, 2)}
            for rows in options.rows:
                compared = _compare(agent, path, rows, options.steps)
                found[name][f"{rows} rows"] = compared
                if compared["other actions"]:
                    failed.append(f"{name}, {rows} rows")
    return {**found, "failed": failed}


def _agents(options: Options) -> Iterator[tuple[str, Agent]]:
    if options.run:
        yield str(options.run), load_trained_agent(Run(options.run)).agent
        return
    for core in options.cores:
        torch.manual_seed(0)
        agent = make_agent(dataclasses.replace(make_preset("general", core), env=ENV)).eval()
        with torch.no_grad():
            agent.policy.weight.mul_(100.0)  # it begins with a standard deviation of 0.01
        yield core, agent


def _compare(agent: Agent, path: Path, rows: int, steps: int) -> dict[str, Any]:
    """The largest difference of logits, how many greedy actions differ, and milliseconds of a step."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options)
    inputs = [each.name for each in session.get_inputs()]
    tensors = json.loads(session.get_modelmeta().custom_metadata_map[KEY])["state"]
    exported = {}
    for each in tensors:
        shape = () if each["name"] == "offset" else (rows, *each["shape"])
        exported[each["name"]] = np.full(shape, each["initial"], each["dtype"])

    shape = agent.made_for.observation_shape
    actions = agent.made_for.actions
    assert isinstance(actions, int), "one choice of several actions"
    state = agent.with_cache(agent.initial_state(rows))
    generator = torch.Generator().manual_seed(0)
    worst = 0.0
    other_actions = 0
    seconds: dict[str, list[float]] = {"torch": [], "onnxruntime": []}
    for step in range(steps):
        if len(shape) == 3:
            seen = torch.randint(0, 256, (rows, *shape), generator=generator, dtype=torch.uint8)
        else:
            seen = torch.randn(rows, *shape, generator=generator)
        share_of_resets = RESETS if step > 0 else 1.0
        reset = torch.rand(rows, generator=generator) < share_of_resets
        action = torch.randint(0, actions, (rows,), generator=generator).masked_fill(reset, -1)
        reward = torch.randn(rows, generator=generator)

        given = {
            "observation": seen.numpy(),
            "last_action": action.numpy(),
            "last_reward": reward.numpy(),
            "reset": reset.numpy(),
            **exported,
        }
        calls: dict[str, Callable[[], Any]] = {
            "torch": functools.partial(agent, seen[:, None], action[:, None], reward[:, None], reset[:, None], state),
            "onnxruntime": functools.partial(session.run, None, {name: given[name] for name in inputs}),
        }
        results = timed(calls, step, seconds)

        output = results["torch"]
        state = output.state
        logits = output.policy_parameters[:, 0].numpy()
        theirs, greedy, _, *after = results["onnxruntime"]
        exported = dict(zip(exported, after, strict=True))

        worst = max(worst, float(np.abs(theirs - logits).max()))
        other_actions += int((greedy != logits.argmax(axis=1)).sum())
    times = {f"{name} CPU ms": milliseconds(of_steps) for name, of_steps in seconds.items()}
    return {"largest difference of logits": float(f"{worst:.2g}"), "other actions": other_actions, **times}


@torch.no_grad()
def timed(calls: dict[str, Callable[[], Any]], step: int, seconds: dict[str, list[float]]) -> dict[str, Any]:
    """The result of each call; the last call is the first one in the next step. Adds CPU times to `seconds`."""
    names = list(calls)
    if step % 2:
        names.reverse()
    results = {}
    for name in names:
        begin = time.process_time()
        results[name] = calls[name]()
        seconds[name].append(time.process_time() - begin)
    return results


def milliseconds(seconds: list[float]) -> float:
    """The median of a step, in milliseconds, without those that warm up."""
    return round(1000 * statistics.median(seconds[WARM_UP:]), 3)


if __name__ == "__main__":
    run(measure, Options)
