"""`compressive compare`: the report of finished runs of sequence models, and what is said of unfinished ones."""

import dataclasses
import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from reports.comparison import KIND, read_run
from reports.overview import describe, learning_curve
from sequences.kinds import PRESETS
from storage.errors import UserError
from storage.run import Run
from tests.commands.cli import Commands
from tests.commands.finished import compare, table, write_run
from tests.commands.pages import embedded
from training.plain import to_plain


def make_sequence_run(run: Path, config: Any, losses: list[float], summary: Any, digest: str = "a") -> Path:
    """The folder of a finished run of sequences. Losses are two steps apart and the same in the unit of any kind."""
    rows = []
    for index, loss in enumerate(losses):
        measured = dict.fromkeys(("valid/nll", "valid/bits_per_byte", "valid/bits_per_dim"), loss)
        rows.append({"step": 2 * (index + 1), "speed/tokens_per_second": 9.0} | measured)
    learner = dataclasses.replace(config.learner, steps=2 * len(losses))
    config = dataclasses.replace(config, learner=learner)

    write_run(run, to_plain(config), rows, summary)
    for record in ("corpus.json", "tokenizer.json"):
        (run / record).write_text(json.dumps({"name": "voices", "digest": digest}))
    return run


MEASURES = {
    "text": ("bits_per_byte", {"word_perplexity": 9.0}, {}),
    "speech": ("nats", {"bits": 1.0, "linear": 2.7, "order_0": 5.1}, {"linear predictor": 2.7, "frequencies": 5.1}),
    "images": ("bits_per_dim", {"png": 7.0, "uniform": 8.0}, {"PNG files": 7.0, "uniform": 8.0}),
}
"""By kind: the measure that is compared, others in the evaluation, and the lines that these become."""


@pytest.mark.parametrize("kind", MEASURES)
def test_runs_of_sequences_are_compared_by_their_loss(kind: str, tmp_path: Path, cli: Commands) -> None:
    measure, others, references = MEASURES[kind]
    out = tmp_path / "out"
    runs = []
    for core, seed, loss in [("lstm", 0, 2.0), ("lstm", 1, 2.2), ("compressive", 0, 1.0), ("compressive", 1, 1.2)]:
        config = dataclasses.replace(PRESETS[kind]("cpu", core), seed=seed)
        summary = {measure: loss} | others
        runs.append(make_sequence_run(tmp_path / f"{core}{seed}", config, [loss + 1, loss], summary))

    # The lowest loss is the best.
    printed, _ = compare(cli, out, runs, "--threshold", 1.5)
    page = embedded(out / "report.html")
    assert "1.10  [1.00, 1.20]" in printed
    assert page["evidence"].startswith("compressive has the lowest interquartile mean, 1.10 (its runs: 1.00 to 1.20).")
    rows = {row["variant"]: row for row in table(out / "report" / "improvements.csv")}
    assert float(rows["compressive"]["probability"]) == 1
    assert page["second"]["chance"] == "0.33", "two of the six orders"
    reached = [row["steps_to_threshold"] for row in table(out / "report" / "runs.csv")]
    assert reached == ["", "", "4.0", "4.0"]
    assert all(line in printed for line in references)
    assert {line["name"]: line["value"] for line in page["lines"]} == references | {"threshold": 1.5}

    # The evaluation of another kind of run.
    (runs[0] / "evaluation.json").write_text('{"return": {"mean": 3.0}}')
    config = PRESETS[kind]("cpu", "lstm")
    cli.refuse("compare", "--from", *runs, words=f"expected {config.score} in it")

    # Another corpus.
    another = make_sequence_run(tmp_path / "other", config, [2.0], {measure: 2.0} | others, digest="b")
    cli.refuse("compare", "--from", *runs[1:], another, words="mixed corpora: expected runs on the same data")


@pytest.mark.parametrize("kind", MEASURES)
def test_every_validation_of_a_long_run_is_in_its_curve(kind: str, tmp_path: Path) -> None:
    """Few rows have one. Its latest one is the score of an unfinished run, also some rows later."""
    config = dataclasses.replace(PRESETS[kind]("cpu", "lstm"), seed=0)
    config = dataclasses.replace(config, learner=dataclasses.replace(config.learner, steps=100_000))
    measured = ("valid/nll", "valid/bits_per_byte", "valid/word_perplexity", "valid/bits_per_dim")
    rows = []
    for step in range(10, 50_041, 10):
        row = {"step": step, "time": 1.0, "loss/nll": 9.0}
        if step % 200 == 0:
            row |= dict.fromkeys(measured, 1.0 + 1.0 / step)
        rows.append(row)
    path = tmp_path / kind
    write_run(path, to_plain(config), rows, {})
    (path / "evaluation.json").unlink(missing_ok=True)
    for record in ("corpus.json", "tokenizer.json"):
        (path / record).write_text(json.dumps({"name": "voices", "digest": "a"}))

    run = read_run(path, live=True)
    scale = KIND[kind].scales[0]
    steps, _ = run.curve(scale)
    assert steps.tolist() == list(range(200, 50_001, 200))
    last = 1.0 + 1.0 / 50_000
    assert run.summary[scale.final] == last
    assert learning_curve(Run(path), config)[-1][1] == pytest.approx(1.0, abs=1e-3)
    score = describe(kind, Run(path)).score
    assert score is not None
    assert (score.value, score.training) == (last, True)


def test_runs_of_other_words_are_not_compared(tmp_path: Path, cli: Commands) -> None:
    """With three words nearly all of a text is unknown, and easily told."""
    runs = []
    for tokens, vocabulary, loss in [("words", 3, 1.9), ("words", 5_000, 4.9), ("bytes", None, 7.6)]:
        config = dataclasses.replace(PRESETS["text"]("cpu", "lstm"), tokens=tokens, vocabulary=vocabulary)
        summary = {"word_perplexity": loss}
        runs.append(make_sequence_run(tmp_path / f"{tokens}{vocabulary}", config, [loss], summary, digest=str(loss)))
    for pair in itertools.combinations(runs, 2):
        printed = cli.run("compare", "--from", *pair, "--folder", tmp_path / "out")
        assert "Each corpus is compared by itself: mixed corpora: expected every variant on each of python" in printed
        shutil.rmtree(tmp_path / "out")


@pytest.mark.parametrize("damaged", ["x", [1], True, float("nan")])
def test_other_numbers_of_an_evaluation_are_numbers(damaged: Any, tmp_path: Path) -> None:
    config = PRESETS["speech"]("cpu", "lstm")
    known = make_sequence_run(tmp_path / "known", config, [2.0], {"nats": 2.0, "bits": 1.0, "validation": None})
    assert read_run(known).summary["bits"] == 1.0
    run = make_sequence_run(tmp_path / "damaged", config, [2.0], {"nats": 2.0, "validation": damaged})
    with pytest.raises(UserError, match="evaluation: validation: expected a finite number or null, got"):
        read_run(run)


def test_runs_of_two_kinds_are_refused(tmp_path: Path, cli: Commands) -> None:
    speech = make_sequence_run(tmp_path / "a", PRESETS["speech"]("cpu", "lstm"), [2.0], {"nats": 2.0})
    text = make_sequence_run(
        tmp_path / "b", PRESETS["text"]("cpu", "lstm"), [2.0], {"bits_per_byte": 2.0, "word_perplexity": 9.0}
    )
    cli.refuse("compare", "--from", speech, text, words="expected runs of one kind, got speech and text")
