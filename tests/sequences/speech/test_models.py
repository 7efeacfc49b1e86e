"""The four models: sizes that match, what is measured, and samples to listen to."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from sequences.config import SequenceLearnerConfig
from sequences.speech import audio, config
from sequences.speech.config import PRESETS, SPEECH_CORES, SpeechConfig
from sequences.speech.corpus import Split, thin
from sequences.speech.modality import Speech, make_model
from tests.sequences.speech.tiny import TINY

HUM = audio.encode(0.3 * np.sin(np.arange(6000) / 5) + 0.005 * np.random.default_rng(0).normal(size=6000))


class Hum(Speech):
    """The modality with the same tokens in every split, as two files."""

    def __init__(self, config: SpeechConfig, tokens: np.ndarray = HUM) -> None:
        self.config = config
        self.name = "hum"
        self.sample_rate = 8000
        self.digest = ""
        split = Split(tokens, ["a", "b"], np.array([0, len(tokens) // 2]))
        self.splits = dict.fromkeys(("train", "validation", "test"), split)


def config_of(core: str, **fields: Any) -> SpeechConfig:
    """A tiny model on the CPU."""
    learner = SequenceLearnerConfig(batch_size=4, sequence_length=32, steps=6, late_start=None, device="cpu")
    return SpeechConfig(model=TINY[core], learner=learner, **fields)


@pytest.mark.parametrize("preset", PRESETS)
def test_all_models_of_a_preset_are_of_one_size(preset: str) -> None:
    with torch.device("meta"):
        models = {core: make_model(PRESETS[preset](core).model) for core in SPEECH_CORES}
    sizes = {core: sum(parameter.numel() for parameter in model.parameters()) for core, model in models.items()}
    for core, size in sizes.items():
        assert size == pytest.approx(sizes["compressive"], rel=0.02), core
    if preset == "paper":
        assert sizes["compressive"] == pytest.approx(40e6, rel=0.02)


def test_the_paper_preset_is_section_5_6() -> None:
    compressive = config.paper("compressive").model
    assert compressive.num_layers == 20
    assert compressive.segment_size == compressive.memory_size == compressive.compressed_size == 768
    assert compressive.compression_rate == 4

    transformer_xl = config.paper("transformer-xl").model
    assert transformer_xl.num_layers == 20
    assert transformer_xl.memory_size == compressive.memory_size + compressive.compressed_size

    assert config.paper("wavenet").model.num_layers == 30

    learner = config.paper("compressive").learner
    assert (learner.batch_size, learner.sequence_length, learner.steps) == (32, 3840, 400_000)


def test_similar_levels_start_with_similar_vectors() -> None:
    """In the embedding, and in the layer that predicts levels."""
    torch.manual_seed(0)
    model = make_model(TINY["lstm"])
    similar = torch.nn.functional.cosine_similarity
    for table in (model.embedding, model.outputs):
        vectors = table.vectors[0].detach()
        assert similar(vectors[:-1], vectors[1:]).min() > 0.9
        assert similar(vectors[:-64], vectors[64:]).abs().mean() < 0.7


@pytest.mark.parametrize("reset", [False, True])
def test_a_split_is_measured_whole_and_in_its_order(reset: bool) -> None:
    """The literal loss: one call over two files of 50 tokens, of which the first token is no target."""
    settings = config_of("wavenet", reset_at_starts=reset)
    short = Hum(settings, HUM[:100])
    model = short.make_model().eval()
    tokens = torch.from_numpy(HUM[:100].astype(np.int64))[None]
    resets = torch.zeros(1, 99, dtype=torch.bool)
    resets[0, 50] = reset
    with torch.no_grad():
        nll = model(tokens[:, :-1], resets, model.initial_state(1), tokens[:, 1:]).nll

    measured = short.measure(model, short.splits["test"])
    assert measured["samples"] == 99
    assert measured["nats"] == pytest.approx(nll.mean().item())  # within 8 units in the last place of float32
    assert measured["bits"] == pytest.approx(nll.mean().item() / np.log(2))
    first_file = nll[0, :49].mean().item()
    second_file = nll[0, 49:].mean().item()
    assert measured["files"] == pytest.approx({"a": first_file, "b": second_file})

    # Of two files of 3000 tokens the whole is the mean over targets.
    long = Hum(settings)
    found = long.measure(model, long.splits["test"])
    mean = (2999 * found["files"]["a"] + 3000 * found["files"]["b"]) / 5999
    assert found["nats"] == pytest.approx(mean)


def test_a_split_is_measured_in_the_precision_of_the_training() -> None:
    def nats(precision: str) -> float:
        config = config_of("lstm")
        learner = dataclasses.replace(config.learner, precision=precision)
        data = Hum(dataclasses.replace(config, learner=learner), HUM[:100])
        torch.manual_seed(0)
        return data.measure(data.make_model().eval(), data.splits["test"])["nats"]

    assert nats("bfloat16") == pytest.approx(nats("float32"), rel=0.01)
    assert nats("bfloat16") != nats("float32")


def test_a_part_of_a_split_is_spread_over_it() -> None:
    """1024 of 6000 tokens are four pieces at equal distances."""
    data = Hum(config_of("lstm", evaluate_tokens=1024))
    split = data.splits["validation"]
    part = data.held_out("validation", 1024)
    pieces = [split.tokens[begin : begin + 256] for begin in (0, 1500, 3000, 4500)]
    np.testing.assert_array_equal(part.tokens, np.concatenate(pieces))
    assert part.files == ["a", "a", "b", "b"]
    assert part.starts.tolist() == [0, 256, 512, 768]
    assert data.held_out("validation", 6000) is split

    # Validation measures this part.
    model = data.make_model().eval()
    measured = data.measure(model, part)
    assert data.validate(model) == {"valid/nll": measured["nats"], "valid/bits": measured["bits"]}


def test_a_piece_may_have_parts_of_several_files() -> None:
    """The second of three pieces of ten tokens begins at 2000, in file a, and ends in file c."""
    split = Split(HUM, ["a", "b", "c"], np.array([0, 2003, 2005]))
    part = thin(split, 30, 3)
    assert part.files == ["a", "a", "b", "c", "c"]
    assert part.starts.tolist() == [0, 10, 13, 15, 20]
