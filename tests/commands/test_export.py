"""`compressive export`: a run in half precision that is played and looked at like the run that it came from."""

import base64
import dataclasses
import errno
import importlib.util
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from commands.export import _name_for_example
from envs.words import explain_ids
from storage import checkpoints
from storage.exchange import KEY
from storage.metrics import read_metrics
from storage.provenance import read_launches
from storage.run import Run
from tests.commands.cli import SMALL, Commands
from training.evaluation import load_trained_agent
from training.factories import make_agent
from training.presets import make_preset


def test_an_agent_is_exported(finished: tuple[Path, str], tmp_path: Path, cli: Commands) -> None:
    run, _ = finished
    small = tmp_path / "small"
    assert f"visualize {small}" in cli.run("export", run, small)

    # Its weights and configuration.
    whole = load_trained_agent(Run(run))
    half = load_trained_agent(Run(small))
    for mine, theirs in zip(half.agent.parameters(), whole.agent.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2**-10, atol=1e-7)
    assert half.checkpoint.parts["weights"]["policy.weight"].dtype == torch.float16
    assert half.config == whole.config

    # Its curves, evaluation and commands.
    assert read_metrics(small) == read_metrics(run), "up to 200 rows"
    assert json.loads((small / "evaluation.json").read_text())["episodes"] == 2
    launches = read_launches(Run(run))
    assert launches
    assert read_launches(Run(small)) == launches

    # It can be evaluated, but neither replaced nor resumed.
    (evaluated,) = json.loads(cli.run("evaluate", small, "--episodes=2", "--json"))
    assert evaluated["episodes"] == 2
    cli.refuse("export", run, small, words="output: expected a new folder")
    cli.refuse("launch", "--resume", small, "--local", "--frames=1M", words="the weights alone of an exported one")


def test_an_exported_agent_that_was_not_finished_is_not_to_be_resumed(
    copied: Callable[..., Path], tmp_path: Path, cli: Commands
) -> None:
    run = copied("early", frames=10**9)
    small = tmp_path / "runs" / "small"
    cli.run("export", run, small)
    for words in (cli.run("runs", small.parent), cli.run("status", small)):
        assert "exported" in words
        assert "--resume" not in words
    words = ["expected a checkpoint with an optimizer and counters", "the weights alone", f"--from-run {small}"]
    cli.refuse("launch", "--resume", small, "--local", words=words)


def test_an_exported_checkpoint_is_not_to_be_evaluated_by_resuming_it(
    finished: tuple[Path, str], tmp_path: Path, cli: Commands
) -> None:
    """That of the end has no evaluation of its own."""
    run, _ = finished
    last = sorted((run / "checkpoints").iterdir())[-1]
    small = tmp_path / "runs" / "small"
    cli.run("export", last, small)
    for words in (cli.run("runs", small.parent), cli.run("status", small)):
        assert "exported" in words
        assert "--resume" not in words


def test_the_curves_of_a_very_long_run_are_left_out(
    copied: Callable[..., Path], tmp_path: Path, cli: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = copied()
    monkeypatch.setattr("storage.metrics.MOST_BYTES", 1000)
    cli.run("export", run, tmp_path / "small")
    assert "without curves: " in cli.printed
    assert read_metrics(tmp_path / "small") == []


def test_the_command_that_plays_an_export_has_its_permissions(tmp_path: Path, cli: Commands) -> None:
    run = tmp_path / "run"
    env = "gym:tests.envs.odd:Odd-v0"
    cli.run("launch", "--local", "--env", env, *SMALL, "--frames=32", "--run", run)
    assert f"visualize {tmp_path / 'small'} --allow {env}" in cli.run("export", run, tmp_path / "small")


def test_a_file_that_cannot_be_written_is_said_before_the_graph_is_made(
    finished: tuple[Path, str], tmp_path: Path, cli: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: object) -> None:
        raise AssertionError("the agent was loaded")

    monkeypatch.setattr("commands.export.load_trained_agent", load)
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "agent.onnx", Path("/proc/none/agent.onnx")):
        cli.refuse("export", finished[0], path, words=["output: ", str(path.parent)])


@pytest.mark.parametrize("name", ["agent.ONNX", "agent.onx", "agent.pt", "agent.safetensors"])
def test_an_ending_of_no_form_is_no_folder(
    name: str, finished: tuple[Path, str], tmp_path: Path, cli: Commands
) -> None:
    words = f"output: expected a folder, or a file that ends in .onnx or .pt2, got {Path(name).suffix}"
    cli.refuse("export", finished[0], tmp_path / name, words=words)
    assert not (tmp_path / name).exists()


