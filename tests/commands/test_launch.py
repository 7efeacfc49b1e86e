"""`compressive launch` from end to end, what it prints, its help, and options as people write them."""

import itertools
import json
import re
import signal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import av
import pytest
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from actors import ActorsConfig, ClusterError, LocalPool
from commands import COMMANDS
from commands.launch import _about_large_images, _about_replay, _ray
from commands.parsing import is_fixed
from commands.parsing import parse_launch as parse
from learner.errors import LearnersLost
from sequences.text.config import TextConfig
from storage import checkpoints
from storage.errors import UserError
from storage.metrics import read_metrics
from tests.commands.cli import CONSTANT, SMALL, TINY, Commands, frames, saved_steps
from training.config import RunConfig
from training.console import PLAIN_SECONDS
from training.presets import describe_preset, preset_of
from training.trainer import Trainer

LAUNCH = ["launch", "--local", *TINY]
METRICS = {
    "episode/return",
    "episode/correct_choices",
    "episode/oracle_normalized",
    "speed/steps_per_second",
    "speed/frames_per_second",
    "policy_lag/mean",
    "learner/idle_fraction",
    "loss/policy",
    "loss/baseline",
    "loss/entropy",
    "loss/total",
    "loss/compression/layer_0",
    "loss/compression/layer_1",
    "gradient/norm",
    "attention/compressed",
    "attention/memory",
    "attention/segment",
}
"""What the run's curves are made of."""


def test_paths_may_begin_in_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Shells leave the ~ of --run=~/x as it is."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert parse(["--run=~/runs/x"]).run == tmp_path / "runs" / "x"
    with pytest.raises(UserError, match=r"--run: .*~no-such-user-9/x"):
        parse(["--run=~no-such-user-9/x"])


def test_a_resumed_run_keeps_what_its_checkpoints_depend_on() -> None:
    """A field of the list, or of a group in it, and none that only begins alike."""
    for name in ("agent.core.name", "agent.torso_size", "learner.popart", "learner.teacher_cost", "env"):
        assert is_fixed(name, RunConfig.fixed)
    for name in ("learner.popart_rate", "learner.teacher_cost_end", "learner.discount", "eval_env"):
        assert not is_fixed(name, RunConfig.fixed)
    assert is_fixed("corpus.path", TextConfig.fixed)


def test_the_files_of_a_run(finished: tuple[Path, str]) -> None:
    folder, _ = finished
    config = json.loads((folder / "config.json").read_text())
    assert (config["env"], config["frames"], config["agent"]["torso_size"]) == ("rooms:small", frames(30), 16)
    assert config["agent"]["core"]["name"] == "compressive"
    assert list(folder.glob("events.out.tfevents.*"))
    assert len(saved_steps(folder)) == 3, "the newest three are kept"
    assert [path.name for path in folder.glob("checkpoints/*") if not path.name.isdigit()] == []
    summary = json.loads((folder / "evaluation.json").read_text())
    assert summary["episodes"] == 2
    assert summary["return"]["low"] <= summary["return"]["mean"] <= summary["return"]["high"]
    assert (summary["greedy"], summary["seed"]) == (False, 0)
    last = EventAccumulator(str(folder)).Reload().Scalars("evaluation/return")[-1]
    assert last.step == saved_steps(folder)[-1]
    assert last.value == pytest.approx(summary["return"]["mean"])


def test_what_a_run_prints(finished: tuple[Path, str]) -> None:
    folder, printed = finished
    for path in ("final.mp4", "metrics.jsonl", str(saved_steps(folder)[-1]), "evaluate", "tensorboard"):
        assert path in printed
    assert "\x1b" not in printed
    assert "\r" not in printed
    assert re.search(r"training  100\.0 %  \S+/\S+ frames  \S+ steps  \S+ frames/s .* 1 actor", printed)
    phases = ["training", "evaluating", "filming", "writing the video", "writing the page", "\nfinished\n"]
    places = [printed.index(phase) for phase in phases]
    assert places == sorted(places)
    for phase in ("evaluating", "filming", "writing the video"):
        lines = re.findall(rf"(\d+):(\d\d)  {phase}", printed)
        minutes, seconds = map(int, lines[-1])
        most = 1 + (60 * minutes + seconds) // PLAIN_SECONDS
        assert len(lines) <= most, f"{phase}: one line, and more only if it takes long"
    assert printed.count("writing the page") == 1
    assert printed.count("\nfinished\n") == 1
    assert re.search(r"evaluating  100\.0 %  2/2 episodes", printed)


