"""`compressive launch` and `evaluate` from end to end, and what their help says."""

import json
import re
from pathlib import Path
from typing import Any

import av
import pytest
from safetensors.torch import load_file

from actors import ClusterError, LocalPool
from commands import main
from learner import checkpoints
from learner.communicator import LearnersLost
from learner.metrics import read_metrics
from tests.commands.cli import TINY, frames, refusal, run, saved_steps

METRICS = {
    "episode/return",
    "episode/correct_choices",
    "episode/oracle_normalised",
    "speed/steps_per_second",
    "speed/frames_per_second",
    "policy_lag/mean",
    "learner/idle_fraction",
    "loss/policy",
    "loss/baseline",
    "loss/entropy",
    "loss/total",
    "gradient/norm",
    "loss/compression/layer_0",
    "loss/compression/layer_1",
    "attention/compressed",
    "attention/memory",
    "attention/segment",
}
"""What the run's curves are made of; human-normalised where there is a human score."""


def test_a_run_leaves_all_that_it_promises(finished: tuple[Path, str]) -> None:
    folder, printed = finished
    config = json.loads((folder / "config.json").read_text())
    assert (config["env"], config["frames"], config["agent"]["torso_size"]) == ("rooms:small", frames(30), 16)
    assert config["agent"]["core"]["name"] == "compressive"
    assert list(folder.glob("events.out.tfevents.*"))
    assert len(saved_steps(folder)) == 3, "the newest three are kept"
    assert [path.name for path in folder.glob("checkpoints/*") if not path.name.isdigit()] == []
    summary = json.loads((folder / "evaluation.json").read_text())
    assert summary["episodes"] == 2
    assert summary["return"]["low"] <= summary["return"]["mean"] <= summary["return"]["high"]
    for path in ("final.mp4", "metrics.jsonl", str(saved_steps(folder)[-1]), "evaluate", "tensorboard"):
        assert path in printed, "the screen says where things are and what to do with them"


def test_the_video_shows_a_whole_episode(finished: tuple[Path, str]) -> None:
    with av.open(str(finished[0] / "videos" / "final.mp4")) as video:
        stream = video.streams.video[0]
        assert (stream.width, stream.height) == (760, 360)
        assert stream.average_rate == 15
        pictures = [picture.to_ndarray(format="rgb24") for picture in video.decode(video=0)]
    assert len(pictures) == 180
    assert pictures[0].std() > 10, "not blank"


def test_metrics_of_every_kind(finished: tuple[Path, str]) -> None:
    rows = read_metrics(finished[0])
    steps = [row["step"] for row in rows]
    assert len(rows) >= 30
    assert steps == sorted(set(steps))
    assert all(row["learner/frames"] == 4 * row["step"] for row in rows)
    assert set().union(*rows) >= METRICS
    last = rows[-1]
    assert sum(last[f"attention/{kind}"] for kind in ("compressed", "memory", "segment")) == pytest.approx(1, abs=1e-4)
    assert last["speed/frames_per_second"] == pytest.approx(4 * last["speed/steps_per_second"])
    assert 0 <= last["learner/idle_fraction"] <= 1


def test_plain_lines_where_the_output_is_no_terminal(finished: tuple[Path, str]) -> None:
    printed = finished[1]
    assert "\x1b" not in printed
    assert "\r" not in printed
    assert re.search(r"100\.0 %  \S+/\S+ frames  left 0:00  \S+ steps  \S+ frames/s .* 2 actors", printed)


