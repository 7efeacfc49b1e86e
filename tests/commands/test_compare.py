"""`compressive compare`: the grid of a command line, what finished runs say together, and a sweep that is killed."""

import csv
import dataclasses
import html
import json
import os
import re
import shutil
import signal
import uuid
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from commands import main
from tests.commands.cli import ENVIRONMENT, PATIENCE, marked, refusal, start, wait_until
from training import UserError
from training.config import read_config, to_plain
from training.presets import make_preset
from training.sweep import label, make_trials, read, write

RECALL = "diagnostic:recall,delay=3"
Capture = pytest.CaptureFixture[str]


def grid(**fields: Any) -> dict:
    """The trials of a grid on the preset `memory`."""
    empty: dict[str, Any] = {"cores": (), "rates": (), "seeds": (0,), "vary": (), "options": ()}
    return make_trials("memory", **{**empty, **fields})


def test_rates_are_of_the_compressive_core_and_cores_come_beside_them() -> None:
    trials = grid(rates=("1", "4"), cores=("lstm",), seeds=(0, 7), options=["--frames", "1000"])
    names = ["compressive-rate-1", "compressive-rate-4", "lstm"]
    assert list(trials) == [f"{name}-seed-{seed}" for seed in (0, 7) for name in names]
    assert [trials[f"{name}-seed-7"].core_name for name in names] == ["compressive", "compressive", "lstm"]
    assert trials["compressive-rate-4-seed-7"].agent.core.compression_rate == 4
    assert {(config.seed, config.frames) for config in trials.values()} == {(0, 1000), (7, 1000)}


def test_a_core_s_field_is_varied_and_set_in_the_cores_that_have_it() -> None:
    vary = [("agent.core.compression", ("mean", "max")), ("learner.discount", ("0.9", "0.99"))]
    options = ["--agent.core.mlp-size", "16", "--agent.core.model-size=32"]
    trials = grid(cores=("compressive", "transformer-xl", "lstm"), vary=vary, options=options)
    assert len(trials) == 4 + 2 + 2, "of no consequence in a Transformer-XL, unknown to an LSTM"
    assert "compressive-max-discount-0.99-seed-0" in trials
    assert trials["transformer-xl-discount-0.9-seed-0"].agent.core.mlp_size == 16
    assert trials["lstm-discount-0.9-seed-0"].agent.core.model_size == 32


def test_environments_are_varied_as_well(tmp_path: Path) -> None:
    trials = grid(cores=("lstm", "gru"), vary=[("env", (RECALL, "diagnostic:tmaze"))])
    assert next(iter(trials)) == "lstm-diagnostic-recall-delay-3-seed-0"
    write(tmp_path, trials, "compressive compare ...")
    assert read(tmp_path) == (trials, "compressive compare ..."), "a sweep's file holds all of it"


