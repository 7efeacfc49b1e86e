"""Checkpoints come back exactly, or the one before does, whatever happened to the disk or the process."""

import hashlib
import json
import os
import pickle
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from learner import checkpoints
from learner.learner import Learner, LearnerConfig

PARTS = {
    "weights": {"layer/weight": torch.arange(6.0).reshape(2, 3), "layer/scale": torch.tensor(0.1, dtype=torch.float64)},
    "actors": {
        "over": torch.tensor([True, False]),
        "frames": torch.arange(4, dtype=torch.uint8),
        "none": torch.empty(0, 3),
    },
}
STATE = {"episodes": 3, "config": {"discount": 0.99, "core": None}, "names": ["a", "b"]}


def save(run: Path, step: int, keep: int = 3) -> Path:
    parts = {
        name: {key: tensor + step for key, tensor in part.items()}
        for name, part in {"weights": PARTS["weights"]}.items()
    }
    return checkpoints.save(run, step, parts, {"step": step}, keep)


def names(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def assert_equal(first, second) -> None:
    assert first.keys() == second.keys()
    for name in first:
        assert first[name].dtype == second[name].dtype
        assert torch.equal(first[name], second[name])


def test_round_trip(tmp_path):
    path = checkpoints.save(tmp_path / "run", 12345, PARTS, STATE)
    assert path == tmp_path / "run" / "checkpoints" / "000000012345"
    assert sorted(p.name for p in path.iterdir()) == ["actors.safetensors", "state.json", "weights.safetensors"]
    loaded = checkpoints.load_latest(tmp_path / "run")
    assert (loaded.step, loaded.state, loaded.path, loaded.skipped) == (12345, STATE, path, [])
    assert loaded.parts.keys() == PARTS.keys()
    for part in PARTS:
        assert_equal(loaded.parts[part], PARTS[part])
    loaded.parts["weights"]["layer/weight"].add_(1)  # what is loaded is nobody else's memory
    assert_equal(checkpoints.load_latest(tmp_path / "run").parts["weights"], PARTS["weights"])


def test_tensors_that_share_memory_or_lie_askew(tmp_path):
    whole = torch.arange(6.0).reshape(2, 3)
    part = {
        "whole": whole,
        "same": whole,
        "row": whole[1],
        "transposed": whole.T,
        "expanded": whole[:, :1].expand(2, 4),
    }
    checkpoints.save(tmp_path, 1, {"weights": part}, {})
    assert_equal(checkpoints.load_latest(tmp_path).parts["weights"], part)


def test_the_newest_are_kept(tmp_path):
    for step in (1, 20, 300, 4000):
        save(tmp_path, step, keep=2)
    assert names(tmp_path) == ["000000000300", "000000004000"]
    assert checkpoints.load_latest(tmp_path).step == 4000
    save(tmp_path, 50000, keep=1)
    assert names(tmp_path) == ["000000050000"]


def test_steps_beyond_the_names_width_are_still_newest(tmp_path):
    for step in (999_999_999_999, 1_000_000_000_000):
        save(tmp_path, step)
    assert checkpoints.load_latest(tmp_path).step == 1_000_000_000_000


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def alter(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(bytes(data))


def replace(path: Path) -> None:
    """A state.json that is JSON, but another's."""
    content = json.loads(path.read_text())
    content["state"]["step"] += 1
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("file", "spoil", "reason"),
    [
        ("weights.safetensors", truncate, r"weights.safetensors has \d+ bytes instead of \d+"),
        ("weights.safetensors", alter, "weights.safetensors is not what was written"),
        ("weights.safetensors", Path.unlink, "weights.safetensors is missing"),
        ("state.json", truncate, "state.json is damaged"),
        ("state.json", replace, "state.json is not what was written"),
        ("state.json", lambda path: path.write_bytes(b"\xff\x00"), "state.json is damaged"),
        ("state.json", lambda path: path.write_text("[]"), "state.json is damaged"),
        ("state.json", Path.unlink, "state.json is missing"),
    ],
)
def test_a_spoilt_checkpoint_is_skipped_and_named(tmp_path, file, spoil, reason):
    save(tmp_path, 100)
    spoilt = save(tmp_path, 200)
    spoil(spoilt / file)
    with pytest.warns(UserWarning, match=f"skipped checkpoint .*000000000200: {reason}"):
        loaded = checkpoints.load_latest(tmp_path)
    assert loaded.step == 100
    assert len(loaded.skipped) == 1
    assert loaded.skipped[0].startswith("000000000200: ")
    assert names(tmp_path) == ["000000000100", "000000000200"]  # loading changes nothing


def test_a_run_goes_on_from_an_earlier_checkpoint(tmp_path):
    """What is newer than the checkpoint that it went on from neither returns nor displaces what is written then."""
    for step in (100, 200, 300):
        save(tmp_path, step)
    for step in (200, 300):
        truncate(tmp_path / "checkpoints" / f"{step:012d}" / "weights.safetensors")
    save(tmp_path, 150, keep=1)
    assert names(tmp_path) == ["000000000150", "000000000200.superseded", "000000000300.superseded"]
    assert checkpoints.load_latest(tmp_path).step == 150
    save(tmp_path, 200, keep=1)
    assert names(tmp_path) == ["000000000200", "000000000300.superseded"]
    assert checkpoints.load_latest(tmp_path).state == {"step": 200}


def test_the_same_step_is_replaced(tmp_path):
    checkpoints.save(tmp_path, 7, {}, {"try": 1})
    checkpoints.save(tmp_path, 7, {}, {"try": 2})
    assert names(tmp_path) == ["000000000007"]
    assert checkpoints.load_latest(tmp_path).state == {"try": 2}


def test_leftovers_of_interrupted_writes_are_ignored_then_removed(tmp_path):
    save(tmp_path, 100)
    for leftover in ("000000000200.tmp", "000000000050.removed.tmp"):
        (tmp_path / "checkpoints" / leftover).mkdir()
        (tmp_path / "checkpoints" / leftover / "weights.safetensors").write_bytes(b"half")
    loaded = checkpoints.load_latest(tmp_path)
    assert (loaded.step, loaded.skipped) == (100, [])
    save(tmp_path, 200)
    assert names(tmp_path) == ["000000000100", "000000000200"]


def test_nothing_to_load_says_what_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere: there is no such folder"):
        checkpoints.load_latest(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="has no checkpoints: expected the folder of a run"):
        checkpoints.load_latest(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(FileNotFoundError, match="has no checkpoint yet"):
        checkpoints.load_latest(tmp_path)
    truncate(save(tmp_path, 1) / "state.json")
    with (
        pytest.warns(UserWarning, match="skipped"),
        pytest.raises(FileNotFoundError, match=r"no checkpoint that can be read: 000000000001: state.json is damaged"),
    ):
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
def test_impossible_arguments_write_nothing(tmp_path, arguments, error, message):
    with pytest.raises(error, match=message):
        checkpoints.save(**{"run": tmp_path / "run", "step": 1, "parts": PARTS, "state": {}, **arguments})
    assert not (tmp_path / "run").exists()


def test_a_failed_write_leaves_those_before(tmp_path, monkeypatch):
    save(tmp_path, 100, keep=1)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save(tmp_path, 200, keep=1)
    monkeypatch.undo()
    assert names(tmp_path) == ["000000000100"]
    assert checkpoints.load_latest(tmp_path).step == 100


def test_nothing_that_is_loaded_can_run_code(tmp_path):
    """A pickle in the place of the tensors, with a manifest to match, is not executed."""
    marker = tmp_path / "executed"

    class Attack:
        def __reduce__(self):
            return Path.touch, (marker,)

    path = save(tmp_path, 1)
    data = pickle.dumps(Attack())
    (path / "weights.safetensors").write_bytes(data)
    content = json.loads((path / "state.json").read_text())
    del content["sha256"]
    digest = hashlib.sha256(data).hexdigest()
    content["files"] = {"weights.safetensors": {"size": len(data), "sha256": digest}}
    (path / "state.json").write_text(json.dumps({**content, "sha256": checkpoints._digest_json(content)}))
    with pytest.warns(UserWarning, match="skipped"), pytest.raises(FileNotFoundError):
        checkpoints.load_latest(tmp_path)
    assert not marker.exists()


KILLED = r"""
import os, random, shutil, signal, sys, time, warnings
from pathlib import Path
import torch
from learner import checkpoints

torch.set_num_threads(1)
warnings.simplefilter("error", UserWarning)  # a checkpoint that had to be skipped is a failure

def save(run, step, content):
    parts = {"weights": {"w": torch.full((256, 256), float(content))}, "actors": {"a": torch.full((64,), content)}}
    checkpoints.save(run, step, parts, {"content": content}, keep=1)

def load(run):
    for folder in (run / "checkpoints").iterdir():  # nothing half written or half removed looks like a checkpoint
        assert folder.suffix == ".tmp" or len(list(folder.iterdir())) == 3, folder
    loaded = checkpoints.load_latest(run)
    content = loaded.state["content"]
    for part in loaded.parts.values():
        for tensor in part.values():
            assert bool((tensor == content).all())
    return content

def in_child(function):
    pid = os.fork()
    if pid == 0:
        try:
            function()
        finally:
            os._exit(1)
    return pid

def die():
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)

def dies_at(count, run, step):
    '''Saves, and is killed on reaching the given step that touches the disk; if there are fewer, ends with status 0.'''
    left = [count]
    def before(function, half=None):
        def wrapped(*args, **kwargs):
            left[0] -= 1
            if left[0] == 0:
                if half:
                    half(*args)
                die()
            return function(*args, **kwargs)
        return wrapped
    def half_a_removal(path, *_):
        next(Path(path).iterdir()).unlink()
    def half_a_file(path, data):
        path.write_bytes(data[: len(data) // 2])
    os.fsync = before(os.fsync)
    Path.rename = before(Path.rename)
    Path.mkdir = before(Path.mkdir)
    shutil.rmtree = before(shutil.rmtree, half_a_removal)
    checkpoints._write_and_flush = before(checkpoints._write_and_flush, half_a_file)
    save(run, step, 2)
    os._exit(0)

base = Path(sys.argv[1])
for step in (20, 10):  # a newer checkpoint, and the same one again
    for count in range(1, 100):
        run = base / f"{step}-{count}"
        save(run, 10, 1)
        status = os.waitpid(in_child(lambda: dies_at(count, run, step)), 0)[1]
        assert load(run) in (1, 2), run
        save(run, 30, 3)
        assert load(run) == 3 and not list((run / "checkpoints").glob("*.tmp")), run
        if status == 0:
            break
        assert os.WTERMSIG(status) == signal.SIGKILL, status
    assert 8 < count < 99, count
    print("killed at", count - 1, "points")

def endless(run):
    step = checkpoints.load_latest(run).step
    while True:
        step += 1
        save(run, step, step)

run = base / "endless"
save(run, 1, 1)
generator, kills, reached = random.Random(0), 0, 1
while kills < 10 or reached <= 10:  # a busy machine may save nothing before a kill
    kills += 1
    child = in_child(lambda: endless(run))
    time.sleep(generator.uniform(0.02, 0.12))
    os.kill(child, signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    now = load(run)
    assert now >= reached
    reached = now
print("reached", reached)
"""


def test_kill_9_at_any_moment_leaves_a_checkpoint_that_loads(tmp_path):
    """At every step that touches the disk in turn, then at least ten times in a loop of writes, keeping only one."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        cwd=Path(checkpoints.__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "reached" in done.stdout


def test_write_json_is_whole_or_as_before(tmp_path, monkeypatch):
    path = tmp_path / "config.json"
    checkpoints.write_json(path, {"seed": 1})
    assert json.loads(path.read_text()) == {"seed": 1}
    with pytest.raises(TypeError):
        checkpoints.write_json(path, {"seed": object()})

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.write_json(path, {"seed": 2})
    monkeypatch.undo()
    assert json.loads(path.read_text()) == {"seed": 1}
    checkpoints.write_json(path, {"seed": 3})
    assert json.loads(path.read_text()) == {"seed": 3}
    assert [p.name for p in tmp_path.iterdir()] == ["config.json"]


def test_flatten_keeps_kinds_keys_and_tensors():
    tree = {
        "state": {0: {"m": torch.ones(2), "x/y": 1.5}},
        "betas": (0.9, 0.999),
        "params": [0, None, True, "a"],
        "e": {},
    }
    tensors, plain = checkpoints.flatten(tree)
    assert list(tensors) == ["state/0/m"]
    back = checkpoints.unflatten(tensors, json.loads(json.dumps(plain)))
    assert back.pop("state")[0].items() >= {"x/y": 1.5}.items()
    assert back == {"betas": (0.9, 0.999), "params": [0, None, True, "a"], "e": {}}
    with pytest.raises(TypeError, match="a/1: expected tensors, numbers, strings and nests of them, got set"):
        checkpoints.flatten({"a": [1, {2}]})
    with pytest.raises(TypeError, match="expected keys of str or int, got float"):
        checkpoints.flatten({"a": {0.5: 1}})
    with pytest.raises(ValueError, match="a/b: expected one tensor of this path, got two"):
        checkpoints.flatten({"a/b": torch.ones(1), "a": {"b": torch.ones(1)}})


@pytest.mark.parametrize("optimiser", ["adam", "rmsprop"])
def test_a_learner_comes_back_from_disk_exactly(tmp_path, tiny_agent, trajectory, optimiser):
    config = LearnerConfig(device="cpu", optimiser=optimiser, rmsprop_momentum=0.5)
    learner = Learner(tiny_agent(), config, total_steps=1000)
    for seed in range(2):
        learner.update(trajectory(3, 5, seed))
    parts, counters = checkpoints.pack_learner(learner.state_dict())
    checkpoints.save(tmp_path, learner.steps, parts, {"learner": counters})

    resumed = Learner(tiny_agent(), config, total_steps=1000)
    resumed.load_state_dict(checkpoints.unpack_learner(checkpoints.load_latest(tmp_path)))
    assert (resumed.version, resumed.steps) == (learner.version, learner.steps)
    for seed in range(2, 4):
        assert learner.update(trajectory(3, 5, seed)) == resumed.update(trajectory(3, 5, seed))
    assert_equal(learner.weights(), resumed.weights())


def test_random_generators_go_on_where_they_were(tmp_path):
    before = checkpoints.rng_state()

    def draw():
        return random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(3).tolist()  # noqa: NPY002

    try:
        draw()  # leaves Python's and numpy's second Gaussian in store
        checkpoints.save(tmp_path, 1, {}, {"rng": checkpoints.rng_state()})
        expected = draw()
        assert draw() != expected
        checkpoints.restore_rng(checkpoints.load_latest(tmp_path).state["rng"])
        assert draw() == expected
    finally:
        checkpoints.restore_rng(before)