def test_links_of_a_run_are_not_followed_into_what_is_shared(
    copied: Callable[..., Path], tmp_path: Path, cli: Commands
) -> None:
    run = copied("run")
    secret = tmp_path / "secret"
    secret.write_text("of another person")

    # A report.
    (run / "videos").mkdir(exist_ok=True)
    (run / "videos" / "new.mp4").symlink_to(secret)
    cli.run("report", run, "--episodes=0")
    page = (run / "report.html").read_text()
    assert base64.b64encode(secret.read_bytes()).decode() not in page
    assert "new.mp4" not in page

    # An export.
    (run / "launches.jsonl").unlink()
    (run / "launches.jsonl").symlink_to(secret)
    cli.refuse("export", run, tmp_path / "small", words="expected a regular file, got a symbolic link")
    assert not (tmp_path / "small").exists()


@pytest.mark.parametrize("full", ["weights.safetensors", "metrics.jsonl"])
def test_an_export_is_complete_or_absent(
    full: str, copied: Callable[..., Path], tmp_path: Path, cli: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that nothing is in the way of the next attempt."""
    run = copied("run")
    small = tmp_path / "new" / "small"
    write = Path.write_bytes

    def write_until_full(path: Path, data: bytes) -> int:
        if path.name == full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", write_until_full)
        error = cli.refuse("export", run, small, words=["No space left", full, f"{small}/"])
        assert ".tmp/" not in error
    assert list(small.parent.iterdir()) == []
    cli.run("export", run, small)


def test_every_tensor_keeps_its_precision(tmp_path: Path, cli: Commands, copied: Callable[..., Path]) -> None:
    """It is stored in half precision if that is enough: not for huge or tiny numbers, nor for statistics of PopArt."""
    run = copied()
    small = tmp_path / "small"
    config = json.loads((run / "config.json").read_text())
    config["learner"]["popart"] = True
    (run / "config.json").write_text(json.dumps(config))

    # Numbers that half precision lacks.
    checkpoint = checkpoints.load_latest(run)
    weights = checkpoint.parts["weights"]
    weights["policy.weight"][0, 0] = 1e6
    weights["joint.weight"] *= 1e-6
    weights["policy.bias"] = torch.full_like(weights["policy.bias"], 1e-9)

    # Statistics: the deviation is what matters, and is lost in half precision.
    mean, deviation = 200.0, 2**-5
    statistics = {"mean": mean, "second_moment": mean**2 + deviation**2, "reward_square": 0.25}
    weights |= {f"value.{name}": torch.tensor([value], dtype=torch.float64) for name, value in statistics.items()}
    weights["value.batches"] = torch.tensor([70_000])
    checkpoints.save(run, checkpoint.step, checkpoint.parts, checkpoint.state)

    cli.run("export", run, small)
    exported = checkpoints.load_latest(small).parts["weights"]
    assert exported.keys() == weights.keys()
    for name, tensor in weights.items():
        rounding = (exported[name].double() - tensor.double()).abs().max()
        assert rounding <= 2**-11 * tensor.double().abs().max(), name
    assert exported["vision.linear.weight"].dtype == exported["value.weight"].dtype == torch.float16
    assert load_trained_agent(Run(small)).agent.value.scale.tolist() == [deviation]


def test_only_agents_are_exported(tmp_path: Path, cli: Commands) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text('{"kind": "text"}')
    cli.refuse("export", run, tmp_path / "new", words="launch")
    cli.refuse("export", run, run / "new", words=f"output: expected a place outside the run, got {run}/new")


@pytest.mark.parametrize("rows", [1, 1000])
def test_long_curves_are_thinned(
    rows: int, finished: tuple[Path, str], tmp_path: Path, cli: Commands, copied: Callable[..., Path]
) -> None:
    run = copied()
    last = read_metrics(run)[-1]
    lines = [json.dumps(last | {"step": step}) + "\n" for step in range(rows)]
    (run / "metrics.jsonl").write_text("".join(lines))
    cli.run("export", run, tmp_path / "small")
    steps = [row["step"] for row in read_metrics(tmp_path / "small")]
    assert len(steps) == min(rows, 200)
    assert (steps[0], steps[-1]) == (0, rows - 1)


def test_shared_metrics_are_json_that_every_reader_takes(
    tmp_path: Path, cli: Commands, copied: Callable[..., Path]
) -> None:
    """A metric that is not finite is null there, as in the run: NaN is no JSON."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    run = copied()
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 10**6, "time": 0.0, "loss/total": None}) + "\n")
    cli.run("export", run, tmp_path / "small")
    rows = [json.loads(line, parse_constant=refuse) for line in (tmp_path / "small/metrics.jsonl").open()]
    assert rows[-1] == {"step": 10**6, "time": 0.0, "loss/total": None}


