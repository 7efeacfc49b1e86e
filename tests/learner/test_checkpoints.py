"""Checkpoints are restored exactly; a damaged one is skipped for the one before."""

import functools
import json
import os
import random
import re
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from fsspec.core import url_to_fs

from learner import checkpoints, serialization
from learner.config import LearnerConfig
from learner.files import write_json
from learner.learner import Learner
from tests.learner.runs import PARTS, Place, forge, listing, names, save

STATE = {"episodes": 3, "config": {"discount": 0.99, "core": None}, "names": ["a", "b"]}


@pytest.fixture(params=["disk", "file", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A run without checkpoints: a folder, and URLs of stores with and without real folders."""
    path = tmp_path / "run"
    if request.param == "disk":
        path.mkdir()
    return {"disk": path, "file": f"file://{path}", "memory": f"memory://{path}"}[request.param]


assert_equal = functools.partial(torch.testing.assert_close, rtol=0, atol=0)


def test_round_trip(place):
    assert not checkpoints.Checkpoints(place).any_complete()
    path = checkpoints.save(place, 12345, PARTS, STATE)
    if isinstance(place, Path):
        assert path == place / "checkpoints" / "000000012345"
    else:
        assert re.fullmatch(re.escape(place) + "/checkpoints/000000012345-[0-9a-f]{6}", path)
    assert listing(path) == ["actors.safetensors", "state.json", "weights.safetensors"]
    loaded = checkpoints.load_latest(place)
    assert (loaded.step, loaded.state, loaded.path, loaded.skipped) == (12345, STATE, path, [])
    assert_equal(loaded.parts, PARTS)
    assert checkpoints.Checkpoints(place).any_complete()
    whole = PARTS["weights"]["layer/weight"]  # tensors that share memory or are strided
    part = {"whole": whole, "same": whole, "row": whole[1], "strided": whole.T, "wide": whole[:, :1].expand(2, 4)}
    checkpoints.save(place, 12345, {"weights": part}, {})  # in place of the one of this step
    loaded = checkpoints.load_latest(place)
    assert_equal(loaded.parts["weights"], part)
    assert (loaded.state, names(place)) == ({}, ["000000012345"])


def test_the_newest_are_kept(place):
    for step in (1, 20, 300, 4000):
        save(place, step, keep=2)
    assert names(place) == ["000000000300", "000000004000"]
    for step in (999_999_999_999, 1_000_000_000_000):  # wider than the names
        save(place, step)
    assert checkpoints.load_latest(place).step == 1_000_000_000_000


def corrupt(folder: Place, file: str, how: Callable[[bytes], bytes | None]) -> None:
    """Changes a file of a checkpoint, or removes it where `how` says None."""
    fs, path = url_to_fs(f"{folder}/{file}")
    data = how(fs.cat_file(path))
    fs.rm(path)
    if data is not None:
        fs.pipe_file(path, data)


@pytest.mark.parametrize(
    ("file", "how", "reason"),
    [
        ("weights.safetensors", lambda data: data[:-3], r"weights.safetensors has \d+ bytes instead of \d+"),
        ("weights.safetensors", lambda data: data[:-1] + b"?", "weights.safetensors is not what was written"),
        ("weights.safetensors", lambda data: None, "weights.safetensors is missing"),
        ("state.json", lambda data: data[:-3], "state.json is damaged"),
        ("state.json", lambda data: data.replace(b'"step": 200', b'"step": 201'), "state.json is not what was written"),
        ("state.json", lambda data: b"\xff\x00", "state.json is damaged"),
        ("state.json", lambda data: b"[]", "state.json is damaged"),
        ("state.json", lambda data: None, "state.json is missing"),
    ],
)
def test_a_damaged_checkpoint_is_skipped_and_reported(place, file, how, reason):
    save(place, 100)
    corrupt(save(place, 200), file, how)
    if not isinstance(place, Path) and "state.json is missing" in reason:  # behind a URL it is not complete yet
        loaded = checkpoints.load_latest(place)
        assert (loaded.step, loaded.skipped) == (100, [])
        return
    with pytest.warns(UserWarning, match=f"skipped checkpoint .*/000000000200.*: {reason}"):
        loaded = checkpoints.load_latest(place)
    assert (loaded.step, len(loaded.skipped)) == (100, 1)
    assert re.match(f"000000000200.*: {reason}", loaded.skipped[0])
    assert names(place) == ["000000000100", "000000000200"]  # loading changes nothing


def test_a_run_goes_on_from_an_earlier_checkpoint(place):
    """Newer, damaged checkpoints are neither loaded again nor do they count among those that are kept."""
    save(place, 100)
    for step in (200, 300):
        corrupt(save(place, step), "weights.safetensors", lambda data: None)
    save(place, 150, keep=1)
    assert names(place) == ["000000000150", "000000000200.superseded", "000000000300.superseded"]
    assert checkpoints.load_latest(place).step == 150
    save(place, 200, keep=1)
    assert names(place) == ["000000000200", "000000000300.superseded"]
    assert checkpoints.load_latest(place).state == {"step": 200}
    save(place, 301, keep=2)
    assert names(place) == ["000000000200", "000000000301"]


def test_a_checkpoint_that_is_removed_meanwhile_is_not_damaged(place, monkeypatch):
    """A run that keeps one checkpoint removes the one before, which `evaluate` has just listed."""
    save(place, 100)
    save(place, 200)
    read = checkpoints.Checkpoints.read

    def late(self, name):
        if name.startswith("000000000200"):
            self.remove(name)
        return read(self, name)

    monkeypatch.setattr(checkpoints.Checkpoints, "read", late)
    loaded = checkpoints.load_latest(place)
    assert (loaded.step, loaded.skipped) == (100, [])


def test_leftovers_are_ignored_then_removed(place):
    save(place, 100)
    left = ("000000000200.tmp", "000000000050.removed.tmp")
    if not isinstance(place, Path):
        left = ("000000000200-abcdef", "000000000050-abcdef", "000000000060-abcdef.superseded")
    for leftover in left:
        fs, path = url_to_fs(f"{place}/checkpoints/{leftover}/weights.safetensors")
        fs.makedirs(path.rpartition("/")[0])
        fs.pipe_file(path, b"half")
    loaded = checkpoints.load_latest(place)
    assert (loaded.step, loaded.skipped) == (100, [])
    save(place, 200)
    assert names(place) == ["000000000100", "000000000200"]


def test_runs_without_checkpoints_copied_runs_and_owners(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere: there is no such folder"):
        checkpoints.load_latest(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="has no checkpoints: expected the folder of a run"):
        checkpoints.load_latest(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    for run in (tmp_path, url := f"file://{tmp_path}", f"memory://{tmp_path}"):
        with pytest.raises(FileNotFoundError, match=f"{run} has no checkpoint yet"):
            checkpoints.load_latest(run)
    save(tmp_path, 200)  # a run that is copied behind a URL is read there
    assert checkpoints.load_latest(url).step == 200
    save(url, 200, keep=1)
    assert names(tmp_path) == ["000000000200"]
    assert checkpoints.Checkpoints(url).owner() is None
    for owner in ("first", "second"):
        checkpoints.Checkpoints(url).claim(owner)
        assert checkpoints.Checkpoints(url).owner() == owner


def test_names_of_version_0_1_are_upgraded(tmp_path):
    tensor = {"a": torch.ones(1)}
    actors = {"0/moment/reward": torch.ones(1), "0/envs/moment/x": torch.ones(1)}
    path = checkpoints.save(tmp_path, 1, {"optimiser": tensor, "actors": actors}, {"learner": {"optimiser": {}}})
    forge(path, lambda content: content.update(format=1))
    loaded = checkpoints.load_latest(tmp_path)
    assert (set(loaded.parts), loaded.state) == ({"optimizer", "actors"}, {"learner": {"optimizer": {}}})
    assert set(loaded.parts["actors"]) == {"0/env_output/reward", "0/envs/moment/x"}
    forge(path, lambda content: content.update(format=3))
    with pytest.warns(UserWarning, match="format 3, this version reads 1 and 2"), pytest.raises(FileNotFoundError):
        checkpoints.load_latest(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"step": -1}, ValueError, "step: expected at least 0, got -1"),
        ({"keep": 0}, ValueError, "keep: expected at least 1, got 0"),
        ({"parts": {"../weights": {}}}, ValueError, "parts: expected names of letters"),
        ({"state": {"x": object()}}, TypeError, "not JSON serializable"),
    ],
)
def test_impossible_arguments_write_nothing(place, arguments, error, message):
    with pytest.raises(error, match=message):
        checkpoints.save(**{"run": place, "step": 1, "parts": PARTS, "state": {}, **arguments})
    fs, path = url_to_fs(str(place))
    assert not fs.exists(f"{path}/checkpoints")


def test_write_json_is_atomic(tmp_path, monkeypatch):
    path = tmp_path / "config.json"
    write_json(path, {"seed": 1})
    with pytest.raises(TypeError):
        write_json(path, {"seed": object()})
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            write_json(path, {"seed": 2})
    assert json.loads(path.read_text()) == {"seed": 1}
    write_json(path, {"seed": 3})
    assert json.loads(path.read_text()) == {"seed": 3}
    assert [p.name for p in tmp_path.iterdir()] == ["config.json"]


def test_flatten_keeps_kinds_keys_and_tensors():
    tree = {"s": {0: {"m": torch.ones(2), "x/y": 1.5}}, "b": (0.9, 0.999), "p": [0, None, True, "a"], "e": {}}
    tensors, plain = serialization.flatten(tree)
    assert list(tensors) == ["s/0/m"]
    assert str(serialization.unflatten(tensors, json.loads(json.dumps(plain)))) == str(tree)
    for bad, message in (
        ({"a": [1, {2}]}, "a/1: expected tensors, numbers, strings and nests of them, got set"),
        ({"a": {0.5: 1}}, "expected keys of str or int, got float"),
        ({"a/b": torch.ones(1), "a": {"b": torch.ones(1)}}, "a/b: expected one tensor of this path, got two"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            serialization.flatten(bad)


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_a_learner_is_restored_exactly(tmp_path, tiny_agent, trajectory, optimizer):
    config = LearnerConfig(
        device="cpu", optimizer=optimizer, rmsprop_momentum=0.5, learning_rate=0.01, learning_rate_schedule="linear"
    )
    learner, resumed = (Learner(tiny_agent(), config, total_steps=1000) for _ in range(2))
    for seed in range(3):
        learner.update(trajectory(4, 6, seed))
    parts, counters = checkpoints.pack_learner(learner.state_dict())
    checkpoints.save(tmp_path, learner.steps, parts, {"learner": counters})
    expected = [learner.update(trajectory(4, 6, seed)) for seed in range(3, 6)]
    saved = checkpoints.unpack_learner(checkpoints.load_latest(tmp_path))
    resumed.load_state_dict(saved)
    assert resumed.version == 3
    assert [resumed.update(trajectory(4, 6, seed)) for seed in range(3, 6)] == expected
    assert (resumed.version, resumed.steps) == (learner.version, learner.steps)
    assert_equal(learner.weights(), resumed.weights())
    for state in (parts, checkpoints.pack_learner(saved)[0]):  # neither learner wrote into it
        assert_equal(state, checkpoints.load_latest(tmp_path).parts)


def test_random_generators_are_restored():
    before = serialization.rng_state()

    def draw():
        return random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(3).tolist()  # noqa: NPY002

    try:
        draw()  # stores Python's and numpy's second Gaussian
        state = json.loads(json.dumps(serialization.rng_state()))
        expected = draw()
        assert draw() != expected
        serialization.restore_rng(state)
        assert draw() == expected
    finally:
        serialization.restore_rng(before)
