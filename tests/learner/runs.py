"""Runs with checkpoints in a folder or behind a URL, for the tests of checkpoints."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from fsspec.core import url_to_fs

from storage import checkpoints
from storage.serialization import digest

Place = Path | str

PARTS = {
    "weights": {"layer/weight": torch.arange(6.0).reshape(2, 3), "layer/scale": torch.tensor(0.1, dtype=torch.float64)},
    "actors": {
        "over": torch.tensor([True, False]),
        "frames": torch.arange(4, dtype=torch.uint8),
        "none": torch.empty(0, 3),
    },
}


def save(run: Place, step: int, keep: int = 3, every: int = 0) -> Place:
    weights = {key: tensor + step for key, tensor in PARTS["weights"].items()}
    return checkpoints.save(run, step, {"weights": weights}, {"step": step}, keep, every)


def listing(folder: Place) -> list[str]:
    """Names of what is in a folder, without the random endings that folders have behind a URL."""
    fs, path = url_to_fs(str(folder))
    return sorted(re.sub("-[0-9a-f]{6}", "", name.rpartition("/")[2]) for name in fs.ls(path, detail=False))


def names(run: Place) -> list[str]:
    return listing(f"{run}/checkpoints")


def forge(folder: Path, change: Callable[[Any], object]) -> None:
    """Changes a checkpoint's state.json in place, and its SHA-256 with it."""
    content = json.loads((folder / "state.json").read_text())
    content.pop("sha256")
    change(content)
    (folder / "state.json").write_text(json.dumps({**content, "sha256": digest(content)}))
