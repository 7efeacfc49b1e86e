"""Runs of `compressive text`: configuration, token files, models and measures, for its commands and benchmarks."""

import dataclasses
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from agent.language_model import SequenceModel
from commands.options import user_errors
from learner import checkpoints
from learner.communicator import Communicator
from learner.files import read_json
from learner.learner import resolve_device
from learner.sequence_learner import SequenceLearner, evaluate
from learner.streams import Batch, Streams, one_pass
from text import corpora, evaluation, tokenization
from text.corpora import Split, Tokens
from text.model import make_model
from text.presets import TextConfig
from text.tokenization import Bytes, Tokenizer
from training import UserError
from training.config import build, read_plain
from training.console import quantity
from training.run import located
from training.sequence import load_weights


def to_plain(config: TextConfig) -> dict[str, Any]:
    """The configuration as JSON can hold it; the core's name stands beside its fields."""
    plain = dataclasses.asdict(config)
    plain["model"]["core"] = {"name": config.core_name, **plain["model"]["core"]}
    return {"kind": "text", **plain}


def read_run(run: Path) -> TextConfig:
    """The configuration of a run's folder.

    Raises:
        FileNotFoundError: if the folder is no run.
        ValueError: if it is no run of this command, or its `config.json` cannot be read.
    """
    plain = read_plain(run, "text")
    try:
        return build(TextConfig, plain, "config")
    except ValueError as error:
        raise ValueError(f"{run / 'config.json'}: {error}") from error


@dataclass(frozen=True)
class TextJob:
    """A training of a language model; see `training.sequence.Job`."""

    config: TextConfig
    run: Path
    tokens: Path
    """Folder of the token files."""

    @property
    def learners(self) -> int:
        """How many processes learn."""
        return self.config.learners

    def plain(self) -> dict[str, Any]:
        """The configuration."""
        return to_plain(self.config)

    def make_learner(self, comm: Communicator, device: str | None) -> SequenceLearner:
        """A learner of this process's rows of the split train, with weights that depend on the seed alone."""
        config, tokens = self.config, corpora.open_tokens(self.tokens)
        train = tokens.splits["train"]
        torch.manual_seed(config.seed)
        model = make_model(config.model, tokens.tokenizer.vocabulary)
        learning = config.learner
        try:
            source = Streams(
                train.tokens,
                learning.batch_size,
                learning.sequence_length,
                train.starts if config.reset_documents else None,
                (comm.rank, comm.size),
            )
        except ValueError as error:
            raise ValueError(f"{config.corpus}, split train: {error}") from error
        if device:
            learning = dataclasses.replace(learning, device=device)
        return SequenceLearner(model, source, learning, comm)

    def evaluate(self, model: SequenceModel) -> dict[str, float]:
        """On the split valid, or as much of it as the configuration says."""
        tokens = corpora.open_tokens(self.tokens)
        split = cut(tokens.splits["valid"], self.config.evaluate_tokens)
        total = evaluate(model, passes(self.config, split, self.config.evaluate_rows), self.config.learner.precision)
        found = evaluation.summary(total, split, tokens.tokenizer)
        return {"valid/nll": found.pop("nats_per_token"), **{f"valid/{name}": value for name, value in found.items()}}

    def loop(self) -> dict[str, Any]:
        """See `learner.sequence_learner.train`."""
        config = self.config
        return {
            "log_every": config.log_every,
            "checkpoint_seconds": config.checkpoint_seconds,
            "keep": config.keep_checkpoints,
            "evaluate_every": config.evaluate_every,
        }


def cut(split: Split, tokens: int | None) -> Split:
    """The first tokens of a split; its bytes and words are then shares, so ratios to them are estimates."""
    if tokens is None or tokens >= len(split.tokens):
        return split
    share = tokens / len(split.tokens)
    starts = split.starts[split.starts < tokens]
    return split._replace(
        tokens=split.tokens[:tokens],
        starts=starts,
        documents=len(starts),
        bytes=round(split.bytes * share),
        words=round(split.words * share),
    )