def test_the_video_of_a_run_is_a_whole_episode(finished: tuple[Path, str]) -> None:
    folder, _ = finished
    with av.open(str(folder / "videos" / "final.mp4")) as video:
        stream = video.streams.video[0]
        assert (stream.width, stream.height, stream.average_rate) == (920, 600, 60)
        pictures = list(video.decode(video=0))
        first = pictures[0].to_ndarray(format="rgb24")
    assert len(pictures) == 720 + 40, "the end stays for 0.7 s, in steps of four frames"
    assert first.std() > 10, "not blank"


def test_metrics_of_every_kind(finished: tuple[Path, str]) -> None:
    rows = read_metrics(finished[0])
    steps = [row["step"] for row in rows]
    last = rows[-1]
    assert len(rows) >= 30
    assert steps == sorted(set(steps))
    assert set().union(*rows) >= METRICS
    assert sum(last[f"attention/{kind}"] for kind in ("compressed", "memory", "segment")) == pytest.approx(1, abs=1e-4)
    for row in rows:
        assert row["learner/frames"] == 4 * row["step"]
        assert row["speed/frames_per_second"] == pytest.approx(4 * row["speed/steps_per_second"])
        assert row["speed/frames_per_second"] > 0
    assert 0 <= last["learner/idle_fraction"] <= 1


def test_printed_paths_can_be_copied(tmp_path: Path, cli: Commands) -> None:
    """Brackets are kept, and paths are quoted in commands."""
    folder = tmp_path / "a run [bold]"
    printed = cli.run(*LAUNCH, "--run", folder, f"--frames={frames(1)}")
    printed += cli.run("launch", "--local", "--resume", folder, f"--frames={frames(2)}")
    assert f"run          {folder}\n" in printed
    assert "preparing the environment (compiled once, then cached)\n" in printed
    assert f"resumed from {folder}/checkpoints/" in printed
    for words in ("launch --resume", "evaluate", "report"):
        assert f"compressive {words} '{folder}'" in printed
    assert f"tensorboard --logdir '{folder}'" in printed


def test_losses_that_are_not_finite(tmp_path: Path, cli: Commands) -> None:
    """They stop the run; the batch and the last good checkpoint are kept."""
    folder = tmp_path / "run"
    options = ["--checkpoint-seconds=1000", "--learner.learning-rate=1e30"]
    line = cli.fail(*LAUNCH, "--run", folder, f"--frames={frames(30)}", *options)
    assert re.fullmatch(r"compressive: update \d+ is not finite: .*loss/.*\n", line), line
    assert f"--resume {folder} --local --learner.learning-rate 2.5e+29" in line

    # The batch: two rows of 16 steps and the step that follows.
    (batch,) = folder.glob("not-finite-*.safetensors")
    assert str(batch) in line
    kept = load_file(batch)
    assert kept["observation"].shape == (2, 17, 24, 32, 3)
    assert kept["core_state/0"].shape == (2, 16, 16)

    # The checkpoint, and a smaller learning rate.
    weights = checkpoints.load_latest(folder).parts["weights"]
    assert all(weight.isfinite().all() for weight in weights.values())
    again = ["launch", "--local", "--resume", folder, f"--frames={frames(3)}", "--learner.learning-rate=1e-3"]
    assert "finished" in cli.run(*again)


