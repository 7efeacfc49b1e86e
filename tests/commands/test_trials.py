"""`compressive compare`: which runs a command line asks for, what it refuses, and how long a sweep still takes."""

import dataclasses
import json
import math
import os
import re
import shlex
import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from agent.core.matching import bytes_of_state
from commands import compare
from commands.compare import _films, _plan
from commands.options import CompareOptions
from commands.parsing import parse_command, parse_train
from commands.shared_options import words_of
from envs import processes
from sequences.kinds import CONFIGS, PRESETS
from storage.errors import UserError
from storage.provenance import read_launches
from storage.run import Run
from tests.commands.cli import Commands, write_corpus
from tests.training.test_trainer import CONFIG, train
from training import sweep
from training.config import RunConfig, core_name
from training.grid import label, make_trials
from training.presets import make_preset
from training.sweep import FILE, begin, enough_for, read, twins
from training.sweep_progress import Board, Estimate
from training.trainer import train_agent

RECALL = "diagnostic:recall,delay=3"
LONGER = "diagnostic:recall,delay=9"


def test_seeds_that_are_given_again_take_the_place_of_the_first() -> None:
    """As in `make compare ARGS='--seeds 0'`."""
    options, rest, _ = parse_command("compare", ["--seeds", "0", "1", "2", "--frames", "9", "--seeds", "0"])
    assert options.seeds == (0,)
    assert rest == ["--frames", "9"]


def grid(**fields: Any) -> dict:
    """The trials of a grid of agents on the preset `memory`, one seed unless others are given."""

    def parse(words: list[str]) -> Any:
        return parse_train("launch", words).config

    empty: dict[str, Any] = {"cores": (), "rates": (), "seeds": (0,), "vary": (), "options": ()}
    return make_trials(RunConfig, parse, "memory", **(empty | fields))


def test_rates_are_of_the_compressive_core_and_cores_come_beside_them() -> None:
    trials = grid(rates=("1", "4"), cores=("lstm",), seeds=(0, 7), options=["--frames", "1000"])
    names = ["compressive-rate-1", "compressive-rate-4", "lstm"]
    assert list(trials) == [f"{name}-seed-{seed}" for seed in (0, 7) for name in names]
    assert [core_name(trials[f"{name}-seed-7"]) for name in names] == ["compressive", "compressive", "lstm"]
    assert trials["compressive-rate-4-seed-7"].agent.core.compression_rate == 4
    assert {(config.seed, config.frames) for config in trials.values()} == {(0, 1000), (7, 1000)}


def test_fields_of_a_core_apply_to_the_cores_that_have_them() -> None:
    vary = [("agent.core.compression", ("mean", "max")), ("learner.discount", ("0.9", "0.99"))]
    options = ["--agent.core.mlp-size", "16", "--agent.core.model-size=32"]
    trials = grid(cores=("compressive", "transformer-xl", "lstm"), vary=vary, options=options)
    assert len(trials) == 4 + 2 + 2, "no meaning in a Transformer-XL, unknown to an LSTM"
    assert "compressive-max-discount-0.99-seed-0" in trials
    assert trials["transformer-xl-discount-0.9-seed-0"].agent.core.mlp_size == 16
    assert trials["lstm-discount-0.9-seed-0"].agent.core.model_size == 32


def test_fields_may_be_written_as_options_are() -> None:
    trials = grid(cores=("lstm",), vary=[("agent.core.model-size", ("16", "32"))])
    assert list(trials) == ["lstm-model-size-16-seed-0", "lstm-model-size-32-seed-0"]


def test_environments_are_varied_as_well(tmp_path: Path) -> None:
    trials = grid(cores=("lstm", "gru"), vary=[("env", (RECALL, "diagnostic:tmaze"))])
    assert next(iter(trials)) == "lstm-diagnostic-recall-delay-3-seed-0"
    begin(tmp_path, trials, "compressive compare ...")
    assert read(tmp_path, CONFIGS) == (trials, "compressive compare ..."), "a sweep's file holds all of it"


@pytest.mark.parametrize("name", ["../outside", "/tmp/own", "a/b", "..", "", "Trial", "linked"])
def test_trials_are_folders_within_the_sweep(name: str, tmp_path: Path) -> None:
    """The sweep may be another person's: it must not train, or remove files, elsewhere."""
    (config,) = grid(cores=("lstm",), fewest=1).values()
    begin(tmp_path, {name: config}, "compressive compare ...")
    (tmp_path / "linked").symlink_to(tmp_path.parent)
    with pytest.raises(UserError, match=r"trials: expected names of folders within the sweep, .* and no links, got"):
        read(tmp_path, CONFIGS)