def passes(config: TextConfig, split: Split, rows: int) -> Iterator[Batch]:
    """One pass over a split, in batches of the length that the model was trained with."""
    starts = split.starts if config.reset_documents else None
    return one_pass(split.tokens, rows, config.learner.sequence_length, starts)


def prepare(config: TextConfig) -> tuple[Path, Tokens]:
    """The token files of a configuration's corpus, and the folder where they are.

    Raises:
        FileNotFoundError, ValueError, ImportError, OSError: what is wrong with the corpus, or the cache.
    """
    path = None if config.path is None else Path(located(config.path))
    corpus = corpora.load(config.corpus, path)
    return corpora.prepare(config.corpus, corpus, config.tokens, config.vocabulary)


def write_tokenizer(run: Path, tokens: Tokens) -> None:
    """Keeps with a run what its tokens mean; `require_same_tokens` and `open_run` read it."""
    checkpoints.write_json(run / "tokenizer.json", {"digest": tokens.digest, **tokens.tokenizer.to_plain()})


def require_same_tokens(run: Path, tokens: Tokens) -> None:
    """Raises a UserError if a run was trained on other text, or does not say on which."""
    with user_errors():
        path = run / "tokenizer.json"
        plain = read_json(path)
        checkpoints.require(plain, {"digest": str}, str(path))
        expected = plain["digest"]
    if tokens.digest != expected:
        raise UserError(
            f"the corpus is not the one that {run} was trained on (its hash is {tokens.digest[:12]}, expected "
            f"{expected[:12]}): say with --path where that is, and for --corpus python use the same Python"
        )


def describer(tokenizer: Tokenizer) -> Callable[[float], str]:
    """Nats a token in the usual unit: bits for bytes, else perplexity."""
    if isinstance(tokenizer, Bytes):
        return lambda nll: f"{evaluation.bits_per_character(nll, 1):.3f} bpc"
    return lambda nll: f"{evaluation.perplexity(nll, 1):.1f} ppl"


def measure(
    config: TextConfig, model: SequenceModel, tokens: Tokens, name: str, rows: int, step: int
) -> dict[str, Any]:
    """The loss of a model of some step on a whole split, and how it was measured, ready for JSON."""
    split, precision = tokens.splits[name], config.learner.precision
    begin = time.monotonic()
    total = evaluate(model, passes(config, split, rows), precision)
    found: dict[str, Any] = {"split": name, "step": step, "rows": rows, "precision": precision}
    found |= evaluation.summary(total, split, tokens.tokenizer)
    sizes = {"tokens": total.count, "bytes": split.bytes, "words": split.words, "nll": total.nll}
    sizes["words_prescribed"] = split.prescribed
    return found | sizes | {"tokens_per_second": total.count / max(time.monotonic() - begin, 1e-9)}


def rows_of(found: dict[str, Any]) -> dict[str, str]:
    """What `measure` found as rows of a table."""
    bits = {"bits a byte": f"{found['bits_per_byte']:.4f}"} if "bits_per_byte" in found else {}
    words = f", over the {found['words']:,} words that PG-19 prescribes" if found["words_prescribed"] else ""
    return {
        "split": f"{found['split']}, {quantity(found['tokens'])} tokens of {quantity(found['bytes'])} bytes",
        **bits,
        "perplexity a word": f"{found['word_perplexity']:.6g}{words}",
        "nats a token": f"{found['nats_per_token']:.4f}",
        "tokens a second": quantity(found["tokens_per_second"]),
    }


def open_run(
    run: Path, device: str, console: Console
) -> tuple[TextConfig, Tokenizer, SequenceModel, checkpoints.Checkpoint]:
    """A run's configuration, its tokenizer, its model in evaluation mode on a device, and the checkpoint it is of.

    Newer checkpoints that cannot be read are named on the console.

    Raises:
        UserError: if it is no run, or cannot be read.
    """
    with user_errors():
        config = read_run(run)
        tokenizer = tokenization.from_plain(read_json(run / "tokenizer.json"))
        model = make_model(config.model, tokenizer.vocabulary).to(resolve_device(device))
    checkpoint = load_weights(run, model, console)
    return config, tokenizer, model.eval(), checkpoint