def test_a_stop_in_the_last_update_ends_before_the_evaluation(
    tmp_path: Path, cli: Commands, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """That may take minutes. It is made when the run is resumed."""
    folder = tmp_path / "run"
    train = Trainer.train

    def stopped_at_the_end(trainer: Trainer, *arguments: Any) -> None:
        train(trainer, *arguments)
        signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train", stopped_at_the_end)
        with pytest.raises(SystemExit) as stop:
            cli.run(*LAUNCH, "--run", folder, "--frames", frames(2))
    assert stop.value.code == 128 + signal.SIGTERM
    assert "trained, but not evaluated; resume with: " in capfd.readouterr().out
    assert not (folder / "evaluation.json").exists()
    cli.run("launch", "--local", "--resume", folder)
    assert (folder / "evaluation.json").exists()


@pytest.mark.parametrize("lost", [ClusterError("actor 1 died 6 times"), LearnersLost("learners were lost 6 times")])
def test_lost_processes_end_a_run(lost: Exception, tmp_path: Path, cli: Commands, monkeypatch: Any) -> None:
    """The run ends at its fourth batch, and the line says from where and how to resume."""
    folder = tmp_path / "run"
    get = LocalPool.get
    batches = itertools.count(1)

    def fails_at_last(*arguments: Any) -> Any:
        if next(batches) == 4:
            raise lost
        return get(*arguments)

    monkeypatch.setattr(LocalPool, "get", fails_at_last)
    error = cli.fail(*LAUNCH, "--run", folder, "--checkpoint-seconds=1000")
    saved = checkpoints.load_latest(folder).path
    again = f"compressive launch --resume {folder} --local"
    assert saved_steps(folder)[-1] > 0
    assert error == f"compressive: {lost}; resume from {saved} with: {again}\n"


@pytest.mark.parametrize("option", ["--run", "--resume"])
def test_a_jobs_own_folder_is_refused(option: str, copied: Any, monkeypatch: pytest.MonkeyPatch, cli: Commands) -> None:
    monkeypatch.chdir(copied().parent)
    job = {"runtime_env": {"working_dir": "gcs://_ray_pkg_0.zip"}, "metadata": {}}
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps(job))
    words = "run: expected an absolute path, because a job's own folder is temporary, got run"
    cli.refuse("launch", "--ray-address", "auto", option, "run", words=words)


def test_numbers_may_be_abbreviated() -> None:
    """After a space or an equals sign."""
    for number, expected in {"6M": 6_000_000, "200k": 200_000, "1e6": 1_000_000, "1.5e3": 1500, "64": 64}.items():
        assert parse(["--frames", number]).frames == expected
        assert parse([f"--frames={number}"]).frames == expected


def test_a_range_of_actors() -> None:
    for words in (["--actors", "2..4"], ["--actors=2..4"]):
        actors = parse(words).actors
        assert (actors.num_actors, actors.max_actors) == (2, 4)


def test_none_is_written_in_two_ways() -> None:
    """An option that is given again takes the place of the first."""
    numbers = ["--learner.trust", "0.3", "--max-policy-lag", "5"]
    for words in (["--learner.trust", "none"], ["--learner.trust=None"]):
        options = parse([*numbers, *words])
        assert (options.learner.trust, options.max_policy_lag) == (None, 5)
    for words in (["--max-policy-lag", "none"], ["--max-policy-lag=None"]):
        options = parse([*numbers, *words])
        assert (options.learner.trust, options.max_policy_lag) == (0.3, None)
    assert parse([]).max_policy_lag is None


def test_sizes_by_layer() -> None:
    core: Any = parse(["--agent.core.memory-size", "16", "0", "--agent.core.compressed-size=0", "8"]).agent.core
    assert (core.memory_size, core.compressed_size) == ((16, 0), (0, 8))