def test_labels_name_what_differs_within_a_core_and_between_all() -> None:
    trials = grid(rates=("1", "4"), cores=("lstm",), vary=[("learner.discount", ("0.9", "0.99"))])
    assert label(list(trials.values()))[0::5] == ["compressive (rate 1, discount 0.9)", "lstm (discount 0.99)"]
    assert label([make_preset("memory", "lstm")]) == ["lstm"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["--cores or --rates", "--vary"]),
        (["--cores", "lstm"], ["--cores or --rates", "--vary"]),
        (["--cores", "lstm", "lstm"], ["cores", "different", "lstm lstm"]),
        (["--cores", "lstm", "rnn"], ["core", "compressive", "'rnn'"]),
        (["--rates", "1", "3"], ["compression_rate", "segment_size = 16", "3"]),
        (["--rates", "1", "x"], ["compression-rate", "'x'"]),
        (["--rates", "1", "2", "--preset", "cup"], ["preset", "'cup'"]),
        (["--rates", "1", "2", "--seeds", "-1"], ["seeds", "0 or more"]),
        (["--rates", "1", "2", "--seed", "3"], ["--seed", "compare decides"]),
        (["--rates", "1", "2", "--framez", "3"], ["--framez", "--frames"]),
        (["--rates", "1", "2", "--env", "rooms:tiny"], ["'tiny'", "small-recall"]),
        (["--rates", "1", "2", "--learners", "2"], ["learners", "1 in a sweep", "2"]),
        (["--rates", "1", "2", "--cpus-per-trial", "0"], ["cpus_per_trial", "(0, 1024]"]),
        (["--vary", "agent.core.speed", "1", "2"], ["vary", "field of the configuration", "agent.core.speed"]),
        (["--vary", "learner.speed", "1", "2"], ["--learner.speed"]),
        (["--vary", "learner.discount"], ["vary", "a field and its values", "learner.discount"]),
        (["--rates", "1", "2", "--folder", "FULL"], ["FULL", "not empty", "--folder"]),
        (["--rates", "1", "2", "--folder", "SWEEP"], ["SWEEP holds another sweep", "as it was"]),
        (["--resume", "EMPTY"], ["EMPTY", "no sweep", "sweep.json"]),
        (["--resume", "SWEEP", "--frames", "3"], ["--resume", "--frames 3"]),
        (["--resume", "SWEEP", "--folder", "NEW"], ["--resume", "--folder"]),
        (["--from", "EMPTY"], ["EMPTY", "config.json"]),
        (["--from", "MISSING"], ["MISSING", "config.json"]),
        (["--from", "EMPTY", "--seeds", "7"], ["--from", "as they are", "--seeds"]),
        (["--resume", "SWEEP", "--cores", "lstm"], ["--resume", "as it was begun", "--cores"]),
        (["--rates", "1", "2", "--cpus-per-trial", "nan"], ["cpus_per_trial", "(0, 1024]", "nan"]),
        (["--rates", "1", "2", "--gpus-per-trial", "inf"], ["gpus_per_trial", "0 or more", "inf"]),
        (["--rates", "1", "2", "--threshold", "nan"], ["threshold", "a finite number", "nan"]),
        (["--rates", "1", "2", "--checkpoint-seconds", "nan"], ["checkpoint_seconds", "0 or more", "nan"]),
        (["--rates", "1", "2", "--env", "rooms:small,rooms:small"], ["'rooms:small'", "each task once"]),
    ],
)
def test_bad_input_is_one_clear_line(
    arguments: list[str], words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("EMPTY", "FULL", "SWEEP"):
        (tmp_path / name).mkdir()
    (tmp_path / "FULL" / "thesis.txt").write_text("all of it")
    write(tmp_path / "SWEEP", grid(cores=("lstm", "gru")), "as it was")
    error = refusal(["compare", *arguments], capfd)
    assert all(word in error for word in words), error
    assert {path.name for path in tmp_path.iterdir()} == {"EMPTY", "FULL", "SWEEP"}


MakeRun = Callable[..., Path]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Makes the folder of a finished run with given curves; rows are 100 steps apart."""

    def make(name: str, core: str, seed: int, curve: list[float], final: float, **fields: Any) -> Path:
        run = tmp_path / name
        run.mkdir()
        frames = 100 * len(curve)
        plain = to_plain(make_preset("memory", core)) | {"seed": seed, "frames": frames, "env": RECALL} | fields
        (run / "config.json").write_text(json.dumps(plain))
        rows = [
            {"step": step, "time": 0.0, "learner/frames": float(step), "speed/steps_per_second": 50.0}
            | {"episode/return": value / 100, "episode/oracle_normalised": value}
            for step, value in zip(range(100, frames + 1, 100), curve)
        ]
        (run / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        summary = {"return": {"mean": final / 100, "low": 0.0, "high": 1.0}, "oracle_normalised": final}
        (run / "evaluation.json").write_text(json.dumps(summary))
        return run

    return make


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


class Page(HTMLParser):
    """What a page loads from elsewhere, and whether all that it opens is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.loads += [given[name] or "" for name in ("src", "href", "xlink:href") if name in given]
        if tag not in ("meta", "br", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_report_of_finished_runs_says_their_numbers(make_run: MakeRun, tmp_path: Path, capfd: Capture) -> None:
    runs = [
        make_run("a", "compressive", 0, [10.0, 80.0, 90.0], 91.0),
        make_run("b", "compressive", 1, [30.0, 40.0, 85.0], 81.0),
        make_run("c", "lstm", 0, [10.0, 20.0, 30.0], 31.5),
        make_run("d", "lstm", 1, [0.0, 10.0, 20.0], 85.0),
    ]
    out = tmp_path / "out"
    main(["compare", "--from", *map(str, runs), "--folder", str(out)])
    printed = capfd.readouterr().out
    assert "86.00  [81.00, 91.00]" in printed
    assert str(out / "report.html") in printed

    finals = table(out / "report" / "runs.csv")
    assert [float(row["oracle_normalised"]) for row in finals] == [91, 81, 31.5, 85]
    assert [row["variant"] for row in finals] == ["compressive", "compressive", "lstm", "lstm"]
    assert [row["frames_to_threshold"] for row in finals] == ["200.0", "300.0", "", ""], "first at 75 or more"
    assert {row["temporal_range"] for row in finals} == {"72", ""}, "8 + 4 x 16, and no bound for the LSTM"
    curves = table(out / "report" / "curves.csv")
    measured = [(float(row["frames"]), float(row["oracle_normalised"])) for row in curves if row["seed"] == "1"]
    assert measured == [(100, 30), (200, 40), (300, 85), (100, 0), (200, 10), (300, 20)]
    means = table(out / "report" / "curve_intervals.csv")
    first, last = means[0], means[99]
    assert [float(first[name]) for name in ("frames", "mean", "low", "high")] == [100, 20, 10, 30]
    assert [float(last[name]) for name in ("frames", "mean", "low", "high")] == [300, 87.5, 85, 90]
    better = {
        (row["variant"], row["other"]): float(row["probability"]) for row in table(out / "report" / "improvements.csv")
    }
    assert better == {("compressive", "lstm"): 0.75, ("lstm", "compressive"): 0.25}
    ours, theirs = table(out / "report" / "improvements.csv")
    assert float(ours["low"]) == 1 - float(theirs["high"]), "one is the other's reverse"

    text = (out / "report.html").read_text()
    page = Page(text)
    assert page.open == []
    assert all(target.startswith("#") for target in page.loads), "needs nothing else"
    for words in ("oracle-normalised", "86.00", "75&nbsp;%", RECALL, "--from"):
        assert words in text
    for name in ("curves", "scores"):
        assert (out / "report" / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
        assert (out / "report" / f"{name}.svg").read_text().startswith("<?xml")


def test_environments_with_a_common_scale_are_tasks_and_others_are_refused(
    make_run: MakeRun, tmp_path: Path, capfd: Capture
) -> None:
    longer = f"{RECALL[:-1]}9"
    runs = [
        make_run(f"{core}{index}", core, 0, [50.0], score, env=env)
        for index, (core, env, score) in enumerate(
            [("gru", RECALL, 60.0), ("gru", longer, 20.0), ("lstm", RECALL, 50.0), ("lstm", longer, 30.0)]
        )
    ]
    out = tmp_path / "out"
    main(["compare", "--from", *map(str, runs), "--folder", str(out)])
    better = table(out / "report" / "improvements.csv")
    assert [float(row["probability"]) for row in better] == [0.5, 0.5]
    assert "has the highest interquartile mean, 40.0" in (out / "report.html").read_text()
    assert "One run of a variant in an environment says nothing" in (out / "report.html").read_text()
    capfd.readouterr()
    main(["compare", "--from", str(runs[0]), str(runs[2]), "--folder", str(out)])
    assert "One run of a variant says nothing" in (out / "report.html").read_text()
    assert "60.00  " in (printed := capfd.readouterr().out)
    assert "[" not in printed, "no interval"
    ends = [
        row[end]
        for name in ("variants", "improvements")
        for row in table(out / "report" / f"{name}.csv")
        for end in ("low", "high")
    ]
    assert set(ends) == {""}
    arguments = ["compare", "--folder", str(out), "--from"]
    error = refusal([*arguments, *map(str, runs[:3])], capfd)
    assert all(words in error for words in ("mixed environments", longer, "no run of lstm")), error
    for run in runs:
        (run / "evaluation.json").write_text('{"return": {"mean": 1.0}}')
    assert "human or oracle scores" in refusal([*arguments, *map(str, runs)], capfd)


def test_two_runs_of_each_in_every_environment_have_intervals(make_run: MakeRun, tmp_path: Path) -> None:
    longer, out = f"{RECALL[:-1]}9", tmp_path / "out"
    grid = [(core, env, seed) for core in ("gru", "lstm") for env in (RECALL, longer) for seed in (0, 1)]
    runs = [
        str(make_run(f"{index}", core, seed, [50.0], 90.0 + seed if core == "gru" else 10.0 + seed, env=env))
        for index, (core, env, seed) in enumerate(grid)
    ]
    main(["compare", "--from", *runs, "--folder", str(out)])
    text = (out / "report.html").read_text()
    assert (
        "its runs are better than those of lstm. With as few as 2 runs of a variant in an environment, that is weak"
        " evidence" in text
    )
    assert "class=missing>" not in text
    main(["compare", "--from", *runs[:-1], "--folder", str(out)])
    assert "more runs in one environment than in another" in (out / "report.html").read_text()


def test_a_run_counts_once_whatever_it_is_called(make_run: MakeRun, tmp_path: Path, capfd: Capture) -> None:
    run = make_run("a", "lstm", 0, [1.0, 2.0], 3.0)
    (tmp_path / "link").symlink_to(run)
    copy = shutil.copytree(run, tmp_path / "copy")
    for other in (run, tmp_path / "link", copy):
        error = refusal(["compare", "--from", str(run), str(other), "--folder", str(tmp_path / "out")], capfd)
        assert f"expected each run once, got the same one in {run} and {other}" in error
    assert not (tmp_path / "out").exists()


def test_what_makes_numbers_say_less_is_said(make_run: MakeRun, tmp_path: Path, capfd: Capture) -> None:
    runs = [make_run(f"{curve}", "lstm", 5, [curve], 3.0) for curve in (1.0, 2.0)]
    for run in runs:
        summary = json.loads((run / "evaluation.json").read_text())
        parts = [{"environment": "a", "oracle_normalised": 3.0}, {"environment": "b"}]
        (run / "evaluation.json").write_text(json.dumps(summary | {"tasks": parts}))
    main(["compare", "--from", *map(str, runs), "--folder", str(tmp_path / "out")])
    printed, page = capfd.readouterr().out, (tmp_path / "out" / "report.html").read_text()
    for words in ("Runs of lstm have the same seed", "over those tasks alone that have such a scale"):
        assert words in printed
        assert words in page


def test_runs_that_are_not_finished_or_damaged_are_named(make_run: MakeRun, tmp_path: Path, capfd: Capture) -> None:
    run = make_run("my [red] run", "lstm", 0, [1.0, 2.0], 3.0)
    again = f"go on with: compressive launch --resume '{run}'"
    for text in (
        *("{", "", "[]", "3", '{"return": []}', '{"return": {"mean": NaN}}', '{"return": {"mean": "3"}}'),
        '{"return": {"mean": 3}, "oracle_normalised": null}',
        '{"return": {"mean": 3}, "correct_choices": 1}',
    ):
        (run / "evaluation.json").write_text(text)
        error = refusal(["compare", "--from", str(run)], capfd)
        assert "evaluation.json" in error
        assert again in error
    (run / "evaluation.json").unlink()
    assert again in refusal(["compare", "--from", str(run)], capfd)
    (run / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2, "learner/frames"')
    assert f"got 0 of 200 frames; {again}" in refusal(["compare", "--from", str(run)], capfd)


def test_curves_of_torn_metrics_are_of_what_is_whole(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run("run", "lstm", 0, [1.0, 2.0, 3.0], 3.0)
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text(lines[0] + lines[1][:30] + "\n" + '{"step": 3}\n' + lines[2])
    main(["compare", "--from", str(run), "--folder", str(tmp_path / "out")])
    curves = table(tmp_path / "out" / "report" / "curves.csv")
    assert [row["frames"] for row in curves] == ["100.0", "300.0"]


def test_the_report_spares_runs_and_goes_where_it_can_be_written(
    make_run: MakeRun, tmp_path: Path, capfd: Capture
) -> None:
    run = make_run("run", "lstm", 0, [1.0, 2.0], 3.0)
    (tmp_path / "file").write_text("all of it")
    arguments = ["compare", "--from", str(run), "--folder"]
    assert f"{run} holds a run" in refusal([*arguments, str(run)], capfd)
    assert "a folder that can be written to" in refusal([*arguments, str(tmp_path / "file" / "out")], capfd)
    out = tmp_path / "my [bold]report[/bold] :bug:"
    main([*arguments, str(out)])
    assert f"report  {out / 'report.html'}" in capfd.readouterr().out
    assert f"--folder '{out}'" in html.unescape((out / "report.html").read_text())


@pytest.mark.ray
def test_a_trial_with_a_damaged_evaluation_is_not_finished(make_run: MakeRun) -> None:
    from training.trials import failure, is_finished

    run = make_run("run", "lstm", 0, [1.0, 2.0], 3.0)
    config = read_config(run)
    assert is_finished(run, config)
    assert not is_finished(run, dataclasses.replace(config, frames=201))
    (run / "evaluation.json").write_text('{"return"')
    assert not is_finished(run, config)
    assert failure(run) is None
    (run / "error.txt").write_text("")
    assert failure(run) == "it left no reason"


def test_two_names_of_one_run_are_refused() -> None:
    with pytest.raises(UserError, match="the same run"):
        grid(vary=[("learner.discount", ("0.9", "0.90"))])


def hparams(run: Path) -> tuple[set[str], set[str]]:
    """Names of the hyperparameters in a run's events, and of its scalars."""
    parameters, scalars = set(), set()
    for path in run.glob("events.*"):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                scalars.add(value.tag)
                if value.tag == "_hparams_/session_start_info":
                    parameters |= set(
                        re.findall(rb"[a-z_.]*(?:seed|learning_rate)", value.metadata.SerializeToString())
                    )
    return {name.decode() for name in parameters}, scalars


@pytest.mark.ray
@pytest.mark.slow
def test_a_killed_sweep_goes_on_and_a_failing_trial_fails_alone(tmp_path: Path) -> None:
    """Three runs, one of which cannot learn; the driver is killed after the first has finished."""
    folder, mark = tmp_path / "sweep", uuid.uuid4().hex
    words = ["compare", "--folder", folder, "--preset", "memory", "--cores", "lstm", "--env", RECALL]
    words += ["--vary", "learner.learning-rate", "1e-3", "1e30", "1e-4", "--seeds", "0", "--frames", 80 * 64]
    words += ["--actors.envs-per-actor=4", "--actors.unroll-length=16", "--log-every=1", "--checkpoint-seconds=1"]
    words += ["--eval-episodes=4", "--agent.core.model-size=16", "--agent.torso-size=16"]
    good, bad, slow = (f"lstm-learning-rate-{rate}-seed-0" for rate in ("0.001", "1e-30", "0.0001"))

    def begin(number: int) -> tuple:
        screen = (tmp_path / f"screen{number}").open("w+")
        return start(*words, output=screen, start_new_session=True, env={**ENVIRONMENT, "MARK": mark}), screen

    process, screen = begin(0)
    finished = lambda: [path.parent.name for path in folder.glob("*/evaluation.json")]  # noqa: E731
    wait_until(lambda: finished() or process.poll() is not None)
    first = finished()
    if process.poll() is None:
        os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = {name: (folder / name / "evaluation.json").stat().st_mtime_ns for name in first}

    process, screen = begin(1)
    assert process.wait(PATIENCE) == 1, "a run is missing"
    screen.seek(0)
    said = screen.read()
    assert f"3, {len(first)} of them finished" in said
    assert {name: (folder / name / "evaluation.json").stat().st_mtime_ns for name in first} == kept, "not done again"
    assert set(finished()) == {good, slow}
    assert re.search(rf"missing {bad}: .*not finite", said), said
    assert "Traceback" in (folder / bad / "error.txt").read_text()
    assert "Traceback" not in said
    page = (folder / "report.html").read_text()
    assert bad in page
    assert "1 run is missing" in page
    assert [row["variant"] for row in table(folder / "report" / "runs.csv")] == [
        "lstm (learning rate 0.001)",
        "lstm (learning rate 0.0001)",
    ]
    wait_until(lambda: not marked(mark))  # nobody had to end what was left of the first sweep
    parameters, scalars = hparams(folder / good)
    assert parameters == {"learner.learning_rate"}
    assert {"evaluation/return", "evaluation/oracle_normalised"} <= scalars
