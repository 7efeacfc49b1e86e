"""`compressive images`: from files to a sheet of samples, and bad input. Interruptions: test_resume.py."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from commands import main
from sequences.images.config import ImagesConfig
from sequences.images.modality import Images
from sequences.sampling import sample
from storage.metrics import read_metrics
from storage.run import Run
from tests.commands.cli import TINY_IMAGES, Commands, write_corpus
from training.plain import read_config

TRAIN = ["images", "train", *TINY_IMAGES]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus("images", tmp_path_factory.mktemp("corpora") / "pictures")


@pytest.fixture(scope="module")
def trained(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of six steps."""
    run = tmp_path_factory.mktemp("runs") / "trained"
    main([*TRAIN, "--run", str(run), "--corpus.path", str(pictures)])
    return run


def test_training_leaves_a_run_with_samples(trained: Path) -> None:
    assert [row["step"] for row in read_metrics(trained) if "valid/nll" in row] == [3, 6]
    summary = json.loads((trained / "evaluation.json").read_text())
    assert summary["bits_per_dim"] == pytest.approx(summary["nats"] / np.log(2))
    assert {"uniform", "png", "channel", "half", "validation", "parameters"} <= summary.keys()
    assert summary["drawn"] == str(trained / "samples" / "sheet.png")
    assert np.asarray(Image.open(trained / "samples" / "sheet.png")).shape == (2 * 68 + 8, 68, 3)
    assert "samples" in EventAccumulator(str(trained)).Reload().Tags()["images"]


def test_evaluate_and_sample(trained: Path, fresh: Callable[[], Path], cli: Commands) -> None:
    run = fresh()
    finished = json.loads((trained / "evaluation.json").read_text())
    out = cli.run("images", "evaluate", run)
    again = json.loads((run / "evaluation-test.json").read_text())
    assert again["bits_per_dim"] == pytest.approx(finished["bits_per_dim"], abs=1e-5)
    assert all(word in out for word in ("bits per dim", "uniform", "png", "red", "second"))

    # Samples begin with rows of real images, which are above them. Each pixel is drawn as 8 x 8.
    given = 5
    cli.run("images", "sample", run, "--images=2", f"--rows={given}", "--split=train", "--out", run / "more")
    sheet = np.asarray(Image.open(run / "more" / "sheet.png"))
    data = Images.prepare(read_config(Run(run), ImagesConfig))
    real = data.splits["train"].thin(2).images(data.shape)

    def image_at(top: int, left: int) -> np.ndarray:
        return sheet[top : top + 64 : 8, left : left + 64 : 8]

    for number in range(2):
        left = 2 + 68 * number
        np.testing.assert_array_equal(image_at(2, left), real[number])
        sampled = image_at(78, left)
        np.testing.assert_array_equal(sampled[:given], real[number][:given])
        assert (sampled[given:] != real[number][given:]).any()


def test_samples_are_drawn_as_asked(
    fresh: Callable[[], Path], tmp_path: Path, cli: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []

    def draw(model: Any, prompts: torch.Tensor, length: int, *how: Any, **named: Any) -> Iterator[torch.Tensor]:
        asked.append((tuple(prompts.shape), length, *how, named))
        return sample(model, prompts, length, *how, **named)

    monkeypatch.setattr("sequences.images.modality.sample", draw)
    words = ["--split=train", "--images=2", "--rows=7", "--temperature=0.5", "--seed=3", "--out", tmp_path / "out"]
    cli.run("images", "sample", fresh(), *words)
    start, row = 1, 8 * 3
    assert asked == [((2, start + 7 * row), row, 0.5, {"seed": 3})]


def test_bad_input_is_refused_in_one_line(
    trained: Path, pictures: Path, fresh: Callable[[], Path], tmp_path: Path, cli: Commands
) -> None:
    (tmp_path / "bad").mkdir()
    for number in range(3):
        (tmp_path / "bad" / f"{number}.png").write_bytes(b"\x89PNG")
    other = write_corpus("images", tmp_path / "other")
    Image.new("RGB", (9, 9)).save(other / "new.png")
    train = ["train", *TINY_IMAGES, "--run", tmp_path / "new"]
    resume = ["train", "--resume", fresh()]
    for *arguments, words in (
        [*train, "--corpus.path", tmp_path / "none", "there is no folder"],
        [*train, "--corpus.path", tmp_path / "bad", ".png: expected a whole PNG or JPEG"],
        [*train, "--corpus.path", pictures, "--learner.batch-size=64", "tokens: expected more than"],
        [*train, "--corpus.height=7", "--corpus.height: expected 8 or more, got 7"],
        [*resume, "--corpus.height=9", "corpus.height: expected 8"],
        [*resume, "--corpus.path", other, "expected the data that"],
        ["sample", trained, "--rows=8", "rows: expected fewer than the 8 of an image, got 8"],
        ["sample", trained, "--rows=1", "--images=99", "images: expected at most the 1 of the valid split"],
        ["evaluate", trained, "--compressed-size=-1", "compressed_size: expected 0 or more"],
    ):
        cli.refuse("images", *arguments, words=words)
    assert not (tmp_path / "new").exists()