def test_the_environment_chooses_the_preset() -> None:
    for words, preset in [
        ([], "cpu"),
        (["--env", "rooms:full"], "cpu"),
        (["--env=gym:CartPole-v1"], "general"),
        (["--env", "dm:package.module:Class"], "general"),
        (["--env", "gym:CartPole-v1", "--preset", "popgym"], "popgym"),
        (["--preset=cpu", "--env", "gym:CartPole-v1"], "cpu"),
    ]:
        assert parse(words).preset == preset
    assert preset_of("mine:maze") == "general", "of a kind that its user has added"
    assert describe_preset("general", "gym:CartPole-v1").startswith("general, for any environment but")
    assert describe_preset("general", "diagnostic:recall") == "general", "chosen by the user"

    cartpole = ["--env", "gym:CartPole-v1"]
    assert parse(cartpole).learner.discount == 0.99
    assert parse(cartpole).replay.share == 0.75
    assert _about_replay(parse(cartpole)) == ""

    # Only one learner can replay, and the first lines of a run say so.
    several = parse([*cartpole, "--learners", "2"])
    assert several.replay.share == 0
    assert _about_replay(several).endswith("each unroll is learned from once, with one learner 4 times")
    assert _about_replay(parse(["--preset", "cpu", "--learners", "2"])) == "", "it has no replay anyway"


NO_EFFECT = [
    (["--learner.schedule-start=0.5"], "--learner.schedule-start: has no effect without a schedule"),
    (["--schedule-frames", "5k"], "--schedule-frames: has no effect without a schedule"),
    (["--learner.popart_rate=0.1"], "--learner.popart-rate: has no effect without --learner.popart"),
    (["--learner.rmsprop-decay=0.9"], "--learner.rmsprop-decay: has no effect without --learner.optimizer rmsprop"),
    (["--learner.optimizer=rmsprop", "--learner.adam-beta1=0.8"], "without --learner.optimizer adam"),
    (["--replay.unrolls=8"], "--replay.unrolls: has no effect without --replay.share above 0"),
    (
        ["--agent.reconstruction-cost=0", "--agent.reconstruction-height=8"],
        "without --agent.reconstruction-cost above 0",
    ),
    (["--agent.prediction-steps=2"], "--agent.prediction-steps: has no effect without --agent.prediction-cost above 0"),
    (["--learner-placement=spread"], "--learner-placement: has no effect without several learners"),
    (["--learner-labels", "a=b"], "--learner-labels: has no effect without several learners"),
    (["--skip-missing-levels"], "--skip-missing-levels: has no effect without levels of DeepMind Lab in --env"),
    (["--resident", "--local"], "--local: has no effect with --resident"),
    (["--resident", "--actors.stagger"], "--actors.stagger: has no effect with --resident"),
]


@pytest.mark.parametrize(
    ("words", "expected"), NO_EFFECT, ids=lambda value: value[-1] if isinstance(value, list) else ""
)
def test_options_without_effect_are_refused(words: list[str], expected: str) -> None:
    with pytest.raises(UserError, match=re.escape(expected)):
        parse([*CONSTANT, *words])


def test_options_with_an_effect_are_taken() -> None:
    """Those that a preset has need none, and neither do values that turn off what is off."""
    parse([*CONSTANT, "--learner.schedule-start=0", "--schedule-frames=none", "--replay.share=0", "--replay.burn-in=0"])
    parse(["--env=gym:CartPole-v1", "--replay.share=0"])
    parse(["--learner.learning-rate-schedule=linear", "--learner.schedule-start=0.5", "--schedule-frames=5k"])
    parse([*CONSTANT, "--learner.entropy-cost-end=0.001", "--learner.schedule-start=0.5"])
    parse(["--learner.popart", "--learner.popart-rate=0.1", "--replay.share=0.5", "--replay.unrolls=8"])
    parse(["--local", "--max-policy-lag=3", "--learner.adam-beta1=0.8", "--actors.stagger"])
    parse(["--learners=2", "--learner-placement=spread", "--run", "local"])
    parse(["--preset=dmlab30", "--skip-missing-levels"])


