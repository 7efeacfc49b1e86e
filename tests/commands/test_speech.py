"""`compressive speech`: from files to samples, and bad input. Interruptions: test_resume.py."""

import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from commands import main
from sequences.sampling import sample
from sequences.speech import audio, baselines, synthetic
from sequences.speech.config import SpeechConfig
from sequences.speech.corpus import excerpt
from sequences.speech.modality import Speech
from storage.metrics import read_metrics
from storage.run import Run
from tests.commands.cli import TINY_SPEECH, Commands, write_corpus
from training.config import core_name
from training.plain import read_config

soundfile = pytest.importorskip("soundfile")

RATE = 4000
TRAIN = ["speech", "train", *TINY_SPEECH]


def config_of(run: Path) -> SpeechConfig:
    """The configuration that a run has now."""
    return read_config(Run(run), SpeechConfig)


@pytest.fixture(scope="module")
def voices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus("speech", tmp_path_factory.mktemp("corpora") / "voices")


@pytest.fixture(scope="module")
def trained(voices: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of six steps."""
    run = tmp_path_factory.mktemp("runs") / "trained"
    main([*TRAIN, "--run", str(run), "--core", "wavenet", "--corpus.path", str(voices)])
    return run


def test_training_leaves_a_run_with_samples(trained: Path) -> None:
    assert [row["step"] for row in read_metrics(trained) if "valid/nll" in row] == [3, 6]
    summary = json.loads((trained / "evaluation.json").read_text())
    assert summary["bits"] == pytest.approx(summary["nats"] / np.log(2))
    assert {"order_0", "linear", "parameters", "samples"} <= summary.keys()
    assert core_name(config_of(trained)) == "wavenet"

    # Samples: half of each is the prompt, which is of a real file.
    assert summary["drawn"] == str(trained / "samples" / "spectrograms.png")
    assert audio.info(trained / "samples" / "sample-0.wav") == (RATE, 2 * RATE // 100)
    prompt, real = (audio.read(trained / "samples" / f"{name}-0.wav", RATE) for name in ("sample", "real"))
    np.testing.assert_array_equal(prompt[: RATE // 100], real[: RATE // 100])
    assert (trained / "samples" / "spectrograms.png").stat().st_size > 1000

    # In TensorBoard.
    events = EventAccumulator(str(trained)).Reload()
    assert {"real-0", "sample-0"} <= set(events.Tags()["audio"])
    assert "spectrograms" in events.Tags()["images"]
    assert events.Audio("sample-0")[0].sample_rate == RATE


def test_evaluate_and_sample(trained: Path, fresh: Callable[[], Path], cli: Commands) -> None:
    run = fresh()
    finished = json.loads((trained / "evaluation.json").read_text())

    # The validation split, and the test split of one file.
    cli.run("speech", "evaluate", run, "--split", "validation", "--threads=1")
    validation = json.loads((run / "evaluation-validation.json").read_text())["nats"]
    assert validation == pytest.approx(finished["validation"], abs=1e-5)
    out = cli.run("speech", "evaluate", run, "--threads=1")
    again = json.loads((run / "evaluation-test.json").read_text())
    assert again["nats"] == pytest.approx(finished["nats"], abs=1e-5)
    ((name, nats),) = again["files"].items()
    assert nats == pytest.approx(again["nats"])
    assert "linear" in out
    assert name in out

    # Samples.
    cli.run("speech", "sample", run, "--seconds=0.02", "--prompt-seconds=0.03", "--clips=2", "--out", run / "more")
    expected = {"real-0.wav", "real-1.wav", "sample-0.wav", "sample-1.wav", "spectrograms.png"}
    assert {path.name for path in (run / "more").iterdir()} == expected


def test_samples_are_drawn_as_asked(
    fresh: Callable[[], Path], tmp_path: Path, cli: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []

    def draw(model: Any, prompts: torch.Tensor, length: int, *how: Any, **named: Any) -> Iterator[torch.Tensor]:
        asked.append((prompts.tolist(), length, *how, named))
        return sample(model, prompts, length, *how, **named)

    run = fresh()
    monkeypatch.setattr("sequences.speech.modality.sample", draw)
    words = ["--seconds=0.02", "--prompt-seconds=0.03", "--clips=2", "--out", tmp_path / "out"]
    cli.run("speech", "sample", run, *words, "--split=train", "--temperature=0.5", "--seed=3")
    split = Speech.prepare(config_of(run)).splits["train"]
    prompts = [excerpt(split, RATE // 20, number)[: 3 * RATE // 100].tolist() for number in range(2)]
    assert asked == [(prompts, RATE // 50, 0.5, {"seed": 3})]


def test_samples_do_not_need_a_run_that_can_be_written_to(
    fresh: Callable[[], Path], tmp_path: Path, cli: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of a colleague, say; and those of a checkpoint have a folder of their own."""
    run = fresh()
    monkeypatch.setattr("sequences.modality.SummaryWriter", forbidden)
    draw = ["--seconds=0.02", "--prompt-seconds=0.03", "--clips=1", "--threads=1"]
    cli.run("speech", "sample", run, *draw, "--out", tmp_path / "more")
    expected = {"real-0.wav", "sample-0.wav", "spectrograms.png"}
    assert {path.name for path in (tmp_path / "more").iterdir()} == expected
    assert "not in TensorBoard: [Errno 13] Permission denied" in cli.printed

    *_, checkpoint = sorted((run / "checkpoints").iterdir())
    before = {path.name for path in (run / "samples").iterdir()}
    cli.run("speech", "sample", checkpoint, *draw)
    assert {path.name for path in (run / "samples").iterdir()} == before | {checkpoint.name}
    assert {path.name for path in (run / "samples" / checkpoint.name).iterdir()} == expected


def test_scores_of_a_run_that_cannot_be_written_to(
    fresh: Callable[[], Path], cli: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commands.sequence.write_json", forbidden)
    cli.refuse("speech", "evaluate", fresh(), "--threads=1", words="Permission denied")
    assert re.search(r"linear +\d", cli.printed), cli.printed


def forbidden(*_: object) -> None:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def test_part_of_a_split_and_a_corpus_that_has_moved(
    voices: Path, fresh: Callable[[], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = fresh()
    elsewhere = shutil.copytree(voices, tmp_path / "moved [twice]")
    config = config_of(run)
    assert Path(config.corpus.path).is_absolute()

    # A relative path. Of 100 samples 99 are predicted.
    monkeypatch.chdir(tmp_path)
    words = ["--split=validation", "--samples=100", "--threads=1", "--path", "moved [twice]"]
    main(["speech", "evaluate", str(run), *words])
    summary = json.loads((run / "evaluation-validation.json").read_text())
    assert (summary["samples"], summary["step"]) == (99, 6)
    data = Speech.prepare(config)
    part = data.held_out("validation", 100)
    assert summary["linear"] == baselines.predictors(data.splits["train"].tokens, part.tokens)["linear"]

    main(["speech", "train", "--resume", str(run), "--corpus.path", str(elsewhere), "--learner.steps=8"])
    assert config_of(run).corpus.path == str(elsewhere)


def test_files_too_short_for_samples_do_not_fail_the_run(voices: Path, tmp_path: Path, cli: Commands) -> None:
    run = tmp_path / "run"
    said = cli.run(*TRAIN, "--run", run, "--core", "lstm", "--corpus.path", voices, "--sample-seconds=5")
    expected = f"seconds: expected at most {1000 / RATE:.3g} together with prompt_seconds, as long as the longest file"
    assert f"none: {expected} of the validation split, got 5 + 5" in " ".join(said.split())
    assert "none: seconds" in json.loads((run / "evaluation.json").read_text())["drawn"]


def test_bad_input_is_refused_in_one_line(
    trained: Path, voices: Path, fresh: Callable[[], Path], tmp_path: Path, cli: Commands
) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "torn.flac").write_bytes(b"fLaC")
    other = write_corpus("speech", tmp_path / "other")
    audio.write_wav(other / "0.wav", synthetic.utterance(1, 1)[:1000], RATE)
    run = fresh()
    train = ["train", "--run", tmp_path / "new", "--threads=1"]
    resume = ["train", "--resume", trained]
    for *arguments, words in (
        [*train, "--corpus.path", "/nowhere", "there is no folder /nowhere"],
        [*train, "--corpus.include=/etc/*", "include: expected a pattern of names below the folder"],
        [*train, "--corpus.path", voices, "--learner.batch-size=64", "tokens: expected more than"],
        [*train, "--corpus.path", tmp_path / "bad", "torn.flac: expected a WAV or FLAC file"],
        [*resume, "--model.num-layers=3", "model.num_layers: expected 20"],
        [*resume, "--core", "lstm", "core: expected wavenet"],
        ["train", "--resume", run, "--corpus.path", other, "expected the data that"],
        ["evaluate", trained, "--memory-size=5", "memory_size: expected a core with a memory, got WaveNet"],
    ):
        cli.refuse("speech", *arguments, words=words)
    assert not (tmp_path / "new").exists()
    refused = cli.refuse("speech", "train", "--resume", run, "--corpus.path", other, words="give their path")
    assert "Python" not in refused  # only text has a corpus that depends on it

    # A damaged record of the corpus.
    record = json.loads((run / "corpus.json").read_text())
    (run / "corpus.json").write_text(json.dumps(record | {"digest": None}))
    cli.refuse("speech", "train", "--resume", run, words="corpus.json: digest: expected a text, got None")
