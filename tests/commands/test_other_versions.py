"""Runs of other versions, or edited by hand: whatever differs in config.json or state.json is said in one line."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.commands.cli import refusal, saved_steps
from tests.learner.runs import forge

Capture = pytest.CaptureFixture[str]
Copied = Callable[..., Path]
GONE = object()
DEEP = json.loads("[" * 400 + "]" * 400)


def edit(tree: Any, path: str, value: Any) -> None:
    """Replaces a value by its path, such as "agent core name"; removes it where the value is `GONE`."""
    *parents, last = path.split()
    for name in parents:
        tree = tree[int(name) if isinstance(tree, list) else name]
    key = int(last) if isinstance(tree, list) else last
    if value is GONE:
        del tree[key]
    else:
        tree[key] = value


STATES: list[tuple[str, Any, Sequence[str]]] = [
    ("generation", GONE, ["generation in it"]),
    ("generation", "1", ["generation: expected a whole number", "'1'"]),
    ("generation", -1, ["generation: expected a whole number", "-1"]),
    ("episodes", 1.5, ["episodes: expected a whole number", "1.5"]),
    ("episodes", True, ["episodes: expected a whole number", "True"]),
    ("recent", GONE, ["recent in it"]),
    ("recent", {}, ["recent: expected a list", "{}"]),
    ("recent", [3], ["recent: 0: expected an object", "3"]),
    ("recent", [{"score": 1.0}], ["recent: 0: expected steps, environment", "in it", "['score']"]),
    ("recent 0 task", "rooms:full", ["recent: expected episodes of rooms:small", "'rooms:full'"]),
    ("recent 0 metrics", {"correct_choices": "all"}, ["metrics: correct_choices: expected a number", "'all'"]),
    ("learner", GONE, ["learner in it"]),
    ("learner", [], ["learner: expected an object", "[]"]),
    ("learner steps", GONE, ["learner: expected steps in it"]),
    ("learner steps", float("nan"), ["learner: steps: expected a whole number", "nan"]),
    ("learner version", 1 << 70, ["learner: version: expected a whole number"]),
    ("learner optimizer", DEEP, ["optimizer: expected an object"]),
    ("learner optimizer", {"dict": DEEP}, ["does not fit", "expected tensors"]),
    ("learner optimizer", {"dict": [["state", {"dict": []}]]}, ["expected the state of Adam", "param_groups"]),
    ("learner optimizer dict 0 1 dict 0 1 dict 1 1 tensor", "none", ["expected tensors", "'none'"]),
    ("learner optimizer dict 0 1 dict 0 1 dict 1 1", 3.5, ["exp_avg: expected a tensor"]),
    ("rng", GONE, ["rng in it"]),
    ("rng torch", GONE, ["rng: expected torch in it"]),
    ("rng torch", "AAAA", ["rng: torch: expected the state of a generator of this version of torch"]),
    ("rng python 1", [1, 2, 3], ["rng: python", "this version of Python"]),
    ("rng python 0", 99, ["rng: python", "this version of Python"]),
    ("rng numpy 0", "PCG64", ["rng: numpy", "this version of numpy"]),
    ("rng numpy 2", 10**6, ["rng: numpy", "this version of numpy"]),
    ("rng cuda", None, ["rng: cuda: expected a list"]),
    ("config", GONE, ["config in it"]),
    ("config actors", GONE, ["config: expected actors in it"]),
    ("config actors num_actors", "two", ["num_actors: expected a whole number", "'two'"]),
]


@pytest.mark.parametrize(("path", "value", "words"), STATES, ids=[path for path, *_ in STATES])
def test_a_checkpoint_of_another_version(
    path: str, value: Any, words: Sequence[str], copied: Copied, capfd: Capture
) -> None:
    folder = copied()
    last = folder / "checkpoints" / f"{saved_steps(folder)[-1]:012d}"
    forge(last, lambda content: edit(content["state"], path, value))
    error = refusal(["launch", "--local", "--resume", str(folder)], capfd)
    assert f"{last} does not fit {folder / 'config.json'}: " in error
    assert all(word in error for word in words), error
    assert len(error) < 1000


CONFIGS: list[tuple[str, Any, Sequence[str]]] = [
    ("agent core name", ["lstm"], ["core: expected a core out of compressive", "['lstm']"]),
    ("agent core name", GONE, ["core: expected a core out of compressive", "None"]),
    ("agent core", None, ["core: expected an object", "None"]),
    ("agent core new_field", 1, ["config.agent.core: unknown fields", "new_field", "this version"]),
    ("actors", [], ["config.actors: expected an object", "[]"]),
    ("actors labels", [3], ["config.actors.labels", "(3,)"]),
    ("learner", DEEP, ["config.learner: expected an object"]),
    ("env", 7, ["config.env: expected text", "7"]),
    ("frames", 1e9, ["config.frames: expected an integer", "1000000000.0"]),
    ("checkpoint_url", ["s3://user:secret@bucket"], ["checkpoint_url", "s3://***@bucket"]),
]


@pytest.mark.parametrize("command", [["launch", "--local", "--resume"], ["evaluate"], ["status"]], ids=lambda c: c[0])
@pytest.mark.parametrize(("path", "value", "words"), CONFIGS, ids=[path for path, *_ in CONFIGS])
def test_a_configuration_of_another_version(
    command: list[str],
    path: str,
    value: Any,
    words: Sequence[str],
    finished: tuple[Path, str],
    tmp_path: Path,
    capfd: Capture,
) -> None:
    plain = json.loads((finished[0] / "config.json").read_text())
    edit(plain, path, value)
    (tmp_path / "config.json").write_text(json.dumps(plain))
    error = refusal([*command, str(tmp_path)], capfd)
    assert str(tmp_path / "config.json") in error
    assert all(word in error for word in words), error


def test_a_configuration_that_is_nested_too_deeply(tmp_path: Path, capfd: Capture) -> None:
    (tmp_path / "config.json").write_text('{"agent": ' + "[" * 100_000 + "]" * 100_000 + "}")
    assert "config.json: expected JSON, got one that is nested too deeply" in refusal(["status", str(tmp_path)], capfd)


def test_actors_of_another_version(copied: Copied, capfd: Capture) -> None:
    """Their tensors are compared with those that actors have now."""
    from safetensors.torch import load_file, save

    folder = copied()
    last = folder / "checkpoints" / f"{saved_steps(folder)[-1]:012d}"
    tensors = load_file(last / "actors.safetensors")
    tensors["0/env_output/reward"] = tensors["0/env_output/reward"].double()
    data = save(tensors)

    def change(content: Any) -> None:
        import hashlib

        content["files"]["actors.safetensors"] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    (last / "actors.safetensors").write_bytes(data)
    forge(last, change)
    error = refusal(["launch", "--local", "--resume", str(folder), "--frames=1000000"], capfd)
    assert (
        f"{last} does not fit: actors: 0/env_output/reward: expected torch.float32 [2], got torch.float64 [2]" in error
    )
