"""The model of images knows the place of each byte, streams exactly, and is measured in bits a dimension."""

import dataclasses
import io
import math
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from agent.core import CompressiveTransformerConfig, LSTMConfig, RoutingTransformerConfig, make_core
from sequences.config import SequenceLearnerConfig
from sequences.images.config import CorpusConfig, ImagesConfig, ImagesEvaluation
from sequences.images.corpus import START
from sequences.images.modality import Images, contact_sheet, png_bits
from sequences.images.model import ImageModel
from sequences.sampling import sample
from tests.sequences.images.test_corpus import folder

SHAPE = (2, 3, 3)
SIZE = 18
SIZES: dict[str, Any] = {"model_size": 8, "num_layers": 2, "num_heads": 2, "mlp_size": 8, "segment_size": 4}
CORES = {
    "compressive": CompressiveTransformerConfig(**SIZES, memory_size=4, compressed_size=4, compression_rate=2),
    "routing": RoutingTransformerConfig(**SIZES, memory_size=4, window=2, clusters=2),
    "lstm": LSTMConfig(8),
}


def make(core: str = "compressive") -> ImageModel:
    """A model that is always the same, in float64."""
    torch.manual_seed(0)
    return ImageModel(make_core(CORES[core]), SHAPE).double().eval()


def stream(images: int, rows: int = 1) -> Tensor:
    """Rows of random images [rows, images * 19]."""
    drawn = torch.randint(256, (rows, images, SIZE), generator=torch.Generator().manual_seed(0))
    return torch.nn.functional.pad(drawn, (1, 0), value=START).flatten(1)


def no_resets(tokens: Tensor) -> Tensor:
    return torch.zeros_like(tokens, dtype=torch.bool)


def places(model: ImageModel, tokens: Tensor, reset: Tensor) -> list[int]:
    """Of one row."""
    return model.places(tokens, reset, model.initial_state(1).place)[0].tolist()


def test_places_are_counted_from_the_last_start() -> None:
    tokens = stream(2)
    assert places(make(), tokens, no_resets(tokens)) == [*range(19), *range(19)]


def test_places_are_unknown_before_a_start_and_after_a_reset() -> None:
    """The stream begins within an image. The second image starts at 14, and a reset comes six bytes later."""
    tokens = stream(2)[:, 5:]
    reset = no_resets(tokens)
    reset[0, 20] = True
    unknown = SIZE + 1
    assert places(make(), tokens, reset) == [*[unknown] * 14, *range(6), *[unknown] * (len(tokens[0]) - 20)]