class FromThree(gymnasium.Env[Any, Any]):
    """Actions are 3 and 4."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2, start=3)


gymnasium.register("FromThree-v0", f"{__name__}:FromThree")


class Crane(gymnasium.Env[Any, Any]):
    """A choice, and numbers of which one has bounds."""

    metadata: dict[str, Any] = {  # noqa: RUF012
        "action_names": ("hook", "push along", "push across", "wind"),
        "element_names": ("height", "load"),
    }

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Dict(
        {
            "wind": gymnasium.spaces.Box(-2, 6, (1,), np.float32),
            "hook": gymnasium.spaces.Discrete(3, start=4),
            "push": gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32),
        }
    )

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(2, np.float32), 0.0, False, True, {}


def test_what_is_seen_and_done_is_named_in_an_exported_file(tmp_path: Path, cli: Commands) -> None:
    """A program of torch.export has the same metadata as an ONNX file, and needs no other library."""
    env = f"gym:{__name__}:Crane"
    run = tmp_path / "run"
    words = ["--core=memoryless", "--frames=32", "--actors.envs-per-actor=1", "--actors.unroll-length=16"]
    cli.run("launch", "--local", "--env", env, "--run", run, *words, "--eval-episodes=2", "--video-episodes=0")
    file = tmp_path / "agent.pt2"
    cli.run("export", run, file, "--allow", env)
    extra = {KEY: ""}
    torch.export.load(str(file), extra_files=extra)
    said = json.loads(extra[KEY])
    assert said["action"] == [
        {"name": "hook", "size": 3, "first": 4},
        {"name": "push along", "bounds": None},
        {"name": "push across", "bounds": None},
        {"name": "wind", "bounds": [-2.0, 6.0]},
    ]
    assert said["element_names"] == ["height", "load"]
    assert said["value"] == {"tasks": [env], "unit": "rewards"}
    assert list(said["policy"]["columns"][0]) == ["logits"]
    assert [column.get("effect") for column in said["policy"]["columns"]] == [None, "none", "none", "tanh"]


@pytest.mark.slow
def test_an_exported_file_says_how_texts_become_ids(tmp_path: Path, cli: Commands) -> None:
    run = tmp_path / "run"
    env = "gym:tests.envs.odd:Many-v0"
    cli.run("launch", "--local", "--env", env, "--run", run, *SMALL, "--frames=64")
    file = tmp_path / "agent.pt2"
    cli.run("export", run, file, "--allow", env)
    extra = {KEY: ""}
    torch.export.load(str(file), extra_files=extra)
    said = json.loads(extra[KEY])
    agent = load_trained_agent(Run(run), env).agent
    (instruction,) = [part for part in said["observation"] if part["name"] == "instruction"]
    (num_ids,) = instruction["shape"]
    assert num_ids == 10, "two for each of five words, which is what fits into nine characters"
    assert said["instruction"] == explain_ids(agent.made_for.vocabulary, num_ids)


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ("gym:CartPole-v1", "CartPole-v1"),
        ("rooms:small", "compressive/Rooms-Small-v0"),
        ("gym:FrozenLake-v1", None),  # a number, which the agent sees one-hot
        ("gym:Blackjack-v1", None),  # a tuple of numbers
        ("gym:Pendulum-v1", None),  # an action of numbers
        ("gym:CartPole-v1,max_episode_steps=9", None),
        ("rooms:small,rooms:full", None),
        ("gym:FromThree-v0", None),
    ],
)
def test_the_example_is_named_for_what_it_plays(env: str, name: str | None) -> None:
    """It gives agents what environments return, and environments the indices of actions."""
    config = dataclasses.replace(make_preset("general", "memoryless"), env=env)
    trained: Any = SimpleNamespace(env=env, agent=make_agent(config))
    assert _name_for_example(trained) == name


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("onnxscript") is None, reason="needs the extra onnx")
def test_an_agent_is_exported_for_onnxruntime(
    finished: tuple[Path, str], tmp_path: Path, cli: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And plays there with the example, in one thread."""
    import onnxruntime

    from examples.play_onnx import main

    begun: list[int] = []

    def begin(path: str, options: Any) -> Any:
        begun.append(options.intra_op_num_threads)
        return session(path, options)

    session = onnxruntime.InferenceSession
    monkeypatch.setattr(onnxruntime, "InferenceSession", begin)

    file = tmp_path / "agent.onnx"
    said = cli.run("export", finished[0], file)
    name = "compressive/Rooms-Small-v0"
    assert f"play with it: python examples/play_onnx.py {file} {name}" in said
    assert math.isfinite(main(str(file), name, rows=2))
    assert begun == [1]
    cli.refuse("export", finished[0], file, words="output: expected a new file")
    assert "MB" in cli.run("export", finished[0], tmp_path / "agent.pt2")
