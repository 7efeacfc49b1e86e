"""Carries a run to and from a machine that returns only a few small files, in pieces of at most 16 MiB.

    python -m benchmarks.pieces split runs/NAME pieces
    python -m benchmarks.pieces join pieces runs/NAME

The newest checkpoint travels with its weights as they are and Adam's second moments in bfloat16. First moments begin
at zero again, and actors with new episodes. `compressive launch --resume` continues what was joined.
"""

import shutil
import sys
from pathlib import Path
from typing import Literal

import torch
import tyro
from safetensors.torch import load_file, save_file
from torch import Tensor

from learner import checkpoints
from learner.files import read_json, write_json
from training.run import Run

LARGEST = 15 << 20
"""Bytes of tensors in a piece; its header comes on top."""


def split(run: Run, folder: Path) -> None:
    """Writes the newest checkpoint of a run, its configuration and its metrics into a new folder."""
    folder.mkdir(parents=True)
    checkpoint = checkpoints.load_latest(run.path)
    pieces: list[dict[str, Tensor]] = [{}]
    for part in ("weights", "optimizer"):
        for name, tensor in checkpoint.parts[part].items():
            if name.endswith("/exp_avg"):
                continue
            tensor = tensor.to(torch.bfloat16) if name.endswith("/exp_avg_sq") else tensor
            if sum(other.nbytes for other in pieces[-1].values()) + tensor.nbytes > LARGEST:
                pieces.append({})
            pieces[-1][f"{part}/{name}"] = tensor
    for number, piece in enumerate(pieces):
        save_file(piece, folder / f"{number}.safetensors")
    write_json(folder / "state.json", {"step": checkpoint.step, "state": checkpoint.state})
    for path in (run.config_file, run.path / "metrics.jsonl"):
        shutil.copy(path, folder)


def join(folder: Path, run: Run) -> None:
    """Makes a new run of the pieces in a folder."""
    run.path.mkdir(parents=True)
    saved, parts = read_json(folder / "state.json"), dict[str, dict[str, Tensor]](weights={}, optimizer={})
    for path in sorted(folder.glob("*.safetensors")):
        for full, tensor in load_file(path).items():
            part, _, name = full.partition("/")
            if name.endswith("/exp_avg_sq"):
                tensor = tensor.float()
                parts[part][name.removesuffix("_sq")] = torch.zeros_like(tensor)
            parts[part][name] = tensor
    checkpoints.save(run.path, saved["step"], parts, saved["state"])
    for name in (run.config_file.name, "metrics.jsonl"):
        shutil.copy(folder / name, run.path)


def main(
    what: tyro.conf.Positional[Literal["split", "join"]],
    source: tyro.conf.Positional[Path],
    target: tyro.conf.Positional[Path],
) -> None:
    """Splits a run into pieces, or joins pieces to a run; see the module."""
    try:
        split(Run(source), target) if what == "split" else join(source, Run(target))
    except (OSError, ValueError) as error:
        sys.exit(f"{what}: {error}")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
