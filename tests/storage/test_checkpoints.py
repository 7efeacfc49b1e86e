"""Checkpoints are restored exactly, and the newest are kept; learners, trees and random generators as parts of them."""

import functools
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fsspec.core import url_to_fs

from agent import Trajectory
from learner.config import LearnerConfig
from learner.learner import Learner
from storage import checkpoints, serialization
from storage.errors import StorageError
from storage.run import Run
from storage.stores import UrlStore
from tests.learner.conftest import TinyAgent
from tests.learner.runs import PARTS, Place, listing, names, save

STATE = {"episodes": 3, "config": {"discount": 0.99, "core": None}, "names": ["a", "b"]}


@pytest.fixture(params=["disk", "file", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A run without checkpoints: a folder, and URLs of stores with and without real folders."""
    path = tmp_path / "run"
    if request.param == "disk":
        path.mkdir()
    places: dict[str, Place] = {"disk": path, "file": f"file://{path}", "memory": f"memory://{path}"}
    return places[request.param]


assert_equal = functools.partial(torch.testing.assert_close, rtol=0, atol=0)


def test_round_trip(place: Place) -> None:
    path = checkpoints.save(place, 12345, PARTS, STATE)
    if isinstance(place, Path):
        assert path == place / "checkpoints" / "000000012345"
    else:
        assert re.fullmatch(re.escape(place) + "/checkpoints/000000012345-[0-9a-f]{6}", path)
    assert listing(path) == ["actors.safetensors", "state.json", "weights.safetensors"]
    loaded = checkpoints.load_latest(place)
    assert (loaded.step, loaded.state, loaded.path, loaded.skipped) == (12345, STATE, path, [])
    assert_equal(loaded.parts, PARTS)


def test_a_checkpoint_of_the_same_step_is_replaced(place: Place) -> None:
    """Here by tensors that share memory or are strided."""
    checkpoints.save(place, 12345, PARTS, STATE)
    whole = PARTS["weights"]["layer/weight"]
    part = {"whole": whole, "same": whole, "row": whole[1], "strided": whole.T, "wide": whole[:, :1].expand(2, 4)}
    checkpoints.save(place, 12345, {"weights": part}, {})
    loaded = checkpoints.load_latest(place)
    assert_equal(loaded.parts["weights"], part)
    assert loaded.state == {}
    assert names(place) == ["000000012345"]


def test_the_newest_are_kept(place: Place) -> None:
    for step in (1, 20, 300, 4000):
        save(place, step, keep=2)
    assert names(place) == ["000000000300", "000000004000"]
    for step in (999_999_999_999, 1_000_000_000_000):  # wider than the names
        save(place, step)
    assert checkpoints.load_latest(place).step == 1_000_000_000_000


def test_the_first_of_each_so_many_steps_are_kept_too(place: Place) -> None:
    for step in (0, 30, 99, 100, 250, 299, 310, 320, 330):
        save(place, step, keep=2, every=100)
    assert names(place) == [f"{step:012d}" for step in (0, 100, 250, 310, 320, 330)]
    save(place, 340, keep=2)
    assert names(place) == [f"{step:012d}" for step in (330, 340)], "none of them from now on"


def test_a_checkpoint_is_read_by_its_name(place: Place) -> None:
    first, second = (save(place, step) for step in (1, 20))
    for path in (first, second):
        assert checkpoints.load(place, name=str(path).rpartition("/")[2]).path == path
    assert checkpoints.load(place).path == second
    with pytest.raises(FileNotFoundError, match="checkpoint 000000000002: FileNotFoundError"):
        checkpoints.load(place, name="000000000002")


def test_a_run_resumes_from_an_earlier_checkpoint(place: Place) -> None:
    """Newer, damaged checkpoints are neither loaded again nor do they count among those that are kept.

    In a folder they get another name, until checkpoints of their step or a later one are written.
    """
    save(place, 100)
    for step in (200, 300):
        fs, path = url_to_fs(f"{save(place, step)}/weights.safetensors")
        fs.rm(path)

    save(place, 150, keep=1)
    superseded = []
    if isinstance(place, Path):
        superseded = ["000000000200.superseded", "000000000300.superseded"]
    assert names(place) == ["000000000150", *superseded]
    assert checkpoints.load_latest(place).step == 150

    save(place, 200, keep=1)
    assert names(place) == ["000000000200", *superseded[1:]]
    assert checkpoints.load_latest(place).state == {"step": 200}

    save(place, 301, keep=2)
    assert names(place) == ["000000000200", "000000000301"]


@pytest.mark.parametrize(("left", "expected"), [(100, 100), (None, 300)])
def test_a_checkpoint_that_is_removed_meanwhile_is_not_damaged(
    place: Place, monkeypatch: pytest.MonkeyPatch, left: int | None, expected: int
) -> None:
    """A run removes old checkpoints, which `evaluate` has just listed, when it has written newer ones.

    Either checkpoint 100 is left, or none, and then there is a new one, 300.
    """
    for step in (100, 200):
        save(place, step)
    read = checkpoints.read

    def late_read(store: Any, name: str, needed: Any = None) -> checkpoints.Checkpoint:
        if name.startswith("000000000200"):
            for old in store.names():
                if left is None or not old.startswith(f"{left:012d}"):
                    store.remove(old)
            if left is None:
                save(place, 300)
        return read(store, name, needed)

    monkeypatch.setattr(checkpoints, "read", late_read)
    loaded = checkpoints.load_latest(place)
    assert loaded.step == expected
    assert loaded.skipped == []


def test_leftovers_are_ignored_then_removed(place: Place) -> None:
    """Of writes and removals that did not end: in a folder by their names, behind a URL by a missing state.json."""
    save(place, 100)
    if isinstance(place, Path):
        leftovers = ["000000000200-01234567.tmp", "000000000050.superseded-abcdef01.tmp"]
    else:
        leftovers = ["000000000200-abcdef", "000000000050-abcdef", "000000000060-abcdef.superseded"]
    for leftover in leftovers:
        fs, path = url_to_fs(f"{place}/checkpoints/{leftover}/weights.safetensors")
        fs.makedirs(path.rpartition("/")[0])
        fs.pipe_file(path, b"half")
    loaded = checkpoints.load_latest(place)
    assert (loaded.step, loaded.skipped) == (100, [])
    save(place, 200)
    assert names(place) == ["000000000100", "000000000200"]


def test_only_what_this_program_left_is_removed(place: Place) -> None:
    """Other folders of like names are of the user."""
    others = ["000000000200.tmp", "notes-01234567.tmp", "000000000200-notes"]
    fs, root = url_to_fs(f"{place}/checkpoints")
    for other in others:
        fs.makedirs(f"{root}/{other}")
        fs.pipe_file(f"{root}/{other}/file.txt", b"precious")
    save(place, 100, keep=1)
    assert all(fs.exists(f"{root}/{other}/file.txt") for other in others)


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_link_in_place_of_the_checkpoints_is_not_followed(scheme: str, tmp_path: Path) -> None:
    """Nothing is read, written or removed where it leads to. The run itself may be a link."""
    other = tmp_path / "other"
    run = tmp_path / "run"
    other.mkdir()
    save(other, 100)
    (other / "checkpoints" / "000000000050-01234567.tmp").mkdir()
    run.mkdir()
    (run / "checkpoints").symlink_to(other / "checkpoints")
    for use in (checkpoints.load_latest, lambda place: save(place, 200, keep=1)):
        with pytest.raises((OSError, StorageError), match="expected a folder, got a symbolic link"):
            use(f"{scheme}{run}")
    with pytest.raises(OSError, match="expected a folder, got a symbolic link"), Run(run).lock():
        pass
    left = {path.name for path in (other / "checkpoints").iterdir()}
    assert left == {"000000000050-01234567.tmp", "000000000100"}

    link = tmp_path / "link"
    link.symlink_to(other)
    assert checkpoints.load_latest(f"{scheme}{link}").step == 100
    save(f"{scheme}{link}", 200)
    assert checkpoints.load_latest(other).step == 200


def test_a_folder_without_checkpoints_is_no_run(tmp_path: Path) -> None:
    for run in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(FileNotFoundError, match=f"{run} has no checkpoints: expected the folder of a run"):
            checkpoints.load_latest(run)


def test_a_run_may_have_no_checkpoint_yet(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    for run in (tmp_path, f"file://{tmp_path}", f"memory://{tmp_path}"):
        with pytest.raises(FileNotFoundError, match=f"{run} has no checkpoint yet"):
            checkpoints.load_latest(run)


def test_a_run_that_is_copied_behind_a_url_is_read_there(tmp_path: Path) -> None:
    url = f"file://{tmp_path}"
    save(tmp_path, 200)
    assert checkpoints.load_latest(url).step == 200
    save(url, 200, keep=1)
    assert names(tmp_path) == ["000000000200"]


def test_a_url_belongs_to_the_last_run_that_claims_it(tmp_path: Path) -> None:
    url = f"file://{tmp_path}"
    save(url, 200)
    assert UrlStore(url).owner() is None
    for owner in ("first", "second"):
        UrlStore(url).claim(owner)
        assert UrlStore(url).owner() == owner


def test_a_state_that_json_cannot_hold_writes_nothing(place: Place) -> None:
    for state, error in (({"x": object()}, TypeError), ({"x": float("nan")}, ValueError)):
        with pytest.raises(error, match=r"not JSON (serializable|compliant)"):
            checkpoints.save(place, 1, PARTS, state)
    fs, path = url_to_fs(str(place))
    assert not fs.exists(f"{path}/checkpoints")


def test_flatten_keeps_kinds_keys_and_tensors() -> None:
    tree = {"s": {0: {"m": torch.ones(2), "x/y": 1.5}}, "b": (0.9, 0.999), "p": [0, None, True, "a"], "e": {}}
    tensors, plain = serialization.flatten(tree)
    assert list(tensors) == ["s/0/m"]
    assert str(serialization.unflatten(tensors, json.loads(json.dumps(plain)))) == str(tree)
    with pytest.raises(TypeError, match="a/1: expected tensors, numbers, strings and nests of them, got set"):
        serialization.flatten({"a": [1, {2}]})
    with pytest.raises(ValueError, match="a/b: expected one tensor of this path, got two"):
        serialization.flatten({"a/b": torch.ones(1), "a": {"b": torch.ones(1)}})


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_a_learner_is_restored_exactly(
    tmp_path: Path, tiny_agent: Callable[..., TinyAgent], trajectory: Callable[..., Trajectory], optimizer: str
) -> None:
    schedule = {"learning_rate": 0.01, "learning_rate_schedule": "linear"}
    config = LearnerConfig(device="cpu", optimizer=optimizer, rmsprop_momentum=0.5, **schedule)
    learner = Learner(tiny_agent(), config, total_steps=1000)
    resumed = Learner(tiny_agent(), config, total_steps=1000)

    # Three updates before the checkpoint and three after it.
    for seed in (0, 1, 2):
        learner.update(trajectory(4, 6, seed))
    parts, counters = checkpoints.pack_learner(learner.state_dict())
    checkpoints.save(tmp_path, learner.steps, parts, {"learner": counters})
    expected = [learner.update(trajectory(4, 6, seed)) for seed in (3, 4, 5)]

    saved = checkpoints.unpack_learner(checkpoints.load_latest(tmp_path))
    resumed.load_state_dict(saved)
    assert resumed.version == 3
    assert [resumed.update(trajectory(4, 6, seed)) for seed in (3, 4, 5)] == expected
    assert (resumed.version, resumed.steps) == (learner.version, learner.steps)
    assert_equal(learner.weights(), resumed.weights())

    # Neither learner wrote into the state that was saved.
    in_checkpoint = checkpoints.load_latest(tmp_path).parts
    parts_again, _ = checkpoints.pack_learner(saved)
    assert_equal(parts, in_checkpoint)
    assert_equal(parts_again, in_checkpoint)


def test_the_memory_of_a_sequence_learner_is_a_part(tmp_path: Path) -> None:
    state = {"weights": {"w": torch.ones(2)}, "optimizer": {}, "memory": [(torch.zeros(3), 5)], "step": 7}
    parts, plain = checkpoints.pack_learner(state)
    assert parts.keys() == {"weights", "optimizer", "memory"}
    checkpoints.save(tmp_path, 7, parts, {"learner": plain})
    loaded = checkpoints.load_latest(tmp_path)
    assert_equal(checkpoints.unpack_learner(loaded), state)

    other_parts = {name: part for name, part in loaded.parts.items() if name != "memory"}
    without = loaded._replace(parts=other_parts)
    with pytest.raises(ValueError, match="parts: expected memory in it"):
        checkpoints.unpack_learner(without)


def test_random_generators_are_restored() -> None:
    before = serialization.rng_state()

    def draw() -> tuple[Any, ...]:
        return random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(3).tolist()  # noqa: NPY002

    try:
        draw()  # stores Python's and numpy's second Gaussian
        state = json.loads(json.dumps(serialization.rng_state()))
        expected = draw()
        assert draw() != expected
        serialization.restore_rng(state)
        assert draw() == expected

        # A state that is too short is refused.
        for name in ("python", "numpy", "torch"):
            with pytest.raises(ValueError, match=f"rng: {name}: expected"):
                serialization.restore_rng(state | {name: state[name][:-1]})
    finally:
        serialization.restore_rng(before)


def test_weights_of_another_environment_are_refused_in_one_line(tmp_path: Path) -> None:
    saved = torch.nn.Linear(3, 2).state_dict()
    checkpoints.save(tmp_path, 1, {"weights": saved}, {})
    message = "or its observations, actions or tokens are not those of its training: size mismatch for weight: "
    with pytest.raises(ValueError, match=message) as failed:
        checkpoints.load_weights(torch.nn.Linear(4, 5).load_state_dict, tmp_path, tmp_path / "config.json")
    assert "bias" not in str(failed.value)
