"""Checkpoints come back exactly, or the one before does, whatever happened to disk, network or process."""

import hashlib
import json
import os
import pickle
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from fsspec.core import url_to_fs

from learner import checkpoints, storage
from learner.learner import Learner, LearnerConfig
from tests.unreliable import Unreliable

Place = Path | str

PARTS = {
    "weights": {"layer/weight": torch.arange(6.0).reshape(2, 3), "layer/scale": torch.tensor(0.1, dtype=torch.float64)},
    "actors": {
        "over": torch.tensor([True, False]),
        "frames": torch.arange(4, dtype=torch.uint8),
        "none": torch.empty(0, 3),
    },
}
STATE = {"episodes": 3, "config": {"discount": 0.99, "core": None}, "names": ["a", "b"]}


@pytest.fixture(params=["disk", "file", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A run that is not there yet: a folder, a URL where folders are real, and a URL where they are only names."""
    path = tmp_path / "run"
    return {"disk": path, "file": f"file://{path}", "memory": f"memory://{path}"}[request.param]


def save(run: Place, step: int, keep: int = 3) -> Place:
    parts = {
        name: {key: tensor + step for key, tensor in part.items()}
        for name, part in {"weights": PARTS["weights"]}.items()
    }
    return checkpoints.save(run, step, parts, {"step": step}, keep)


def listing(folder: Place) -> list[str]:
    """Names of what is in a folder, without the random endings that folders have behind a URL."""
    fs, path = url_to_fs(str(folder))
    return sorted(re.sub("-[0-9a-f]{6}", "", name.rpartition("/")[2]) for name in fs.ls(path, detail=False))


def names(run: Place) -> list[str]:
    return listing(f"{run}/checkpoints")


def assert_equal(first, second) -> None:
    assert first.keys() == second.keys()
    for name in first:
        assert first[name].dtype == second[name].dtype
        assert torch.equal(first[name], second[name])


def test_round_trip(place):
    path = checkpoints.save(place, 12345, PARTS, STATE)
    if isinstance(place, Path):
        assert path == place / "checkpoints" / "000000012345"
    else:
        assert re.fullmatch(re.escape(place) + "/checkpoints/000000012345-[0-9a-f]{6}", path)
    assert listing(path) == ["actors.safetensors", "state.json", "weights.safetensors"]
    loaded = checkpoints.load_latest(place)
    assert (loaded.step, loaded.state, loaded.path, loaded.skipped) == (12345, STATE, path, [])
    assert loaded.parts.keys() == PARTS.keys()
    for part in PARTS:
        assert_equal(loaded.parts[part], PARTS[part])
    loaded.parts["weights"]["layer/weight"].add_(1)  # what is loaded is nobody else's memory
    assert_equal(checkpoints.load_latest(place).parts["weights"], PARTS["weights"])


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


def test_the_newest_are_kept(place):
    for step in (1, 20, 300, 4000):
        save(place, step, keep=2)
    assert names(place) == ["000000000300", "000000004000"]
    assert checkpoints.load_latest(place).step == 4000
    save(place, 50000, keep=1)
    assert names(place) == ["000000050000"]


def test_steps_beyond_the_names_width_are_still_newest(place):
    for step in (999_999_999_999, 1_000_000_000_000):
        save(place, step)
    assert checkpoints.load_latest(place).step == 1_000_000_000_000


def spoil(folder: Place, file: str, how: Callable[[bytes], bytes | None]) -> None:
    """Changes a file of a checkpoint, or removes it where `how` says None."""
    fs, path = url_to_fs(f"{folder}/{file}")
    data = how(fs.cat_file(path))
    fs.rm(path)
    if data is not None:
        fs.pipe_file(path, data)


def truncate(data: bytes) -> bytes:
    return data[:-3]


def alter(data: bytes) -> bytes:
    return data[:-2] + bytes([data[-2] ^ 1]) + data[-1:]


def remove(data: bytes) -> None:
    return None


def replace(data: bytes) -> bytes:
    """A state.json that is JSON, but another's."""
    content = json.loads(data)
    content["state"]["step"] += 1
    return json.dumps(content).encode()


@pytest.mark.parametrize(
    ("file", "how", "reason"),
    [
        ("weights.safetensors", truncate, r"weights.safetensors has \d+ bytes instead of \d+"),
        ("weights.safetensors", alter, "weights.safetensors is not what was written"),
        ("weights.safetensors", remove, "weights.safetensors is missing"),
        ("state.json", truncate, "state.json is damaged"),
        ("state.json", replace, "state.json is not what was written"),
        ("state.json", lambda data: b"\xff\x00", "state.json is damaged"),
        ("state.json", lambda data: b"[]", "state.json is damaged"),
    ],
)
def test_a_spoilt_checkpoint_is_skipped_and_named(place, file, how, reason):
    save(place, 100)
    spoil(save(place, 200), file, how)
    with pytest.warns(UserWarning, match=f"skipped checkpoint .*/000000000200.*: {reason}"):
        loaded = checkpoints.load_latest(place)
    assert loaded.step == 100
    assert len(loaded.skipped) == 1
    assert re.match(f"000000000200.*: {reason}", loaded.skipped[0])
    assert names(place) == ["000000000100", "000000000200"]  # loading changes nothing


def test_without_its_manifest_a_checkpoint_is_spoilt_on_a_disk_and_not_there_behind_a_url(tmp_path):
    url = f"file://{tmp_path}/url"
    for run in (tmp_path / "disk", url):
        save(run, 100)
        spoil(save(run, 200), "state.json", remove)
    with pytest.warns(UserWarning, match="skipped checkpoint .*000000000200: state.json is missing"):
        assert checkpoints.load_latest(tmp_path / "disk").step == 100
    loaded = checkpoints.load_latest(url)
    assert (loaded.step, loaded.skipped) == (100, [])


def test_a_run_goes_on_from_an_earlier_checkpoint(place):
    """What is newer than the checkpoint that it went on from neither returns nor displaces what is written then."""
    save(place, 100)
    for step in (200, 300):
        spoil(save(place, step), "weights.safetensors", truncate)
    save(place, 150, keep=1)
    assert names(place) == ["000000000150", "000000000200.superseded", "000000000300.superseded"]
    assert checkpoints.load_latest(place).step == 150
    save(place, 200, keep=1)
    assert names(place) == ["000000000200", "000000000300.superseded"]
    assert checkpoints.load_latest(place).state == {"step": 200}


def test_what_another_program_removes_meanwhile_is_no_damage(place, monkeypatch):
    """As a run does that keeps one checkpoint, when `evaluate` has just seen the one before."""
    save(place, 100)
    save(place, 200)
    read = checkpoints._read

    def late(store, name):
        if name.startswith("000000000200"):
            store.remove(name)
        return read(store, name)

    monkeypatch.setattr(checkpoints, "_read", late)
    loaded = checkpoints.load_latest(place)
    assert (loaded.step, loaded.skipped) == (100, [])


def test_the_same_step_is_replaced(place):
    checkpoints.save(place, 7, {}, {"try": 1})
    checkpoints.save(place, 7, {}, {"try": 2})
    assert names(place) == ["000000000007"]
    assert checkpoints.load_latest(place).state == {"try": 2}


def test_leftovers_of_interrupted_writes_are_ignored_then_removed(place):
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


def test_nothing_to_load_says_what_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere: there is no such folder"):
        checkpoints.load_latest(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="has no checkpoints: expected the folder of a run"):
        checkpoints.load_latest(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    for run in (tmp_path, f"file://{tmp_path}", f"memory://{tmp_path}"):
        with pytest.raises(FileNotFoundError, match=f"{run} has no checkpoint yet"):
            checkpoints.load_latest(run)
    spoil(save(tmp_path, 1), "state.json", truncate)
    for run in (tmp_path, f"file://{tmp_path}"):
        with (
            pytest.warns(UserWarning, match="skipped"),
            pytest.raises(FileNotFoundError, match=r"no checkpoint that can be read: 000000000001: state.json is d"),
        ):
            checkpoints.load_latest(run)


def test_a_run_that_was_copied_behind_a_url_is_read_there(tmp_path):
    save(tmp_path, 100)
    save(tmp_path, 200)
    assert checkpoints.load_latest(f"file://{tmp_path}").step == 200
    save(f"file://{tmp_path}", 200, keep=1)
    assert names(tmp_path) == ["000000000200"]


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
    assert not fs.exists(path)


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


@pytest.fixture
def unreliable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[float]]]:
    """The URL of a run on an unreliable store, and the pauses that were made before new tries, which take no time."""
    pauses: list[float] = []
    monkeypatch.setattr(storage.time, "sleep", pauses.append)
    Unreliable.fail(())
    yield f"unreliable://{tmp_path}/run", pauses
    Unreliable.fail(())


@pytest.mark.parametrize("step", [20, 10, 5], ids=["newer", "same", "earlier"])
@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_a_store_that_fails_at_any_moment_leaves_a_checkpoint_that_loads(unreliable, step, late):
    """Whether an operation had its effect before the answer was lost or not."""
    url = unreliable[0]
    for count in range(1, 100):
        run = f"{url}{count}"
        checkpoints.save(run, 10, PARTS, {"try": 1})
        Unreliable.fail(range(count, 10**6), late)
        said = None
        try:
            checkpoints.save(run, step, PARTS, {"try": 2}, keep=1)
        except storage.StorageError as error:
            said = str(error)
        assert said in (None, f"{run} cannot be read or written: ConnectionResetError: the network is down")
        Unreliable.fail(())
        for name in (remote := storage.Remote(run)).folders():  # nothing half written looks like a checkpoint
            assert checkpoints._read(remote, name).state["try"] in (1, 2)
        assert checkpoints.load_latest(run).state["try"] in (1, 2)
        checkpoints.save(run, step, PARTS, {"try": 3}, keep=1)
        assert checkpoints.load_latest(run).state == {"try": 3}
        assert set(names(run)) - {"000000000010.superseded"} == {f"{step:012d}"}
        if said is None:
            break
    assert 5 < count < 99


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_what_fails_is_tried_again(unreliable, late, caplog):
    """Each operation of a save in turn fails three times; keeping one, removals included."""
    url, pauses = unreliable
    for count in range(1, 100):
        run = f"{url}{count}"
        checkpoints.save(run, 10, PARTS, {"try": 1})
        pauses.clear()
        Unreliable.fail(range(count, count + 3), late)
        checkpoints.save(run, 20, PARTS, {"try": 2}, keep=1)
        assert checkpoints.load_latest(run).state == {"try": 2}
        assert names(run) == ["000000000020"]
        if not pauses:
            break
    assert 5 < count < 99
    assert f"{url}1: ConnectionResetError: the network is down; once more in 9 s" in caplog.text


@pytest.mark.parametrize(
    ("error", "tries"), [(ConnectionResetError("the network is down"), [1, 3, 9]), (PermissionError("not yours"), [])]
)
def test_what_cannot_be_read_for_now_is_not_taken_for_damage(unreliable, error, tries):
    """The newest checkpoint is not skipped; what is forbidden is not tried again either."""
    url, pauses = unreliable
    for step in (10, 20):
        save(url, step)
    Unreliable.fail(range(2, 10**6), error=error)
    with pytest.raises(storage.StorageError, match=f"{url} cannot be read or written: {type(error).__name__}: {error}"):
        checkpoints.load_latest(url)
    assert pauses == tries
    Unreliable.fail(range(2, 5), error=ConnectionResetError())
    assert checkpoints.load_latest(url).step == 20


@pytest.mark.parametrize("place", ["file", "memory"], indirect=True)
def test_the_owner_of_a_url_is_who_claimed_it_last(place):
    remote = storage.Remote(place)
    assert remote.owner() is None
    for owner in ("first", "second"):
        remote.claim(owner)
        assert remote.owner() == owner
    assert remote.folders() == []


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
from fsspec.implementations.local import LocalFileSystem
from learner import checkpoints, storage

torch.set_num_threads(1)
base, scheme = Path(sys.argv[1]), sys.argv[2]  # runs are named by folder or, with file://, by URL
if not scheme:
    warnings.simplefilter("error", UserWarning)  # a checkpoint that had to be skipped is a failure

def save(run, step, content):
    parts = {"weights": {"w": torch.full((256, 256), float(content))}, "actors": {"a": torch.full((64,), content)}}
    checkpoints.save(scheme + str(run) if scheme else run, step, parts, {"content": content}, keep=1)

def load(run):
    for folder in (run / "checkpoints").iterdir():  # nothing half written or half removed looks like a checkpoint
        files = [path.name for path in folder.iterdir()]
        assert folder.suffix == ".tmp" or len(files) == 3 or scheme and "state.json" not in files, folder
    loaded = checkpoints.load_latest(scheme + str(run) if scheme else run)
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
    def half_a_file(*arguments):
        *_, path, data = arguments
        if Path(path).parent.exists():
            Path(path).write_bytes(data[: len(data) // 2])
    os.fsync = before(os.fsync)
    Path.rename = before(Path.rename)
    Path.mkdir = before(Path.mkdir)
    shutil.rmtree = before(shutil.rmtree, half_a_removal)
    storage.write_and_flush = before(storage.write_and_flush, half_a_file)
    LocalFileSystem.pipe_file = before(LocalFileSystem.pipe_file, half_a_file)
    LocalFileSystem.mkdir = before(LocalFileSystem.mkdir)
    LocalFileSystem.rm = before(LocalFileSystem.rm)
    save(run, step, 2)
    os._exit(0)

for step in (20, 10):  # a newer checkpoint, and the same one again
    for count in range(1, 100):
        run = base / f"{step}-{count}"
        save(run, 10, 1)
        status = os.waitpid(in_child(lambda: dies_at(count, run, step)), 0)[1]
        assert load(run) in (1, 2), run
        save(run, 30, 3)
        assert load(run) == 3, run
        left = [path.name for path in (run / "checkpoints").iterdir() if path.suffix != ".superseded"]
        assert [name[:12] for name in left] == [f"{30:012d}"], left
        if status == 0:
            break
        assert os.WTERMSIG(status) == signal.SIGKILL, status
    assert 8 < count < 99, count
    print("killed at", count - 1, "points")

def endless(run):
    step = load(run)
    while True:
        step += 1
        save(run, step, step)

run = base / "endless"
folder, whole = run / "checkpoints", f"{'[0-9]' * 12}{'-*' if scheme else ''}/state.json"
save(run, 1, 1)
generator, kills, reached = random.Random(0), 0, 1
while kills < 10 or reached <= 10:  # a busy machine may save nothing before a kill
    kills += 1
    child = in_child(lambda: endless(run))
    while not any(int(path.parent.name[:12]) > reached for path in folder.glob(whole)):
        time.sleep(0.001)
    time.sleep(generator.uniform(0.02, 0.12))
    os.kill(child, signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    now = load(run)
    assert now >= reached
    reached = now
print("reached", reached)
"""


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_kill_9_at_any_moment_leaves_a_checkpoint_that_loads(tmp_path, scheme):
    """At every step that touches the disk in turn, then ten times at random in a loop of writes, keeping only one."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), scheme],
        cwd=Path(checkpoints.__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=240,
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
def test_a_learner_comes_back_exactly(place, tiny_agent, trajectory, optimiser):
    config = LearnerConfig(device="cpu", optimiser=optimiser, rmsprop_momentum=0.5)
    learner = Learner(tiny_agent(), config, total_steps=1000)
    for seed in range(2):
        learner.update(trajectory(3, 5, seed))
    parts, counters = checkpoints.pack_learner(learner.state_dict())
    checkpoints.save(place, learner.steps, parts, {"learner": counters})

    resumed = Learner(tiny_agent(), config, total_steps=1000)
    resumed.load_state_dict(checkpoints.unpack_learner(checkpoints.load_latest(place)))
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
