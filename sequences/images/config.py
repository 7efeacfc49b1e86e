"""The configuration of an image model's run, and its presets."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Self

from agent.core.config import CORES, CompressiveTransformerConfig, CoreConfig, matched_cores
from agent.core.fields import AtLeast0, Checked, Count, Positive, Range, Several
from sequences.config import MemorySizes, SequenceConfig, short_training, with_corpus_at
from training.config import find_preset

ROOMS = "rooms"
"""The corpus that needs no files."""
Pixels = Annotated[int, Range(8, 256)]


@dataclass(frozen=True)
class CorpusConfig(Checked):
    """The images. Impossible values raise a ValueError that names the field."""

    path: str = ROOMS
    """A folder with PNG or JPEG files at any depth, or "rooms": views of the level rooms:transfer, which need none."""
    height: Pixels = 16
    """Pixels of a column. Images are cut to this shape around their middle, and resized."""
    width: Pixels = 16
    """Pixels of a row."""
    split_by: Literal["file", "folder"] = "file"
    """What is in one split as a whole: a file, or all files of a folder, such as the frames of a video. Only the files
    of a folder follow each other in the order of their names."""
    skip_unreadable: bool = False
    """Leave out damaged files with a warning, instead of an error at the first."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.path == ROOMS and self.split_by != "file":
            expected = f"expected file for {ROOMS!r}, whose episodes are never divided"
            raise ValueError(f"split_by: {expected}, got {self.split_by}")

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, columns and channels of an image."""
        return self.height, self.width, 3


@dataclass(frozen=True)
class ImagesConfig(SequenceConfig):
    """An image model's run; `compressive images train` writes it, resolved, to the run's `config.json`."""

    kind: ClassVar[str] = "images"
    cores: ClassVar[Mapping[str, type[Checked]]] = CORES
    score: ClassVar[str] = "bits_per_dim"
    fixed: ClassVar[tuple[str, ...]] = (
        *SequenceConfig.fixed,
        "corpus.height",
        "corpus.width",
        "corpus.split_by",
        "corpus.skip_unreadable",
    )

    reset_at_starts: bool = True
    """Reset the memory where an image starts; otherwise it also holds the images before, such as frames of a video
    (with --corpus.split-by folder)."""
    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    """The images."""
    model: CoreConfig = field(default_factory=CompressiveTransformerConfig)
    """The recurrent core; embedding and softmax have its width."""
    samples: Annotated[int, Range(0, 1024)] = 8
    """Images that are drawn at the end; 0 for none."""

    def located(self, absolute: Callable[[str], str], path: str | None = None) -> Self:
        return with_corpus_at(self, path, absolute, generated=ROOMS)


def cpu(core: str) -> ImagesConfig:
    """Minutes on one CPU thread: images of 16 x 16, a segment of one row, 144 slots beside it at equal attention cost.

    The compressive memory reaches 9 rows back, that of Transformer-XL 3.
    """
    sizes: dict[str, Any] = {
        "model_size": 64,
        "num_layers": 3,
        "num_heads": 4,
        "mlp_size": 128,
        "segment_size": 48,
        "norm": "pre",
    }
    cores = matched_cores(sizes, 48, 96, 4, recurrent_layers=2)
    return ImagesConfig(
        preset="cpu",
        model=cores[core],
        evaluate_every=500,
        evaluate_tokens=30_000,
        keep_checkpoints=2,
        learner=short_training(rows=8, length=192, steps=1_500, learning_rate=3e-3),
    )


PRESETS = {"cpu": cpu}

make_preset = functools.partial(find_preset, PRESETS, CORES)
"""The configuration of an image run, given the names of a preset and a core."""


@dataclass(frozen=True, kw_only=True)
class ImagesEvaluation(MemorySizes):
    """What to measure on held-out images."""

    split: Literal["train", "valid", "test"] = "test"
    """Which images."""
    images: Positive | None = None
    """At most so many images, spread over the split; None for all."""


@dataclass(frozen=True, kw_only=True)
class ImagesSampling(Checked):
    """Which images to draw."""

    images: Several = 16
    """Number of images, which are drawn together."""
    rows: Count = 0
    """Rows of a held-out image that each begins with; the model draws the others."""
    split: Literal["train", "valid", "test"] = "valid"
    """Where the held-out images come from."""
    temperature: AtLeast0 = 1.0
    """Logits are divided by it; 0 takes the most probable value."""
    seed: Count = 0
    """Seed of the draws."""