def test_embeddings_are_of_byte_channel_and_next_position() -> None:
    """The vectors of values are those of 256 bytes of three channels, and that of START."""
    embedding = make().embedding
    tokens = stream(1)
    found = embedding(tokens, torch.arange(19)[None])[0]
    rows, columns, channels = embedding.positions
    for place in range(19):
        if place == 0:
            value = 3 * 256
        else:
            channel = (place - 1) % 3
            value = int(tokens[0, place]) + 256 * channel
        expected = embedding.values[value]

        # The next byte is that of this row, column and channel; after the last one there is none.
        if place < SIZE:
            expected = expected + rows[place // 9] + columns[place // 3 % 3] + channels[place % 3]
        torch.testing.assert_close(found[place], expected)

    # At an unknown place a byte has the vector of the first channel.
    elsewhere = embedding(tokens[:, 1:2], torch.tensor([[SIZE + 1]]))[0, 0]
    torch.testing.assert_close(elsewhere, embedding.values[tokens[0, 1]])


@pytest.mark.parametrize("core", CORES)
def test_byte_by_byte_is_the_whole(core: str) -> None:
    """Two rows, of which the second has a reset at step 9."""
    model = make(core)
    tokens = stream(3, 2)[:, 7:]
    reset = no_resets(tokens)
    reset[1, 9] = True
    targets = tokens.roll(-1, dims=1)
    whole = model(tokens, reset, model.initial_state(2), targets)
    assert ((whole.nll == 0) == (targets == START)).all(), "the size is known: START is never predicted"

    state = model.with_cache(model.initial_state(2))
    losses = []
    with torch.no_grad():
        for step in range(tokens.shape[1]):
            now = slice(step, step + 1)
            one = model(tokens[:, now], reset[:, now], state)
            state = one.state
            found = -one.log_probs[:, 0].gather(1, targets[:, now].clamp(max=255))
            losses.append(found.masked_fill(targets[:, now] == START, 0))
    torch.testing.assert_close(torch.cat(losses, dim=1), whole.nll)

    # Other bytes before step 9 change nothing after the reset, and something in the row without one.
    changed = torch.cat([255 - tokens[:, :9].clamp(max=255), tokens[:, 9:]], dim=1)
    other = model(changed, reset, model.initial_state(2), targets)
    torch.testing.assert_close(other.nll[1, 9:], whole.nll[1, 9:])
    assert not torch.equal(other.nll[0, 9:], whole.nll[0, 9:])


def test_a_reset_begins_with_the_initial_state() -> None:
    """For an LSTM; the segments of other cores do not begin at a reset."""
    model = make("lstm")
    tokens = stream(3)[:, 7:]
    targets = tokens.roll(-1, dims=1)
    reset = no_resets(tokens)
    reset[0, 9] = True
    whole = model(tokens, reset, model.initial_state(1), targets)
    after = model(tokens[:, 9:], no_resets(tokens[:, 9:]), model.initial_state(1), targets[:, 9:])
    torch.testing.assert_close(after.nll, whole.nll[:, 9:])


def test_sampling_draws_bytes_after_a_start() -> None:
    drawn = torch.stack(list(sample(make(), torch.full((3, 1), START), SIZE)), dim=1)
    assert drawn.shape == (3, SIZE)
    assert drawn.min() >= 0
    assert drawn.max() < START


def images_of(root: Path, **fields: Any) -> Images:
    """Pictures of 8 x 8 pixels and a small model."""
    learner = SequenceLearnerConfig(batch_size=2, sequence_length=16, steps=1, warmup_steps=0)
    core = CORES["compressive"]
    config = ImagesConfig(corpus=CorpusConfig(str(root), 8, 8), model=core, learner=learner, **fields)
    return Images.prepare(config)


def test_measures_are_those_of_single_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data = images_of(folder(tmp_path / "pictures", 80))
    torch.manual_seed(0)
    model = data.make_model().eval()

    # The literal loss of each image, in bits: [images, halves, pixels of a half, channels].
    losses = []
    for image in data.splits["test"].images(data.shape):
        tokens = torch.from_numpy(np.append(START, image.ravel()).astype(np.int64))[None]
        inputs = tokens[:, :-1]
        with torch.no_grad():
            output = model(inputs, no_resets(inputs), model.initial_state(1), tokens[:, 1:])
        losses.append(output.nll[0])
    bits = (torch.stack(losses).view(-1, 2, 32, 3).double() / math.log(2)).numpy()

    (found,) = data.evaluate(model)
    assert found["images"] == len(bits) == 4
    assert found["bits_per_dim"] == pytest.approx(bits.mean(), abs=1e-5)
    assert list(found["half"].values()) == pytest.approx(bits.mean(axis=(0, 2, 3)), abs=1e-5)
    assert list(found["channel"].values()) == pytest.approx(bits.mean(axis=(0, 1, 2)), abs=1e-5)
    assert found["nats"] == pytest.approx(found["bits_per_dim"] * math.log(2))
    assert found["uniform"] == 8.0

    # A new model is nearly uniform. The progress of a validation is told: it may take minutes.
    told = MagicMock()
    assert data.validate(model, told)["valid/nll"] == pytest.approx(math.log(256), abs=0.5)
    assert told.called

    (some,) = data.evaluate(model, ImagesEvaluation(images=1, split="train", memory_size=0))
    assert some["images"] == 1
    assert some["memory_size"] == 0


def test_measures_are_made_in_the_precision_of_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data = images_of(folder(tmp_path / "pictures", 20))
    torch.manual_seed(0)
    model = data.make_model().eval()
    bits = {}
    for precision in ("float32", "bfloat16"):
        learner = dataclasses.replace(data.config.learner, precision=precision)
        data.config = dataclasses.replace(data.config, learner=learner)
        bits[precision] = data.measure(model, data.splits["test"])["bits_per_dim"]
    assert bits["bfloat16"] == pytest.approx(bits["float32"], rel=0.01)
    assert bits["bfloat16"] != bits["float32"]


@pytest.mark.parametrize("images", [*[pytest.param(each, marks=pytest.mark.slow) for each in (None, 8)], 9])
def test_measures_with_memory_of_earlier_images(
    images: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of two rows reads images that follow each other, from the start of one, and keeps the memory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("sequences.images.modality.IMAGES_OF_ROW", 4)
    data = images_of(folder(tmp_path / "pictures", 41), reset_at_starts=False)
    torch.manual_seed(0)
    model = data.make_model().eval()
    split = data.splits["train"]
    whole = split.images(data.shape)
    assert len(whole) == 35
    rows = [whole[:18], whole[18:]] if images is None else [whole[:4], whole[17:21]]

    losses = []
    for row in rows:
        # The literal loss of each byte, of one row in one call.
        tokens = torch.from_numpy(np.concatenate([np.append(START, image.ravel()) for image in row]).astype(np.int64))
        inputs = tokens[None, :-1]
        with torch.no_grad():
            output = model(inputs, no_resets(inputs), model.initial_state(1), tokens[None, 1:])
        losses.append(output.nll[0][tokens[1:] != START])
    bits = torch.cat(losses).double().mean().item() / math.log(2)
    (found,) = data.evaluate(model, ImagesEvaluation(images=images, split="train"))
    assert found["images"] == sum(map(len, rows))
    assert len(next(data.batches(split, 2)).tokens) == 2, "both rows side by side"
    assert found["bits_per_dim"] == pytest.approx(bits, abs=1e-5)


def random_images() -> np.ndarray:
    """Three of 8 x 8 pixels."""
    return np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3)).astype(np.uint8)


def test_png_bits_are_those_of_files() -> None:
    images = random_images()
    sizes = []
    for image in images:
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "PNG", optimize=True)
        sizes.append(len(buffer.getvalue()))
    assert png_bits(images) == 8 * sum(sizes) / (3 * 192) > 8
    assert png_bits(np.zeros_like(images)) < 4


def test_a_contact_sheet_has_groups_of_enlarged_images() -> None:
    """Images are 16 pixels wide in cells of 20: two rows for three images and, 8 pixels below, one for two."""
    images = random_images()
    sheet = contact_sheet([images, images[:2]], columns=2, least=16)
    assert sheet.shape == (3 * 20 + 8, 2 * 20, 3)
    np.testing.assert_array_equal(sheet[2:18:2, 22:38:2], images[1])
    np.testing.assert_array_equal(sheet[50:66:2, 2:18:2], images[0])
    assert (sheet[20:40, 20:] == 255).all(), "an empty cell"


def test_similar_bytes_are_predicted_alike_at_first() -> None:
    """The rows of the last layer are smooth, with the deviation of other layers."""
    vectors = make("lstm").outputs.vectors[0].detach()
    assert torch.nn.functional.cosine_similarity(vectors[:-1], vectors[1:]).min() > 0.9
    assert vectors.std() == pytest.approx(vectors.shape[1] ** -0.5, rel=0.2)
