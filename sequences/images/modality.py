"""Images as a modality: which corpus, which network, bits a dimension on held-out images, and samples."""

import io
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from PIL import Image

from agent.core import make_core
from agent.memory_check import build_network
from sequences.images import corpus
from sequences.images.config import ImagesConfig, ImagesEvaluation, ImagesSampling
from sequences.images.corpus import START, Split
from sequences.images.model import ImageModel
from sequences.learner import Total, evaluate_by
from sequences.modality import Counting, Modality, in_tensorboard, quiet, resized
from sequences.sampling import one_thread, sample
from sequences.streams import Batch, one_pass
from storage.errors import describe
from storage.files import cache_folder, replacing

CHANNELS = ("red", "green", "blue")
HALVES = ("first", "second")
NUM_GROUPS = len(HALVES) * len(CHANNELS)
"""Groups of an image's bytes whose losses are measured: half and channel."""
IMAGES_OF_ROW = 32
"""At least, in evaluations in which memory also holds the images before."""


class Images(Modality):
    """A corpus as bytes of pixels, and a model of images; see `sequences.modality.Modality`."""

    config: ImagesConfig
    splits: dict[str, Split]

    def __init__(self, config: ImagesConfig, folder: Path) -> None:
        super().__init__(config, folder)
        self.shape = config.corpus.shape
        self.size = math.prod(self.shape)
        self.name, self.splits, self.digest = corpus.open_built(folder)

    @classmethod
    def prepare(cls, config: ImagesConfig, show: Callable[[int, int], None] = lambda done, total: None) -> Self:
        """See `Modality`; warns of files that are left out."""
        return cls(config, corpus.prepare(config.corpus, cache_folder("images"), show))

    def describe(self) -> str:
        counts = ", ".join(f"{name} {len(split.starts):,}" for name, split in self.splits.items())
        return f"{self.name}: images of {self.shape[0]} x {self.shape[1]}, {counts}"

    def make_model(self) -> ImageModel:
        def build() -> ImageModel:
            return ImageModel(make_core(self.config.model), self.shape)

        return build_network(build, self.config.model)

    def unit(self, nll: float) -> str:
        return f"{nll / math.log(2):.3f} bits/dim"

    def validate(self, model: Any, count: Counting = quiet) -> dict[str, float]:
        images = None
        if self.config.evaluate_tokens is not None:
            images = max(1, self.config.evaluate_tokens // (self.size + 1))
        measured = self.measure(model, self.held_out("valid", images), count)
        return {"valid/nll": measured["nats"], "valid/bits_per_dim": measured["bits_per_dim"]}

    def evaluate(
        self, model: Any, options: ImagesEvaluation | None = None, count: Counting = quiet
    ) -> Iterator[dict[str, Any]]:
        """See `Modality`: bits a dimension, beside those of a uniform distribution and of PNG files."""
        options = options or ImagesEvaluation()
        model, sizes = resized(model, options)
        part = self.held_out(options.split, options.images)
        measured = self.measure(model, part, count, f"measuring {options.split}")
        yield {"split": options.split, **measured, "uniform": 8.0, "png": png_bits(part.images(self.shape)), **sizes}

    def finish(self, model: Any, run: Path, step: int, count: Counting = quiet) -> dict[str, Any]:
        """See `Modality`: the loss on the validation split, the model's size, and samples."""
        measured = self.measure(model, self.splits["valid"], count)
        found: dict[str, Any] = {"validation": measured["bits_per_dim"]}
        found["parameters"] = sum(parameter.numel() for parameter in model.parameters())
        if self.config.samples:
            options = ImagesSampling(images=self.config.samples)
            try:
                with one_thread():
                    found["drawn"] = str(self.draw(model, options, run / "samples", run, step, count))
            except (ValueError, OSError) as error:  # the measures count more than the samples
                found["drawn"] = f"none: {describe(error)}"
        return found

    def held_out(self, split: str, images: int | None) -> Split:
        """A split or, spread over it, at most so many of its images; see `_rows`."""
        pieces = None
        if images is not None and not self.config.reset_at_starts:
            pieces = self._rows(images)
        return self.splits[split].thin(images, pieces)

    def _rows(self, images: int) -> int:
        """Parts in which so many images are read side by side: the rows of a batch.

        If memory also holds the images before, a row has many: the first of each is read with empty memory.
        """
        if self.config.reset_at_starts:
            return min(images, self.config.learner.batch_size)
        return max(1, min(images // IMAGES_OF_ROW, self.config.learner.batch_size))

    def _cuts(self, part: Split, rows: int) -> np.ndarray:
        """See `Modality`. A row begins with an image: inside of one, the model would not know the place of a byte."""
        if self.config.reset_at_starts:
            return part.starts
        first_images = -(-np.arange(rows) * len(part.starts) // rows)  # rounded up, as they begin in their row's part
        return part.starts[first_images]

    def measure(self, model: Any, part: Split, count: Counting = quiet, activity: str = "measuring") -> dict[str, Any]:
        """Negative log-likelihood: "nats" and "bits_per_dim" a byte, bits by "channel" and "half", and the "images"."""
        learner = self.config.learner
        rows = self._rows(len(part.starts))

        # The group of each byte of an image. START is in one of its own, which is not among the measures.
        place = np.arange(self.size)
        half = place >= self.size / 2
        channel = place % len(CHANNELS)
        groups_of_bytes = len(CHANNELS) * half + channel
        groups_of_image = np.append(NUM_GROUPS, groups_of_bytes).astype(np.uint8)

        # A second pass beside that of the tokens reads the groups of the same places.
        groups = np.tile(groups_of_image, len(part.starts))
        second = one_pass(groups, rows, learner.sequence_length, self._cuts(part, rows))

        def group_of(batch: Batch) -> np.ndarray:
            return next(second).targets.numpy()

        batches = self.batches(part, rows, count, activity)
        sums, numbers = evaluate_by(model, batches, group_of, NUM_GROUPS + 1, learner.precision)
        shape = (len(HALVES), len(CHANNELS))
        losses = sums[:NUM_GROUPS].reshape(shape) / math.log(2)  # in bits
        counts = numbers[:NUM_GROUPS].reshape(shape)
        bits = Total(float(losses.sum()), int(counts.sum())).mean
        by_channel = losses.sum(axis=0) / counts.sum(axis=0).clip(min=1)
        by_half = losses.sum(axis=1) / counts.sum(axis=1).clip(min=1)
        return {
            "nats": bits * math.log(2),
            "bits_per_dim": bits,
            "images": len(part.starts),
            "channel": dict(zip(CHANNELS, by_channel.tolist())),
            "half": dict(zip(HALVES, by_half.tolist())),
        }

    def drawn(self, options: ImagesSampling) -> int:
        """Tokens that `draw` draws."""
        _, width, channels = self.shape
        given = options.rows * width * channels
        return options.images * (self.size - given)

    def draw(
        self, model: Any, options: ImagesSampling, out: Path, run: Path, step: int, count: Counting = quiet
    ) -> Path:
        """Draws images, and writes a sheet of held-out images with the drawn ones below them.

        That is `sheet.png` in the folder `out`, and in TensorBoard's events of `step` in the folder `run`.

        Raises:
            ValueError: if there are too few images, or they have too few rows.
        """
        found = self.splits[options.split]
        height, width, channels = self.shape
        if options.rows >= height:
            raise ValueError(f"rows: expected fewer than the {height} of an image, got {options.rows}")
        if options.rows and options.images > len(found.starts):
            expected = f"at most the {len(found.starts)} of the {options.split} split"
            raise ValueError(f"images: expected {expected} with --rows, got {options.images}")

        out.mkdir(exist_ok=True)  # before all is drawn
        # Without rows there may be more images to draw than there are in the split.
        real = found.thin(options.images).images(self.shape)
        given = np.zeros((options.images, 0), np.uint8)
        if options.rows:
            given = real.reshape(len(real), -1)[:, : options.rows * width * channels]
        started = np.pad(given.astype(np.int64), ((0, 0), (1, 0)), constant_values=START)
        prompts = torch.from_numpy(started)

        drawn: list[np.ndarray] = []
        length = self.size - given.shape[1]
        with count("drawing", length, "bytes") as show:
            for tokens in sample(model, prompts, length, options.temperature, seed=options.seed):
                drawn.append(tokens.numpy().astype(np.uint8))
                show(len(drawn))
        made = np.concatenate([given, np.stack(drawn, axis=1)], axis=1).reshape(-1, *self.shape)

        sheet = contact_sheet([real, made])
        with replacing(out / "sheet.png") as temporary:
            Image.fromarray(sheet).save(temporary, format="PNG")
        in_tensorboard(run, lambda events: events.add_image("samples", sheet, step, dataformats="HWC"))
        return out / "sheet.png"


def png_bits(images: np.ndarray) -> float:
    """Bits a dimension of images [N, rows, columns, 3] uint8, each as a PNG file of its own."""
    total = 0
    for image in images:
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "PNG", optimize=True)
        total += buffer.getbuffer().nbytes
    return 8 * total / images.size


def contact_sheet(groups: list[np.ndarray], columns: int = 16, least: int = 64) -> np.ndarray:
    """A picture [rows, columns, 3] uint8 of groups of images [N, rows, columns, 3], from top to bottom.

    Small images are enlarged to `least` pixels; each group begins a row, with a white gap above it.
    """
    most = max((len(images) for images in groups), default=0)
    across = min(columns, most)
    bands: list[np.ndarray] = []
    for images in groups:
        # Each image with a black frame; white ones fill up the last line.
        scale = max(1, least // images.shape[1])
        enlarged = images.repeat(scale, axis=1).repeat(scale, axis=2)
        framed = np.pad(enlarged, ((0, 0), (2, 2), (2, 2), (0, 0)))
        missing = -len(images) % across
        filled = np.pad(framed, ((0, missing), (0, 0), (0, 0), (0, 0)), constant_values=255)

        _, height, width, _ = filled.shape
        lines = filled.reshape(-1, across, height, width, 3).swapaxes(1, 2)
        band = lines.reshape(-1, across * width, 3)
        gap = 8 if bands else 0
        bands.append(np.pad(band, ((gap, 0), (0, 0), (0, 0)), constant_values=255))
    return np.concatenate(bands)
