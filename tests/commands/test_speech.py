"""`compressive speech`: from files to samples, resumption, and bad input."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from commands import main
from learner import checkpoints
from learner.metrics import read_metrics
from speech import audio, baselines, synthetic
from speech.config import SpeechConfig
from speech.modality import Speech
from tests.commands.cli import refusal, state
from tests.commands.test_errors import edit
from tests.learner.runs import forge
from training.config import core_name, read_config
from training.run import Run

soundfile = pytest.importorskip("soundfile")

RATE = 4000
BEGUN = ("config.json", "tokenizer.json", "corpus.json", ".lock")
"""Files of a run before its first checkpoint."""
TINY = [
    "--learner.batch-size=2", "--learner.sequence-length=64", "--learner.steps=6", "--learner.warmup-steps=1",
    "--validation-samples=300", "--validate-every=3", "--log-every=1", "--checkpoint-seconds=0", "--threads=1",
    "--sample-seconds=0.01", "--keep-checkpoints=9",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


def config_of(run: Path) -> SpeechConfig:
    return read_config(Run(run), SpeechConfig)


@pytest.fixture(scope="module")
def voices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four files of a fifth of a second."""
    folder = tmp_path_factory.mktemp("voices")
    for number in range(4):
        audio.write_wav(folder / f"{number}.wav", synthetic.utterance(0, number)[: RATE // 4], RATE)
    return folder


@pytest.fixture(scope="module")
def trained(voices: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of six steps."""
    run = tmp_path_factory.mktemp("runs") / "trained"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
        main(["speech", "train", "--run", str(run), "--core", "wavenet", "--corpus.path", str(voices), *TINY])
    return run


@pytest.fixture
def copied(trained: Path, tmp_path: Path) -> Callable[[], Path]:
    return lambda: shutil.copytree(trained, tmp_path / "run")  # type: ignore[misc,return-value]


def test_training_leaves_a_run_with_samples(trained: Path) -> None:
    """The options have their names of version 0.1."""
    rows = read_metrics(trained)
    assert [row["step"] for row in rows if "valid/nll" in row] == [3, 6]
    summary = json.loads((trained / "evaluation.json").read_text())
    assert summary["bits"] == pytest.approx(summary["nats"] / np.log(2))
    assert {"order_0", "linear", "parameters", "samples"} <= summary.keys()
    assert core_name(config_of(trained)) == "wavenet"
    assert summary["drawn"] == str(trained / "samples" / "spectrograms.png")
    assert audio.info(trained / "samples" / "sample-0.wav") == (RATE, 2 * RATE // 100)
    prompt, real = (audio.read(trained / "samples" / f"{name}-0.wav", RATE) for name in ("sample", "real"))
    np.testing.assert_array_equal(prompt[: RATE // 100], real[: RATE // 100])
    assert (trained / "samples" / "spectrograms.png").stat().st_size > 1000


def test_tensorboard_has_the_samples_as_sound_and_picture(trained: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(trained)).Reload()
    assert {"real-0", "sample-0"} <= set(events.Tags()["audio"])
    assert "spectrograms" in events.Tags()["images"]
    assert events.Audio("sample-0")[0].sample_rate == RATE


def test_an_interrupted_run_ends_as_an_uninterrupted_one(trained: Path, copied: Callable[[], Path]) -> None:
    run = copied()
    expected = state(run)
    for path in (run / "checkpoints").iterdir():
        if int(path.name) > 3:
            shutil.rmtree(path)
    main(["speech", "train", "--resume", str(run), "--threads=1"])
    assert state(run) == expected
    assert [row["step"] for row in read_metrics(run)] == list(range(1, 7))


def test_evaluate_and_sample(trained: Path, copied: Callable[[], Path], capsys: pytest.CaptureFixture[str]) -> None:
    run = copied()
    finished = json.loads((trained / "evaluation.json").read_text())
    main(["speech", "evaluate", str(run), "--split", "validation", "--threads=1"])
    validation = json.loads((run / "evaluation-validation.json").read_text())["nats"]
    assert validation == pytest.approx(finished["validation"], abs=1e-5)
    capsys.readouterr()
    main(["speech", "evaluate", str(run), "--threads=1"])
    again = json.loads((run / "evaluation-test.json").read_text())
    assert again["nats"] == pytest.approx(finished["nats"], abs=1e-5)
    (name, nats), *others = again["files"].items()
    assert (nats, others) == (pytest.approx(again["nats"]), [])
    out = capsys.readouterr().out
    assert "linear predictor" in out
    assert f"1: from {nats:.3f} nats ({name})" in out
    words = ["--seconds=0.02", "--prompt-seconds=0.03", "--clips=2", "--out", str(run / "more")]
    main(["speech", "sample", str(run), *words])
    assert {path.name for path in (run / "more").iterdir()} == {
        "real-0.wav", "real-1.wav", "sample-0.wav", "sample-1.wav", "spectrograms.png"
    }  # fmt: skip


def test_part_of_a_split_and_a_corpus_that_has_moved(
    voices: Path, copied: Callable[[], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, elsewhere = copied(), shutil.copytree(voices, tmp_path / "moved [twice]")
    config = config_of(run)
    assert Path(config.corpus.path).is_absolute()
    monkeypatch.chdir(tmp_path)
    words = ["--split=validation", "--samples=100", "--threads=1", "--path", "moved [twice]"]
    main(["speech", "evaluate", str(run), *words])
    summary = json.loads((run / "evaluation-validation.json").read_text())
    assert (summary["samples"], summary["step"]) == (99, 6)
    data = Speech.prepare(config)
    part = data.held_out("validation", 100)
    assert summary["linear"] == baselines.predictors(data.splits["train"].tokens, part.tokens)[0]["linear"]
    main(["speech", "train", "--resume", str(run), "--corpus.path", str(elsewhere), "--learner.steps=8"])
    assert config_of(run).corpus.path == str(elsewhere)


def test_files_too_short_for_samples_do_not_fail_the_run(
    voices: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word for word in TINY if "sample-seconds" not in word] + ["--sample-seconds=5"]
    run = tmp_path / "run"
    main(["speech", "train", "--run", str(run), "--core", "lstm", "--corpus.path", str(voices), *words])
    assert "none: seconds: expected at most 1000 samples, the longest" in " ".join(capsys.readouterr().out.split())
    assert "none: seconds" in json.loads((run / "evaluation.json").read_text())["drawn"]


def test_a_run_killed_before_its_first_checkpoint_starts_again(voices: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for name in BEGUN:
        (run / name).write_text("{")
    main(["speech", "train", "--run", str(run), "--core", "lstm", "--corpus.path", str(voices), *TINY])
    assert checkpoints.load_latest(run).step == 6


def test_a_full_disk_leaves_a_folder_that_can_be_used(
    voices: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    words = ["speech", "train", "--run", str(run), "--core", "lstm", "--corpus.path", str(voices), *TINY]

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "save", full)
        assert "No space left on device" in refusal(words, capfd)
    assert not run.exists()
    main(words)


def test_bad_input_is_refused_in_one_line(
    trained: Path, voices: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    train = ["speech", "train", "--run", str(tmp_path / "new"), "--threads=1"]
    assert "speech: expected train, evaluate or sample, got 'sing'" in refusal(["speech", "sing"], capfd)
    assert "there is no folder /nowhere" in refusal([*train, "--corpus.path", "/nowhere"], capfd)
    for options, said in {
        "--corpus.include=/etc/*": "include: expected a pattern of names below the folder",
        "--corpus.path=~no-such-user": "path: expected a file or a folder, got '~no-such-user'",
        "--sample-seconds=nan": "sample_seconds: expected a number in [0, 3600], got nan",
    }.items():
        assert said in refusal([*train, options], capfd)
    assert "core: expected one of compressive" in refusal([*train, "--core", "gru"], capfd)
    folder = [*train, "--corpus.path", str(voices)]
    assert "tokens: expected more than" in refusal([*folder, "--learner.batch-size=64"], capfd)
    (tmp_path / "bad").mkdir()
    shutil.copytree(voices, tmp_path / "bad", dirs_exist_ok=True)
    (tmp_path / "bad" / "torn.flac").write_bytes(b"fLaC")
    assert "torn.flac: expected a WAV or FLAC file" in refusal([*train, "--corpus.path", str(tmp_path / "bad")], capfd)
    assert not (tmp_path / "new").exists()
    resume = ["speech", "train", "--resume", str(trained)]
    assert "model.num_layers: expected 20" in refusal([*resume, "--model.num-layers=3"], capfd)
    assert "core: expected wavenet" in refusal([*resume, "--core", "lstm"], capfd)
    assert "is not a run" in refusal(["speech", "sample", str(tmp_path)], capfd)
    assert "seconds: expected at most" in refusal(["speech", "sample", str(trained), "--seconds=9"], capfd)
    sizes = ["speech", "evaluate", str(trained), "--memory-size=5"]
    assert "memory_size: expected a core with a memory, got WaveNet" in refusal(sizes, capfd)


def test_a_corpus_that_changed_is_refused(
    copied: Callable[[], Path], capfd: pytest.CaptureFixture[str], voices: Path, tmp_path: Path
) -> None:
    run = copied()
    shutil.copytree(voices, tmp_path / "others")
    audio.write_wav(tmp_path / "others" / "0.wav", synthetic.utterance(1, 1)[: RATE // 4], RATE)
    config = json.loads((run / "config.json").read_text())
    config["corpus"]["path"] = str(tmp_path / "others")
    (run / "config.json").write_text(json.dumps(config))
    assert "expected the data that" in refusal(["speech", "train", "--resume", str(run)], capfd)


@pytest.mark.parametrize(
    ("file", "path", "value", "words"),
    [
        ("state.json", "learner source", [], ["learner: source: expected an object"]),
        ("state.json", "rng numpy", [], ["this version of numpy"]),
        ("config.json", "model name", ["lstm"], ["expected a core out of", "['lstm']"]),
        ("config.json", "corpus", 3, ["config.corpus: expected an object", "3"]),
        ("corpus.json", "digest", None, ["corpus.json: digest: expected a text, got None"]),
    ],
)
def test_a_run_of_another_version(file, path, value, words, copied, capfd) -> None:
    run = copied()
    if file == "state.json":
        forge(run / "checkpoints" / f"{6:012d}", lambda content: edit(content["state"], path, value))
    else:
        plain = json.loads((run / file).read_text())
        edit(plain, path, value)
        (run / file).write_text(json.dumps(plain))
    error = refusal(["speech", "train", f"--resume={run}"], capfd)
    assert all(word in error for word in words), error