def test_a_folder_that_is_taken_is_refused_before_any_work(
    tmp_path: Path, cli: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(*_: object) -> None:
        raise AssertionError("the environment is prepared")

    monkeypatch.setattr("commands.launch._prepare", prepare)
    (tmp_path / "file").touch()
    cli.refuse("launch", "--local", "--run", tmp_path, words="already exists and is not empty")
    cli.refuse("launch", "--local", "--run", tmp_path / "file", words="expected a new folder, and")


@pytest.mark.slow
def test_options_of_one_run_and_weights_of_another(tmp_path: Path, cli: Commands) -> None:
    for name, discount in (("a", "0.5"), ("b", "0.9")):
        recall = ["--local", "--env=diagnostic:recall,delay=2", *SMALL, "--frames=32"]
        cli.run("launch", *recall, f"--learner.discount={discount}", "--run", tmp_path / name)
    words = ["--like", tmp_path / "a", "--from-run", tmp_path / "b"]
    cli.run("launch", "--local", *words, "--run", tmp_path / "new")
    config = json.loads((tmp_path / "new" / "config.json").read_text())
    assert config["learner"]["discount"] == 0.5
    assert config["from_run"] == str(checkpoints.load_latest(tmp_path / "b").path)
    begin = load_file(tmp_path / "new" / "checkpoints" / f"{0:012d}" / "weights.safetensors")
    for weight_name, weight in checkpoints.load_latest(tmp_path / "b").parts["weights"].items():
        assert weight.equal(begin[weight_name])


def described(text: str) -> dict[str, str]:
    """What a help says of each option: its words, which may be in several lines of a table."""
    options: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        cell = line.strip("│ ")
        if cell.startswith("--"):
            names, _, said = cell.partition(" ")
            if said.startswith("--no-") or ".no-" in said:  # the other option of a field that is on or off
                _, _, said = said.partition(" ")
            name = names.removesuffix(",")
            options[name] = said
        elif name and not cell.startswith("╰"):
            options[name] += f" {cell}"
    return options


def test_help(cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """It explains every option with the default of the preset and core."""
    monkeypatch.setenv("COLUMNS", "100")
    for arguments, env in (([], "rooms:small"), (["--preset", "paper", "--core", "lstm"], "dmlab:rooms_select")):
        with pytest.raises(SystemExit) as stop:
            cli.run("launch", *arguments, "--help")
        assert not stop.value.code
        options = described(cli.capfd.readouterr().out)
        assert {"--preset", "--frames", "--run", "--seed", "--resume", "--local", "--ray-address"} <= set(options)
        assert len(options) > 35
        assert not [name for name, said in options.items() if not re.search(r"\S+ \S+ \(default: ", said)]
        assert f"(default: {env}" in options["--env"]


def test_help_and_version_of_the_program(cli: Commands) -> None:
    for words in ([], ["-h"], ["help"]):
        printed = cli.run(*words)
        assert all(name in printed for name in COMMANDS)
    assert re.fullmatch(r"compressive (\d+\.\d+\S*|\(not installed\))\n", cli.run("--version"))


def test_a_run_says_how_large_images_become_smaller() -> None:
    large = (240, 320, 3)
    said = _about_large_images("gym:VizdoomBasic-v1", [large, (1,)])
    assert said == "240 x 320 pixels are slow to learn from; 60 x 80 with --env gym:VizdoomBasic-v1,shrink=4"
    assert "105 x 80 with --env dm:my:Game,shrink=2" in _about_large_images("dm:my:Game", [(30, 30, 1), (210, 160, 3)])

    # Nothing is said of small images and vectors, of environments without the field, and of those that have it.
    assert not _about_large_images("gym:Small-v0", [(84, 119, 4), (500,)])
    for env in ("envpool:Large-v0", "rooms:full,image_height=240", "gym:a:B,shrink=2", "gym:A-v0,gym:B-v0"):
        assert not _about_large_images(env, [large])


@pytest.mark.parametrize(("cpus", "learners", "size"), [(0.5, 1, 300), (1.0, 3, 303), (2.5, 3, 753)])
def test_a_cluster_on_this_machine_has_room_for_all(
    cpus: float, learners: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For 300 actors and several learners: they would be waited for without end."""
    monkeypatch.setattr("training.cluster.start_ray", lambda address, cpus, *others: cpus)
    monkeypatch.setattr("commands.launch.unroll_bytes", lambda config, agent: 0)
    config = RunConfig(actors=ActorsConfig(num_actors=300, cpus=cpus), learners=learners, unrolls_per_update=learners)
    options = Mock(in_process=False, ray_address=None)
    assert _ray(options, Mock(config=config), Mock()) == size