def test_runs_are_added_to_a_sweep(tmp_path: Path) -> None:
    old = grid(cores=("lstm", "gru"))
    assert begin(tmp_path, old, "first") == (old, "first")
    added = grid(cores=("gru", "lru"), seeds=(0, 1))
    with pytest.raises(UserError, match=r"another sweep.*or --add"):
        begin(tmp_path, added, "second")

    # Trials of both commands, those of the first one first; the same again changes nothing.
    both = {**old, **added}
    assert list(both) == ["lstm-seed-0", "gru-seed-0", "lru-seed-0", "gru-seed-1", "lru-seed-1"]
    for _ in range(2):
        assert begin(tmp_path, added, "second", add=True) == (both, "first\nsecond")
    assert read(tmp_path, CONFIGS) == (both, "first\nsecond")

    # A run that is there has its settings.
    other = grid(cores=("lstm", "lru"), options=["--learner.discount", "0.5"])
    with pytest.raises(UserError, match=r"lstm-seed-0: expected its learner.discount to be 0\.\d+, .* got 0\.5"):
        begin(tmp_path, other, "third", add=True)
    with pytest.raises(UserError, match="is in use"), Run(tmp_path).lock():
        begin(tmp_path, grid(cores=("lru",), seeds=(5,), fewest=1), "fourth", add=True)
    assert read(tmp_path, CONFIGS) == (both, "first\nsecond")


def test_a_run_that_is_there_under_another_name_is_not_added(tmp_path: Path) -> None:
    """The compressive core compresses by 4 anyway. Where agents are evaluated how often makes no other training."""
    begin(tmp_path, grid(cores=("compressive", "lstm")), "first")
    rates = grid(rates=("2", "4"), options=["--eval-episodes", "7"])
    assert twins(read(tmp_path, CONFIGS)[0], rates) == {"compressive-rate-4-seed-0": "compressive-seed-0"}
    trials, _ = begin(tmp_path, rates, "second", add=True)
    assert list(trials) == ["compressive-seed-0", "lstm-seed-0", "compressive-rate-2-seed-0"]

    # Other seeds, tasks and lengths are other runs.
    others = grid(rates=("2", "4"), seeds=(1,)) | {
        "task": grid(rates=("2", "4"), options=["--env", "diagnostic:tmaze"])["compressive-rate-4-seed-0"],
        "long": grid(rates=("2", "4"), options=["--frames", "12345"])["compressive-rate-4-seed-0"],
    }
    assert twins(trials, others) == {}

    # Nor is a run a twin of itself.
    assert twins(trials, trials) == {}


