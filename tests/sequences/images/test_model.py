"""The model of images knows the place of each byte, streams exactly, and is measured in bits a dimension."""

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from agent.core import CompressiveTransformerConfig, LSTMConfig, RoutingTransformerConfig, index_state, make_core
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
    torch.manual_seed(0)
    return ImageModel(make_core(CORES[core]), SHAPE).double().eval()


def stream(images: int, rows: int = 1) -> Tensor:
    """Rows of random images [rows, images * 19]."""
    drawn = torch.randint(256, (rows, images, SIZE), generator=torch.Generator().manual_seed(0))
    return torch.nn.functional.pad(drawn, (1, 0), value=START).flatten(1)


def none(tokens: Tensor) -> Tensor:
    return torch.zeros_like(tokens, dtype=torch.bool)


def test_places_are_counted_from_the_last_start() -> None:
    model, tokens = make(), stream(2)[:, 5:]
    reset = none(tokens)
    reset[0, 20] = True
    unknown = SIZE + 1
    expected = [*[unknown] * 14, *range(6), *[unknown] * (len(tokens[0]) - 20)]
    assert model.places(tokens, reset, model.initial_state(1).place)[0].tolist() == expected
    whole = stream(2)
    assert model.places(whole, none(whole), model.initial_state(1).place)[0].tolist() == [*range(19), *range(19)]


def test_embeddings_are_of_byte_channel_and_next_position() -> None:
    embedding, tokens = make().embedding, stream(1)
    found = embedding(tokens, torch.arange(19)[None])[0]
    rows, columns, channels = embedding.positions
    for place in range(19):
        value = 768 if place == 0 else int(tokens[0, place]) + 256 * ((place - 1) % 3)
        expected = embedding.values[value]
        if place < SIZE:
            expected = expected + rows[place // 9] + columns[place // 3 % 3] + channels[place % 3]
        torch.testing.assert_close(found[place], expected)
    elsewhere = embedding(tokens[:, 1:2], torch.tensor([[SIZE + 1]]))[0, 0]
    torch.testing.assert_close(elsewhere, embedding.values[tokens[0, 1]])


@pytest.mark.parametrize("core", CORES)
def test_byte_by_byte_is_the_whole(core: str) -> None:
    model, tokens = make(core), stream(3, 2)[:, 7:]
    reset, targets = none(tokens), tokens.roll(-1, dims=1)
    reset[1, 9] = True
    whole = model(tokens, reset, model.initial_state(2), targets)
    assert ((whole.nll == 0) == (targets == START)).all(), "the size is known: START is never predicted"
    state, losses = model.with_cache(model.initial_state(2)), []
    with torch.no_grad():
        for step in range(tokens.shape[1]):
            one = model(tokens[:, step : step + 1], reset[:, step : step + 1], state)
            state = one.state
            chosen = targets[:, step : step + 1]
            found = -one.log_probs[:, 0].gather(1, chosen.clamp(max=255))
            losses.append(found.masked_fill(chosen == START, 0))
        torch.testing.assert_close(torch.cat(losses, dim=1), whole.nll)
        after = model(tokens[1:, 9:], none(tokens[1:, 9:]), index_state(model.initial_state(1), [0]), targets[1:, 9:])
        if core == "lstm":  # others have another phase
            torch.testing.assert_close(after.nll, whole.nll[1:, 9:])
    changed = torch.cat([255 - tokens[:, :9].clamp(max=255), tokens[:, 9:]], 1)
    other = model(changed, reset, model.initial_state(2), targets)
    torch.testing.assert_close(other.nll[1, 9:], whole.nll[1, 9:])
    assert not torch.equal(other.nll[0, 9:], whole.nll[0, 9:])


def test_sampling_draws_bytes_after_a_start() -> None:
    drawn = torch.stack(list(sample(make(), torch.full((3, 1), START), SIZE)), dim=1)
    assert drawn.shape == (3, SIZE)
    assert drawn.min() >= 0
    assert drawn.max() < START


def images_of(root: Path, **fields: Any) -> Images:
    learner = SequenceLearnerConfig(batch_size=2, sequence_length=16, steps=1, warmup_steps=0)
    core = CORES["compressive"]
    config = ImagesConfig(corpus=CorpusConfig(str(root), 8, 8), model=core, learner=learner, **fields)
    return Images.prepare(config)


def test_measures_are_those_of_single_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data = images_of(folder(tmp_path / "pictures", 80))
    torch.manual_seed(0)
    model, part = data.make_model().eval(), data.splits["test"]
    losses = []
    for image in part.images(data.shape):
        tokens = torch.from_numpy(np.append(START, image.ravel()).astype(np.int64))[None]
        with torch.no_grad():
            losses.append(model(tokens[:, :-1], none(tokens[:, :-1]), model.initial_state(1), tokens[:, 1:]).nll[0])
    bits = (torch.stack(losses).view(-1, 2, 32, 3).double() / math.log(2)).numpy()
    (found,) = data.evaluate(model)
    assert found["images"] == len(bits) == 4
    assert found["bits_per_dim"] == pytest.approx(bits.mean(), abs=1e-5)
    assert list(found["half"].values()) == pytest.approx(bits.mean(axis=(0, 2, 3)), abs=1e-5)
    assert list(found["channel"].values()) == pytest.approx(bits.mean(axis=(0, 1, 2)), abs=1e-5)
    assert found["nats"] == pytest.approx(found["bits_per_dim"] * math.log(2))
    assert data.validate(model)["valid/nll"] == pytest.approx(math.log(256), abs=0.5)
    (some,) = data.evaluate(model, ImagesEvaluation(images=1, split="train", memory_size=0))
    assert (some["images"], some["memory_size"], found["uniform"]) == (1, 0, 8.0)


def test_png_bits_and_sheets() -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3)).astype(np.uint8)
    sizes = []
    for image in images:
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "PNG", optimize=True)
        sizes.append(len(buffer.getvalue()))
    assert png_bits(images) == 8 * sum(sizes) / (3 * 192) > 8
    assert png_bits(np.zeros_like(images)) < 4
    sheet = contact_sheet([images, images[:2]], columns=2, least=16)
    assert sheet.shape == (3 * 20 + 8, 2 * 20, 3)
    np.testing.assert_array_equal(sheet[2:18:2, 22:38:2], images[1])
    np.testing.assert_array_equal(sheet[50:66:2, 2:18:2], images[0])
    assert (sheet[20:40, 20:] == 255).all()
