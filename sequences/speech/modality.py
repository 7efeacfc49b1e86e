"""Sound as a modality: which corpus, which network, what is measured on held-out sound, and samples to listen to."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch.utils.tensorboard import SummaryWriter

from agent.core import make_core
from agent.memory_check import build_network
from sequences.learner import Total, evaluate_by
from sequences.modality import Counting, Modality, Table, in_tensorboard, quiet, resized
from sequences.model import SequenceModel, smooth_vectors
from sequences.sampling import one_thread, sample
from sequences.speech import audio, baselines, corpus
from sequences.speech.config import SpeechConfig, SpeechCoreConfig, SpeechEvaluation, SpeechSampling
from sequences.speech.corpus import Split
from sequences.speech.spectrogram import write_spectrograms
from sequences.streams import Batch, one_pass
from storage.errors import describe
from storage.files import cache_folder


class Speech(Modality):
    """A corpus as levels of samples, and a model of waveforms; see `sequences.modality.Modality`."""

    config: SpeechConfig
    splits: dict[str, Split]

    def __init__(self, config: SpeechConfig, folder: Path) -> None:
        super().__init__(config, folder)
        self.name, self.sample_rate, self.splits, self.digest = corpus.open_built(folder)

    @classmethod
    def prepare(cls, config: SpeechConfig, show: Callable[[int, int], None] = lambda done, total: None) -> Self:
        """See `Modality`; warns of files that are left out."""
        return cls(config, corpus.prepare(config.corpus, cache_folder("speech"), show))

    def describe(self) -> str:
        minutes = {name: len(split.tokens) / self.sample_rate / 60 for name, split in self.splits.items()}
        lengths = ", ".join(f"{name} {length:.1f} min" for name, length in minutes.items())
        return f"{self.name}: {self.sample_rate} Hz, {lengths}"

    def make_model(self) -> SequenceModel:
        return make_model(self.config.model)

    def unit(self, nll: float) -> str:
        return f"{nll:.3f} nats"

    def validate(self, model: SequenceModel, count: Counting = quiet) -> dict[str, float]:
        measured = self.measure(model, self.held_out("validation", self.config.evaluate_tokens), count)
        return {"valid/nll": measured["nats"], "valid/bits": measured["bits"]}

    def evaluate(
        self, model: SequenceModel, options: SpeechEvaluation | None = None, count: Counting = quiet
    ) -> Iterator[dict[str, Any]]:
        options = options or SpeechEvaluation()
        model, sizes = resized(model, options)
        part = self.held_out(options.split, options.samples)
        measured = self.measure(model, part, count, f"measuring {options.split}")
        with count("measuring linear prediction", len(part.tokens), "samples") as show:
            fitted = baselines.predictors(self.splits["train"].tokens, part.tokens, show)
        yield {"split": options.split, **measured, **fitted, **sizes}

    def finish(self, model: SequenceModel, run: Path, step: int, count: Counting = quiet) -> dict[str, Any]:
        """See `Modality`: the loss on the validation split, the model's size, and samples."""
        measured = self.measure(model, self.splits["validation"], count, "measuring validation")
        found: dict[str, Any] = {"validation": measured["nats"]}
        found["parameters"] = sum(parameter.numel() for parameter in model.parameters())
        seconds = self.config.sample_seconds
        if seconds:
            options = SpeechSampling(seconds=seconds, prompt_seconds=seconds, clips=1)
            try:
                with one_thread():
                    found["drawn"] = str(self.draw(model, options, run / "samples", run, step, count))
            except (ValueError, OSError) as error:  # the measures count more than the samples
                found["drawn"] = f"none: {describe(error)}"
        return found

    def tables(self, part: dict[str, Any]) -> Iterator[Table]:
        """See `Modality`; of the files, the five with the smallest and the five with the largest loss."""
        files = sorted(part["files"].items(), key=lambda item: item[1])
        shown = files
        if len(files) > 10:
            shown = files[:5] + files[-5:]
        return super().tables(part | {"files": dict(shown)})

    def held_out(self, split: str, samples: int | None = None) -> Split:
        """A split or, spread over it, at most so many of its samples."""
        part = self.splits[split]
        if samples is None:
            return part
        return corpus.thin(part, samples, self._rows(samples))

    def _rows(self, samples: int) -> int:
        """Parts in which so many samples are read side by side: the rows of a batch, or fewer where they are short."""
        learner = self.config.learner
        long_enough = samples // (4 * learner.sequence_length)
        return max(1, min(learner.batch_size, long_enough))

    def measure(self, model: SequenceModel, part: Split, count: Counting = quiet, activity: str = "") -> dict[str, Any]:
        """Negative log-likelihood: "nats" and "bits" per sample, the number of "samples", and nats of each of "files".

        Reads the part in as many contiguous rows as a batch has, or fewer where it is short, and keeps the memory.
        """
        learner = self.config.learner
        rows = self._rows(len(part.tokens))

        # A second pass beside that of the samples reads the number of each sample's file. A thinned part may have
        # several pieces of a file, which have one number.
        names, number_of_piece = np.unique(part.files, return_inverse=True)
        smallest = np.min_scalar_type(len(names))
        numbers = np.repeat(number_of_piece.astype(smallest), part.lengths)
        files = one_pass(numbers, rows, learner.sequence_length, self._starts(part))

        def file_of(batch: Batch) -> np.ndarray:
            return next(files).targets.numpy()

        batches = self.batches(part, rows, count, activity)
        losses, counts = evaluate_by(model, batches, file_of, len(names), learner.precision)
        total = Total(float(losses.sum()), int(counts.sum()))
        by_file = {}
        for name, loss, samples in zip(names, losses, counts):
            if samples:
                by_file[str(name)] = float(loss / samples)
        return {"nats": total.mean, "bits": total.mean / math.log(2), "samples": total.count, "files": by_file}

    def drawn(self, options: SpeechSampling) -> float:
        """Samples that `draw` draws."""
        return options.clips * options.seconds * self.sample_rate

    def draw(
        self, model: SequenceModel, options: SpeechSampling, out: Path, run: Path, step: int, count: Counting = quiet
    ) -> Path:
        """Draws clips after prompts of real sound; returns the picture of their spectrograms.

        WAV files and the picture are written to the folder `out`, whose parent must exist, TensorBoard's events of
        `step` to `run`. Each clip is there twice: the prompt with what the model drew, and the real clip that the
        prompt is cut from.

        Raises:
            ValueError: if no file is long enough.
            OSError: if the files cannot be written.
        """
        rate = self.sample_rate
        part = self.splits[options.split]
        prompt = max(1, round(options.prompt_seconds * rate))
        length = max(1, round(options.seconds * rate))
        longest = int(part.lengths.max())
        if prompt + length > longest:
            expected = f"at most {longest / rate:.3g} together with prompt_seconds"
            why = f"as long as the longest file of the {options.split} split"
            wanted = f"{options.prompt_seconds:g} + {options.seconds:g}"
            raise ValueError(f"seconds: expected {expected}, {why}, got {wanted}")
        out.mkdir(exist_ok=True)  # before all is drawn
        real = np.stack([corpus.excerpt(part, prompt + length, number) for number in range(options.clips)])
        prompts = real[:, :prompt]

        drawn: list[np.ndarray] = []
        with count("drawing", length, "samples") as show:
            given = torch.from_numpy(prompts.astype(np.int64))
            for tokens in sample(model, given, length, options.temperature, seed=options.seed):
                drawn.append(tokens.numpy().astype(np.uint8))
                show(len(drawn))
        made = np.concatenate([prompts, np.stack(drawn, axis=1)], axis=1)

        clips: dict[str, np.ndarray] = {}
        for number in range(options.clips):
            clips[f"real-{number}"] = audio.decode(real[number])
            clips[f"sample-{number}"] = audio.decode(made[number])

        for name, waveform in clips.items():
            audio.write_wav(out / f"{name}.wav", waveform, rate)
        picture = write_spectrograms(out / "spectrograms.png", clips, rate, options.prompt_seconds)

        def add(events: SummaryWriter) -> None:
            events.add_image("spectrograms", np.asarray(picture), step, dataformats="HWC")
            for name, waveform in clips.items():
                events.add_audio(name, torch.from_numpy(waveform), step, sample_rate=rate)

        in_tensorboard(run, add)
        return out / "spectrograms.png"


def make_model(config: SpeechCoreConfig) -> SequenceModel:
    """A model of the 256 levels whose input and output tables start as smooth functions of the level.

    Levels have an order, unlike letters; with independent vectors the model has to learn each level alone.

    Raises:
        ValueError: if the network does not fit into memory.
    """
    model = build_network(lambda: SequenceModel(make_core(config), audio.LEVELS, tied=False), config)
    with torch.no_grad():
        for table in (model.embedding, model.outputs):
            assert table is not None
            vectors = table.vectors[0]
            vectors.copy_(smooth_vectors(audio.LEVELS, config.model_size) * vectors.std())
    return model