def test_what_is_refused_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A suite whose tasks cannot be tried, and trials that need more CPUs than there are, new or added."""

    def refuse(asked: object, todo: object, options: object) -> str:
        raise UserError("no such task")

    new = tmp_path / "new"
    old = tmp_path / "old"
    begin(old, grid(cores=("lstm", "gru")), "first")
    before = (old / FILE).read_text()
    monkeypatch.setattr(compare, "_cost", refuse)
    suite = CompareOptions(suite="horizon", cores=("gru",), seeds=(0,))
    greedy = CompareOptions(preset="memory", cores=("lru", "memoryless"), seeds=(0,), cpus_per_trial=1000.0)
    for options, words in ((suite, "no such task"), (greedy, "cpus-per-trial: expected at most")):
        for folder in (new, old):
            asked = dataclasses.replace(options, folder=folder, add=folder is old)
            with pytest.raises(UserError, match=words):
                compare._begin(asked, [], "second", Console(width=80))
    assert not new.exists()
    assert (old / FILE).read_text() == before


def test_a_trial_asks_for_what_any_of_them_needs() -> None:
    one, two = {"CPU": 1.0}, {"CPU": 2.0, "GPU": 0.5}
    assert enough_for([[two]]) == [two]
    assert enough_for([[one, one, one], [two]]) == [two, one, one]
    assert enough_for([[one, two], [two, one]]) == [two, two]

    trials = grid(cores=("gru",), vary=[("actors.cpus", ("1", "4")), ("actors.num_actors", ("1", "2"))])
    options = CompareOptions(remote_actors=True, gpus_per_trial=0.25, ray_address="10.0.0.1:6379")
    assert compare._bundles(trials, options) == [{"CPU": 1.0, "GPU": 0.25}, {"CPU": 4.0}, {"CPU": 4.0}]


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({"cpus_per_trial": 3.0}, "cpus-per-trial: expected at most the 2 CPUs of this machine, .* got 3$"),
        ({"gpus_per_trial": 1.5}, "gpus-per-trial: expected at most the 1 GPUs of this machine, .* got 1.5$"),
        ({"remote_actors": True}, "cpus-per-trial: expected .*, got 1 and those of 8 actors, 9 in all$"),
    ],
)
def test_what_a_machine_lacks_is_refused(options: Any, refused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial would wait for it for ever. A cluster may grow."""
    monkeypatch.setattr(compare, "_resources", lambda: {"CPU": 2, "GPU": 1})
    trials = grid(cores=("gru", "lru"), options=["--actors.num-actors=8"])
    with pytest.raises(UserError, match=refused):
        compare._bundles(trials, CompareOptions(**options))
    assert compare._bundles(trials, CompareOptions(**options, ray_address="10.0.0.1:6379"))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--learner.device=cuda:0"], "learner.device is cuda:0"),
        (["--resident", "--learner.device=auto", "--rows-per-update=none"], "resident runs are on one"),
    ],
)
def test_runs_that_need_a_gpu_must_ask_for_it(words: list[str], reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learner.config.require_any_device", lambda device, learners: None)
    monkeypatch.setattr("training.config.require_any_device", lambda device, learners: None)
    trials = grid(cores=("gru", "lru"), options=words)
    with pytest.raises(UserError, match=f"gpus-per-trial: expected 1, or a share .* because {reason}; got 0"):
        compare._bundles(trials, CompareOptions(ray_address="10.0.0.1:6379"))
    assert compare._bundles(trials, CompareOptions(gpus_per_trial=0.5, ray_address="10.0.0.1:6379"))


@pytest.mark.parametrize("resource", ["cpus", "gpus"])
def test_no_machine_has_a_thousand(resource: str) -> None:
    trials = grid(cores=("gru", "lru"))
    options: dict[str, Any] = {f"{resource}_per_trial": 1000.0}
    with pytest.raises(UserError, match=f"{resource}-per-trial: expected at most the .*, got 1000"):
        compare._bundles(trials, CompareOptions(**options))


@pytest.mark.parametrize(
    ("bundles", "at_once"),
    [
        ([{"CPU": 1.0}], 8),
        ([{"CPU": 3.0}], 2),
        ([{"CPU": 1.0, "GPU": 1.0}], 1),
        ([{"CPU": 1.0, "GPU": 0.25}], 4),
        ([{"CPU": 1.0}, {"CPU": 2.0}, {"CPU": 1.0}], 2),
        ([{"CPU": 100.0}], 1),  # on a cluster
    ],
)
def test_the_cost_is_of_as_many_at_a_time_as_fit(bundles: Any, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "_resources", lambda: {"CPU": 8, "GPU": 1})
    assert compare._at_once(bundles) == at_once


def test_a_trial_computes_on_its_own_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others belong to other trials: threads of torch, and processes of slow environments."""
    monkeypatch.setattr(processes, "most_cores", math.inf)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    assert processes.cores() == 16
    trials = grid(cores=("lru", "gru"))
    begin(tmp_path, trials, "command")
    found = []

    def train(config: Any, run: Run, **_: Any) -> bool:
        found.append((processes.cores(), torch.get_num_threads()))
        return False

    before = torch.get_num_threads()
    try:
        sweep._run_trial(tmp_path, "lru-seed-0", trials["lru-seed-0"], train, 3, {})
    finally:
        torch.set_num_threads(before)
    assert found == [(3, 3)]


def test_a_trial_that_is_stopped_before_it_begins_has_not_failed(tmp_path: Path) -> None:
    """An earlier attempt may have."""
    (config,) = grid(cores=("lstm",), fewest=1).values()
    begin(tmp_path, {"trial": config}, "compressive compare ...")
    run = Run(tmp_path / "trial")
    run.path.mkdir()
    run.error_file.write_text("ValueError: of the attempt before\n")
    (tmp_path / sweep.STOP).touch()
    sweep._run_trial(tmp_path, "trial", config, train_agent, 1, {})
    assert sweep.failure(run) is None


def test_a_trial_that_another_process_has_just_begun_is_resumed(tmp_path: Path) -> None:
    """As of a sweep that is resumed at once after its driver was killed: that process ends a little later."""
    config = dataclasses.replace(CONFIG, eval_episodes=2)
    begun = train(config, tmp_path / "begun", 2)
    run = Run(tmp_path / "run")
    run.path.mkdir()
    is_locked = threading.Event()

    def begin() -> None:
        with run.lock():
            is_locked.set()
            time.sleep(2)
            shutil.copytree(tmp_path / "begun", run.path, dirs_exist_ok=True)

    other = threading.Thread(target=begin)
    other.start()
    assert is_locked.wait(10)
    assert train_agent(dataclasses.replace(config, frames=begun.frames + 1), Run(run.path), patience=30)
    other.join()
    assert [launch["step"] for launch in read_launches(run)] == [0, begun.step]


def test_the_command_that_resumes_has_all_that_is_not_in_the_folder() -> None:
    """Where it runs, and how; what is as usual is left out."""
    words = ["--cores", "gru", "--cpus-per-trial", "2", "--gpus-per-trial", "0.25", "--remote-actors"]
    words += ["--ray-address", "10.0.0.1:6379", "--threshold", "0.12345678", "--beside", "a b.json", "c.0"]
    options, _, _ = parse_command("compare", words)
    said = words_of(options, *compare.AT_RESUME)
    assert shlex.split(said) == [
        "--ray-address", "10.0.0.1:6379", "--remote-actors", "--cpus-per-trial", "2", "--gpus-per-trial", "0.25",
        "--threshold", "0.12345678", "--beside", "a b.json", "c.0",
    ]  # fmt: skip
    again, _, _ = parse_command("compare", ["--resume", "folder", *shlex.split(said)])
    assert all(getattr(again, name) == getattr(options, name) for name in compare.AT_RESUME)
    assert words_of(CompareOptions(), *compare.AT_RESUME) == ""

    launch = parse_train("launch", ["--threads=8", "--local", "--seed=3"])
    assert launch.again("a run").endswith(" launch --resume 'a run' --local --threads 8")
    assert parse_train("launch", []).again("run").endswith(" launch --resume run")


def test_labels_name_what_differs_within_a_core_and_between_all() -> None:
    trials = grid(rates=("1", "4"), cores=("lstm",), vary=[("learner.discount", ("0.9", "0.99"))])
    first, *_, last = label(list(trials.values()))
    assert first == "compressive (rate 1, discount 0.9)"
    assert last == "lstm (discount 0.99)"
    assert label([make_preset("memory", "lstm")]) == ["lstm"]
    transformers = [PRESETS["text"]("cpu", core) for core in ("local", "transformer-xl")]
    assert label(transformers) == ["local", "transformer-xl"]
    with pytest.raises(UserError, match="the same run"):
        grid(vary=[("learner.discount", ("0.9", "0.90"))])


def test_fields_that_are_on_or_off_are_varied_and_chosen() -> None:
    """On the command line each has two options, of which a core without the field gets neither."""
    trials = grid(cores=("gru",), vary=[("agent.skip", ("True", "false"))])
    assert [config.agent.skip for config in trials.values()] == [True, False]
    clocks = [("agent.core.clock", ("true", "False"))]
    assert len(grid(cores=("gru", "compressive"), vary=clocks)) == 3
    both = grid(
        cores=("gru", "compressive"), options=["--agent.core.no-clock", "--agent.no-skip", "--learner.cuda-graph"]
    )
    assert not both["compressive-seed-0"].agent.core.clock
    assert both["gru-seed-0"].learner.cuda_graph


def test_names_of_trials_differ_where_runs_do() -> None:
    """Folders have no signs, capitals or underscores, and file systems no names of any length."""
    for first, second in [
        ("gym:CartPole-v1,sutton=1", "gym:CartPole-v1,sutton=-1"),
        ("gym:my_pkg:Maze-v0", "gym:my-pkg:maze-v0"),
    ]:
        names = list(grid(vary=[("env", (first, second))]))
        assert len(set(names)) == 2
        assert all(re.fullmatch(r"[a-z0-9.-]+", name) for name in names)

    many = ",".join(f"diagnostic:recall,delay={delay}" for delay in range(1, 30))
    long = list(grid(vary=[("env", (many, many.replace("=29", "=31")))], seeds=(0, 1)))
    assert len(set(long)) == 4
    assert max(map(len, long)) < 150


def test_variants_have_one_preset() -> None:
    def parse(words: list[str]) -> Any:
        return parse_train("launch", words).config

    environments = ("gym:CartPole-v1", "diagnostic:recall")
    with pytest.raises(UserError, match=r"one preset, got general for gym:.* and cpu for diag.*; name one with"):
        make_trials(RunConfig, parse, None, (), (), (0,), [("env", environments)], ())


def test_labels_are_short_however_long_a_value_is() -> None:
    """Other values still have other labels."""
    config = make_preset("memory", "lstm")
    variants = [dataclasses.replace(config, from_run=end + 2_000_000 * "x" + end) for end in ("a", "b", "a")]
    variants[2] = dataclasses.replace(variants[2], from_run=f"{variants[0].from_run}c")
    labels = label(variants)
    assert len(set(labels)) == 3
    assert all(len(text) < 230 for text in labels)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--vary"], ["vary: expected a field and its values", "got none"]),
        ([], ["--cores or --rates", "--vary"]),
        (["--cores", "lstm", "lstm"], ["cores", "different", "lstm lstm"]),
        (["--rates", "1", "3"], ["--agent.core.compression-rate", "segment_size = 16", "3"]),
        (["--rates", "1", "2", "--seed", "3"], ["--seed", "compare decides"]),
        (["--rates", "1", "2", "--skip-missing-levels"], ["--skip-missing-levels", "compare decides"]),
        (["--rates", "1", "2", "--learners", "2"], ["learners", "1 in a sweep", "2"]),
        (["--vary", "learners", "2", "1"], ["learners", "1 in a sweep", "2"]),
        (["--vary", "agent.core.speed", "1", "2"], ["vary", "field of the configuration", "agent.core.speed"]),
        (
            ["--cores", "lstm", "gru", "--vary", "agent.core.memory_size", "4", "8"],
            ["vary", "a core that is compared (lstm, gru)", "agent.core.memory_size 4 8"],
        ),
        (
            ["--cores", "lstm", "gru", "--agent.core.compression-rate", "8"],
            ["Unrecognized options: --agent.core.compression-rate"],
        ),
        (["--rates", "1", "2", "--folder", "FULL"], ["FULL", "not empty", "--folder"]),
        (["--kind", "speech", "--cores", "lstm", "gru"], ["core", "wavenet", "'gru'"]),
        (["--kind", "text", "--cores", "lstm", "gru", "--remote-actors"], ["remote-actors", "text"]),
        (["--kind", "text", "--cores", "lstm", "gru", "--corpus", "folder", "--path", "MISSING"], ["MISSING"]),
        (["--rates", "1", "2", "--folder", "SWEEP"], ["SWEEP holds another sweep", "as it was"]),
        (["--resume", "EMPTY"], ["EMPTY", "not a sweep", "sweep.json"]),
        (["--resume", "SWEEP", "--frames", "3"], ["--resume", "--frames 3"]),
        (["--from", "EMPTY", "--seeds", "7"], ["--from", "as they are", "--seeds"]),
    ],
)
def test_bad_input_is_one_clear_line(
    arguments: list[str], words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Commands
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("EMPTY", "FULL", "SWEEP"):
        (tmp_path / name).mkdir()
    (tmp_path / "FULL" / "thesis.txt").write_text("all of it")
    begin(tmp_path / "SWEEP", grid(cores=("lstm", "gru")), "as it was")
    cli.refuse("compare", *arguments, words=words)
    assert {path.name for path in tmp_path.iterdir()} == {"EMPTY", "FULL", "SWEEP"}


def test_a_sweep_is_of_runs_of_one_kind(tmp_path: Path, cli: Commands) -> None:
    begin(tmp_path, grid(cores=("lstm", "gru")), "compressive compare")
    file = tmp_path / "sweep.json"
    content = json.loads(file.read_text())
    first = next(iter(content["trials"]))
    content["trials"][first]["kind"] = "text"
    for trials, found in ((content["trials"], "launch, text"), ({}, "no trials")):
        file.write_text(json.dumps(content | {"trials": trials}))
        cli.refuse("compare", "--resume", tmp_path, words=f"expected runs of one kind, got {found}")


@pytest.mark.parametrize("kind", ["images", "text"])
def test_other_data_of_one_name_are_refused_before_training(kind: str, tmp_path: Path, cli: Commands) -> None:
    """Images of other shapes; texts in two folders of one name."""
    books = [tmp_path / name / "books" for name in ("a", "b")]
    for folder in books:
        folder.parent.mkdir()
        write_corpus(kind, folder)
    varied = ["corpus.height", "8", "16", "--corpus.path", books[0]]
    if kind == "text":
        (books[1] / "0.txt").write_text("another text\n" * 20)
        varied = ["path", *books, "--corpus", "folder"]
    words = "mixed corpora: expected runs on the same data, got others under one name, books"
    arguments = ["--kind", kind, "--cores", "lstm", "--folder", tmp_path / "sweep", "--vary", *varied]
    cli.refuse("compare", *arguments, words=words)
    assert not (tmp_path / "sweep").exists()


def test_cores_with_states_of_equal_bytes() -> None:
    cores = ("compressive", "deltanet", "lru", "memoryless")
    trials = _plan(CompareOptions(cores=cores, seeds=(0,), state_bytes=12_000), ())
    sizes = {core: bytes_of_state(trials[f"{core}-seed-0"].agent.core) for core in cores}
    assert sizes.pop("memoryless") == 0
    assert all(11_000 < size <= 12_000 for size in sizes.values())
    with pytest.raises(
        UserError, match=r"^compressive-seed-0: state_bytes: expected at least 8,712 for this core, got 9$"
    ):
        _plan(CompareOptions(cores=cores, seeds=(0,), state_bytes=9), ())
    with pytest.raises(ValueError, match=r"^--from: .* got --state-bytes$"):
        CompareOptions(runs=(Path("run"),), state_bytes=12_000)

    # Variants that differ in what the bytes decide would be the same run twice.
    sizes_alone = CompareOptions(
        cores=("gru",), seeds=(0,), vary=(("agent.core.model_size", "32", "64"),), state_bytes=1000
    )
    with pytest.raises(UserError, match=r"^state_bytes: expected variants that differ in more .*-32-seed-0 and gru-"):
        _plan(sizes_alone, ())


def test_agents_of_a_sweep_are_filmed_only_if_that_is_asked_for() -> None:
    cases: list[tuple[tuple[str, ...], int]] = [
        ((), 0),
        (("--video-episodes", "3"), 3),
        (("--video-episodes=1",), 1),
    ]
    for options, expected in cases:
        trials = _plan(CompareOptions(cores=("gru", "lstm"), seeds=(0,)), options)
        assert {trial.video_episodes for trial in trials.values()} == {expected}
        (films,) = _films(trials).values()
        assert films.startswith("none" if expected == 0 else f"{expected} episode")


def test_runs_without_a_row_of_metrics_are_starting(tmp_path: Path) -> None:
    """Their processes import what they need, which may take a minute."""
    shown = []

    def show(share: float, head: str, fields: Any, left: float) -> None:
        shown.append((head, fields))

    line: Any = SimpleNamespace(show=show)
    names = ("a", "b", "c")
    board = Board(tmp_path, dict.fromkeys(names, make_preset("cpu", "gru")), line)
    for name in names:
        (tmp_path / name).mkdir()
    (tmp_path / "a" / "metrics.jsonl").write_text('{"step": 1, "learner/frames": 4, "speed/frames_per_second": 2.0}\n')
    board.show({"a", "b"})
    assert shown == [("0/3 runs", ["1 starting", "1 training", "2 frames/s"])]


def test_the_time_left_of_a_sweep_is_that_of_whole_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four runs, two at a time: each starts for 20 s, trains for 100 s and is evaluated for 10 s."""
    starts, trains, evaluates = 20, 100, 10
    whole_run = starts + trains + evaluates
    row_seconds = 5  # from a row of metrics to the next one

    clock = SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    for module in ("progress", "sweep_progress"):
        monkeypatch.setattr(f"training.{module}.time", clock)

    estimate = Estimate(dict.fromkeys("abcd", 1000.0))
    estimates = {}
    for second in range(2 * whole_run):
        clock.now = float(second)
        if second < whole_run:
            running = {"a", "b"}
            waiting = "cd"
        else:
            running = {"c", "d"}
            waiting = ""
        if second == whole_run:
            estimate.finish("a")
            estimate.finish("b")
        trained = max(0, second % whole_run - starts)
        measured = trained // row_seconds * row_seconds
        for name in running:
            estimate.mark(name, measured / trains)
        estimates[second] = estimate.seconds(running, waiting)

    assert all(math.isinf(estimates[second]) for second in range(30)), "nothing is known yet"
    for second in range(60, 120):
        left = 2 * (starts + trains) - second  # without the evaluation: there was none so far
        assert estimates[second] == pytest.approx(left, abs=10)
    for second in range(whole_run, 2 * whole_run):
        assert estimates[second] == pytest.approx(2 * whole_run - second)
    clock.now = 2 * whole_run + 10.0
    assert math.isinf(estimate.seconds(set("cd"), "")), "it takes longer than the others did"
