"""Agents for other programs: one step of acting, its state explicit, as ONNX or as a program of `torch.export`.

The names of inputs and outputs, and how the state begins, are in the file: in ONNX's metadata under the key
"compressive", as JSON. `examples/play_onnx.py` needs nothing else.
"""

import contextlib
import importlib.util
import io
import json
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from agent.acting_step import ActingStep
from storage.files import Json, replacing

KEY = "compressive"
"""Of the metadata."""
ROWS = 3
"""Rows of the example with which a graph is traced; any number can be played."""
NEEDED = ("onnx", "onnxscript")
"""Packages of the extra `onnx` that write files."""


def write_onnx(step: ActingStep, path: Path, about: Json) -> None:
    """Writes a step of acting as ONNX, for any number of rows; `about` is added to the metadata.

    Raises:
        ImportError: if the extra `onnx` is not installed.
        OSError: if the file cannot be written.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(f"writing ONNX needs {' and '.join(missing)}: pip install -e '.[onnx]'")
    arguments, shapes = _example(step)
    outputs = ["policy_parameters", "action", "value", *(f"next_{each.name}" for each in step.state_tensors)]
    with torch.no_grad(), _quiet():
        program = torch.onnx.export(
            step,
            arguments,
            dynamo=True,
            dynamic_shapes=shapes,
            input_names=input_names(step),
            output_names=outputs,
            custom_translation_table=_translations(),
            verbose=False,
        )
    assert program is not None
    program.model.metadata_props[KEY] = json.dumps(describe(step, about))
    with replacing(path) as temporary:
        program.save(str(temporary))


def write_program(step: ActingStep, path: Path, about: Json) -> None:
    """Writes a step of acting as a program of `torch.export`, for `torch.export.load`, with the same arguments.

    What ONNX has as metadata is an extra file in it.
    """
    arguments, shapes = _example(step)
    with torch.no_grad(), _quiet():
        program = torch.export.export(step, arguments, dynamic_shapes=shapes)
    content = io.BytesIO()  # a file with a temporary name would get a warning
    torch.export.save(program, content, extra_files={KEY: json.dumps(describe(step, about))})
    with replacing(path) as temporary:
        temporary.write_bytes(content.getvalue())


def input_names(step: ActingStep) -> list[str]:
    """The names of a graph's inputs, in order."""
    states = [each.name for each in step.state_tensors]
    return [*step.observation_names, "last_action", "last_reward", "reset", *states]


def describe(step: ActingStep, about: Json) -> Json:
    """What the metadata say: inputs, the state and how it begins, and what the policy's parameters are."""
    parts = [
        {"name": name, "shape": list(part.shape[1:]), "dtype": str(part.dtype).removeprefix("torch.")}
        for name, part in zip(step.observation_names, step.blank(1), strict=True)
    ]
    policy = step.agent.distribution
    first = policy.none(1)
    return {
        **about,
        "observation": parts,
        "last_action": {"shape": list(first.shape[1:]), "at an episode's start": first[0].tolist()},
        "policy": {
            "kind": type(policy).__name__,
            "parameters": policy.num_parameters,
            "columns": policy.layout(),
        },
        "state": [each._asdict() for each in step.state_tensors],
    }


def _example(step: ActingStep) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of a step, and which of their axes is the number of rows."""
    observation = step.blank(ROWS)
    action = step.agent.distribution.none(ROWS)
    arguments: tuple[Any, ...] = (observation, action, torch.zeros(ROWS), torch.ones(ROWS, dtype=torch.bool))
    rows = {0: torch.export.Dim("rows")}
    shapes: dict[str, Any] = {"observation": tuple(rows for _ in observation)}
    shapes |= dict.fromkeys(("last_action", "last_reward", "reset"), rows)
    if state := tuple(step.initial_state(ROWS)):
        arguments += (state,)
        shapes["state"] = tuple(rows if part.ndim else {} for part in state)
    return arguments, shapes


def _translations() -> dict[Any, Any]:
    """Operators of torch that its exporter does not know, in those of ONNX."""
    from onnxscript import opset18

    op: Any = opset18

    def sort(tensor: Any, *, stable: bool = True, dim: int = -1, descending: bool = False) -> Any:
        # Of equal elements, TopK puts the one with the lower index first: it is stable.
        size = op.Gather(op.Shape(tensor), op.Constant(value_ints=[dim]), axis=0)
        return op.TopK(tensor, size, axis=dim, largest=int(descending), sorted=1)

    return {torch.ops.aten.sort.stable: sort}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's remarks about itself."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