def test_evaluate_reads_the_run(finished: tuple[Path, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    video = tmp_path / "videos" / "played.mp4"
    result = run("evaluate", finished[0], "--episodes", 2, "--video", video)
    assert result.returncode == 0, result.stderr
    with av.open(str(video)) as film:
        assert sum(1 for _ in film.decode(video=0)) == 2 * 180
    main(["evaluate", str(finished[0]), "--episodes", "2"])
    again = capfd.readouterr().out
    for line in result.stdout.splitlines():
        if re.match("│ (return|correct)", line):
            assert line.split() == next(other.split() for other in again.splitlines() if other[:8] == line[:8]), (
                "same seed"
            )


def test_evaluate_elsewhere_of_the_same_shape(finished: tuple[Path, str], capfd: pytest.CaptureFixture[str]) -> None:
    main(["evaluate", str(finished[0]), "--episodes", "1", "--greedy", "--env", "rooms:small,spin_seconds=4"])
    assert "spin_seconds=4" in capfd.readouterr().out


def test_vectors_train_as_images_do_but_are_not_filmed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder, env = tmp_path / "run", "diagnostic:tmaze,length=3"
    steps = ["--frames=96", "--video-episodes=1"]
    main(["launch", "--local", "--env", env, "--run", str(folder), *TINY, *steps])
    printed = capfd.readouterr().out
    assert f"{env} (3), 1 frame a step" in printed
    assert "oracle-normalised" in printed
    assert not (folder / "videos").exists()
    arguments = ["evaluate", str(folder), "--video", str(tmp_path / "a.mp4")]
    assert f"video: expected images in RGB, got [3] from {env}" in refusal(arguments, capfd)


@pytest.mark.parametrize("core", ["transformer-xl", "lstm", "memoryless"])
def test_every_core_trains_and_plays(core: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    size = [] if core == "lstm" else ["--agent.core.mlp-size=16"]
    tiny = [option for option in TINY if "mlp" not in option] + size
    main(["launch", "--local", "--core", core, "--run", str(tmp_path / core), f"--frames={frames(2)}", *tiny])
    assert f"{core} core" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--actors.in-flight=2", "actors.in_flight is of no use there, got 2"),
        ("--actors.threads=2", "actors.threads is of no use there, got 2"),
        ("--actors.cpus=0.5", "actors.cpus is of no use there, got 0.5"),
        ("--actors.resources=licence=1", "actors.resources is of no use there, got ('licence=1',)"),
        ("--actors.labels=zone=a", "actors.labels is of no use there, got ('zone=a',)"),
        ("--actors.placement=spread", "actors.placement is of no use there, got spread"),
        ("--learner-labels=zone=a", "learner_labels is of no use there, got ('zone=a',)"),
        ("--learner-placement=spread", "learner_placement is of no use there, got spread"),
    ],
)
def test_what_only_a_cluster_has_is_refused_with_local(
    option: str, words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    error = refusal(["launch", "--local", "--run", str(tmp_path / "run"), *TINY, option], capfd)
    assert error == f"compressive: --local acts in this process, without a cluster: {words}\n"


def test_paths_are_printed_as_a_shell_takes_them(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Whole, brackets included, and quoted where they are part of a command."""
    folder = tmp_path / "a run [bold]"
    main(["launch", "--local", "--run", str(folder), f"--frames={frames(1)}", *TINY])
    main(["launch", "--local", "--resume", str(folder), f"--frames={frames(2)}", *TINY])
    printed = capfd.readouterr().out
    assert f"run          {folder}\n" in printed
    assert f"resumed from {folder}/checkpoints/" in printed
    for words in ("launch --resume", "evaluate", "report"):
        assert f"compressive {words} '{folder}'" in printed
    assert f"tensorboard --logdir '{folder}'" in printed


def helps(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert not stop.value.code
    return capfd.readouterr().out


@pytest.mark.parametrize("arguments", [["launch", "--help"], ["launch", "--preset", "paper", "--core", "lstm", "-h"]])
def test_help_explains_every_option_with_its_default(
    arguments: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    options: dict[str, str] = {}
    for line in helps(arguments, capfd).splitlines():
        text = line.strip("│ ")
        if text.startswith("--"):
            name, *rest = text.split()
            options[name] = " ".join(rest)
        elif options and not text.startswith("╰"):
            options[name] += f" {text}"
    assert {"--preset", "--frames", "--run", "--seed", "--resume", "--local", "--ray-address"} <= set(options)
    assert len(options) > 35
    for name, text in options.items():
        assert "(default: " in text, name
        assert len(text.partition("(default: ")[0].split()) > 1, f"{name} is not explained"


def test_help_shows_the_defaults_of_the_preset(capfd: pytest.CaptureFixture[str]) -> None:
    cpu, paper = (helps(["launch", "--preset", preset, "--help"], capfd) for preset in ("cpu", "paper"))
    assert "rooms:small)" in cpu
    assert "dmlab:rooms_select_nonmatching_object)" in paper
    assert "compressive launch --preset paper --env rooms:full" in paper


def test_the_list_of_commands(capfd: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["-h"], ["--help"], ["help"]):
        main(arguments)
        printed = capfd.readouterr().out
        assert "launch" in printed
        assert "evaluate" in printed


def test_losses_that_are_not_finite_stop_the_run_and_keep_the_batch_and_the_last_good_checkpoint(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    options = [*TINY, "--checkpoint-seconds=1000", "--learner.learning-rate=1e30"]
    with pytest.raises(SystemExit) as stop:
        main(["launch", "--local", "--run", str(folder), f"--frames={frames(30)}", *options])
    assert stop.value.code == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert re.search(r"update \d+ is not finite: .*loss/", line), line
    assert f"--resume {folder} --local --learner.learning-rate 2.5e+29" in line
    (batch,) = folder.glob("not-finite-*.safetensors")
    assert str(batch) in line
    kept = load_file(batch)
    assert kept["observation"].shape == (2, 17, 24, 32, 3)
    assert kept["core_state/0"].shape == (2, 16, 16)
    assert all(weight.isfinite().all() for weight in checkpoints.load_latest(folder).parts["weights"].values())
    again = ["launch", "--local", "--resume", str(folder), f"--frames={frames(3)}"]
    main([*again, *TINY, "--learner.learning-rate=1e-3"])
    assert "finished" in capfd.readouterr().out


@pytest.mark.parametrize("lost", [ClusterError("actor 1 died 6 times"), LearnersLost("learners were lost 6 times")])
def test_lost_processes_end_a_run_in_one_line(
    lost: Exception, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    get, calls = LocalPool.get, []

    def fails_at_last(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 4:
            raise lost
        return get(*arguments)

    monkeypatch.setattr(LocalPool, "get", fails_at_last)
    folder = tmp_path / "run"
    with pytest.raises(SystemExit) as stop:
        main(["launch", "--local", "--run", str(folder), *TINY, "--checkpoint-seconds=1000"])
    assert stop.value.code == 1
    last = saved_steps(folder)[-1]
    assert last == checkpoints.load_latest(folder).step > 0
    saved, again = f"{folder}/checkpoints/{last:012d}", f"compressive launch --resume {folder} --local"
    assert capfd.readouterr().err == f"compressive: {lost}; go on from {saved} with: {again}\n"
