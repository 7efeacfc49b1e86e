"""The four models: sizes that match, runs that resume exactly, samples that are drawn from what the model says."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from speech.sampling import generate
from speech.training import PRESETS, SpeechConfig, held_out, make_learner, make_preset, measure, validation_metrics

from agent.core import CompressiveTransformerConfig, LSTMConfig, TransformerXLConfig
from learner.sequence_learner import SequenceLearnerConfig, restore, save
from speech import audio, models
from speech.corpus import Corpus, CorpusConfig, Split, thin
from speech.wavenet import WaveNetConfig

TRANSFORMER = {"model_size": 16, "num_layers": 2, "num_heads": 2, "mlp_size": 16, "segment_size": 8, "norm": "pre"}
TINY = {
    "compressive": CompressiveTransformerConfig(**TRANSFORMER, memory_size=8, compressed_size=4, compression_rate=4),
    "transformer-xl": TransformerXLConfig(**TRANSFORMER, memory_size=12),
    "lstm": LSTMConfig(16),
    "wavenet": WaveNetConfig(16, num_layers=6, stack_layers=3, gate_size=16, skip_size=16),
}
every_core = pytest.mark.parametrize("core", TINY)


def corpus_of(tokens: np.ndarray) -> Corpus:
    """The same tokens in every split, as two files."""
    split = Split(tokens, ["a", "b"], np.array([0, len(tokens) // 2]))
    return Corpus("test", 8000, dict.fromkeys(("train", "validation", "test"), split), "")


@pytest.fixture(scope="module")
def hum() -> Corpus:
    rng = np.random.default_rng(0)
    return corpus_of(audio.encode(0.3 * np.sin(np.arange(6000) / 5) + 0.005 * rng.normal(size=6000)))


def config_of(core: str, steps: int = 6, **fields) -> SpeechConfig:
    learner = SequenceLearnerConfig(
        batch_size=4, sequence_length=32, steps=steps, learning_rate=1e-2, warmup_steps=2, decay_steps=steps,
        max_gradient_norm=1.0, late_step=None, device="cpu",
    )  # fmt: skip
    return SpeechConfig(model=TINY[core], learner=learner, **fields)


@pytest.mark.parametrize("preset", models.PRESETS)
def test_all_models_of_a_preset_are_of_one_size(preset: str) -> None:
    with torch.device("meta"):
        sizes = {core: models.parameters(models.make_model(models.PRESETS[preset](core))) for core in TINY}
    assert sizes.keys() == models.SPEECH_CORES.keys()
    for core, size in sizes.items():
        assert size == pytest.approx(sizes["compressive"], rel=0.02), core
    if preset == "paper":
        assert sizes["compressive"] == pytest.approx(40e6, rel=0.02)


def test_the_paper_preset_is_section_5_6() -> None:
    ours, larger, wavenet = (models.paper(core) for core in ("compressive", "transformer-xl", "wavenet"))
    assert (ours.num_layers, larger.num_layers, wavenet.num_layers) == (20, 20, 30)
    assert (ours.segment_size, ours.memory_size, ours.compressed_size, ours.compression_rate) == (768, 768, 768, 4)
    assert larger.memory_size == ours.memory_size + ours.compressed_size
    assert wavenet.dilations[:11] == (*(2**layer for layer in range(10)), 1)
    learner = make_preset("paper", "compressive").learner
    assert (learner.batch_size, learner.sequence_length, learner.steps) == (32, 3840, 400_000)


def test_levels_that_are_near_begin_with_vectors_that_are_alike() -> None:
    torch.manual_seed(0)
    vectors = models.make_model(TINY["lstm"]).embedding.vectors[0].detach()
    similar = torch.nn.functional.cosine_similarity
    assert similar(vectors[:-1], vectors[1:]).min() > 0.9
    assert similar(vectors[:-64], vectors[64:]).abs().mean() < 0.7


@every_core
def test_it_learns_and_goes_on_exactly_where_it_was(hum: Corpus, core: str, tmp_path: Path) -> None:
    config = config_of(core)
    straight = make_learner(config, hum)
    losses = [straight.update()["loss/nll"] for _ in range(6)]
    assert losses[-1] < min(losses[0], 5.5)

    interrupted = make_learner(config, hum)
    for _ in range(3):
        interrupted.update()
    save(interrupted, tmp_path, {}, keep=1)
    resumed = make_learner(dataclasses.replace(config, seed=1), hum)
    restore(resumed, tmp_path)
    assert [resumed.update()["loss/nll"] for _ in range(3)] == losses[3:]
    for name, weight in resumed.model.state_dict().items():
        assert torch.equal(weight, straight.model.state_dict()[name]), name


@every_core
def test_samples_are_drawn_from_the_distribution_of_the_parallel_forward(core: str) -> None:
    torch.manual_seed(0)
    model = models.make_model(TINY[core]).double()
    prompts = np.random.default_rng(0).integers(0, 256, (3, 21)).astype(np.uint8)
    drawn = generate(model, prompts, 30, temperature=0.8, seed=5)
    assert drawn.shape == (3, 30)
    assert drawn.dtype == np.uint8
    np.testing.assert_array_equal(drawn, generate(model, prompts, 30, temperature=0.8, seed=5))
    assert (drawn != generate(model, prompts, 30, temperature=0.8, seed=6)).any()

    whole = torch.from_numpy(np.concatenate([prompts, drawn], axis=1).astype(np.int64))
    with torch.no_grad():
        output = model(whole, torch.zeros_like(whole, dtype=torch.bool), model.initial_state(3))
    generator = torch.Generator().manual_seed(5)
    for step in range(30):
        probabilities = (output.log_probs[:, 20 + step] / 0.8).softmax(dim=1)
        expected = torch.multinomial(probabilities, 1, generator=generator)[:, 0]
        np.testing.assert_array_equal(drawn[:, step], expected)


def test_impossible_samples_are_refused() -> None:
    model = models.make_model(TINY["lstm"])
    prompts = np.zeros((1, 4), dtype=np.uint8)
    with pytest.raises(ValueError, match=r"prompts: expected \[B >= 1, P >= 1\], got \[1, 0\]"):
        generate(model, prompts[:, :0], 3)
    with pytest.raises(ValueError, match="samples: expected 1 or more, got 0"):
        generate(model, prompts, 0)
    with pytest.raises(ValueError, match="temperature: expected a positive number, got 0"):
        generate(model, prompts, 3, temperature=0)


@pytest.mark.parametrize("reset_at_files", [False, True])
def test_a_split_is_measured_whole_and_in_its_order(hum: Corpus, reset_at_files: bool) -> None:
    config = config_of("wavenet", reset_at_files=reset_at_files)
    model = make_learner(config, hum).model.eval()
    short = corpus_of(hum.splits["test"].tokens[:100])
    measured = measure(config, model, short.splits["test"])
    tokens = torch.from_numpy(short.splits["test"].tokens.astype(np.int64))[None]
    reset = torch.zeros(1, 99, dtype=torch.bool)
    reset[0, 50] = reset_at_files
    with torch.no_grad():
        nll = model(tokens[:, :-1], reset, model.initial_state(1), tokens[:, 1:]).nll
    assert measured["samples"] == 99
    assert measured["nats"] == pytest.approx(nll.mean().item(), abs=1e-6)
    assert measured["bits"] == pytest.approx(nll.mean().item() / np.log(2), abs=1e-6)
    expected = {"a": nll[0, :49].mean().item(), "b": nll[0, 49:].mean().item()}
    assert measured["files"] == pytest.approx(expected, abs=1e-6)
    whole = measure(config, model, hum.splits["test"])
    assert (2999 * whole["files"]["a"] + 3000 * whole["files"]["b"]) / 5999 == pytest.approx(whole["nats"])


def test_a_part_of_a_split_is_spread_over_it(hum: Corpus) -> None:
    config = dataclasses.replace(config_of("lstm"), validation_samples=1024)
    split = hum.splits["validation"]
    part = held_out(config, hum, "validation", 1024)
    pieces = [split.tokens[begin : begin + 256] for begin in (0, 1500, 3000, 4500)]
    np.testing.assert_array_equal(part.tokens, np.concatenate(pieces))
    assert (part.files, part.starts.tolist()) == (["a", "a", "b", "b"], [0, 256, 512, 768])
    assert held_out(config, hum, "validation", 6000) is split
    model = make_learner(config, hum).model.eval()
    measured = measure(config, model, part)
    assert validation_metrics(config, hum, model) == {"valid/nll": measured["nats"], "valid/bits": measured["bits"]}
    assert measured["files"].keys() == {"a", "b"}
    across = thin(Split(split.tokens, ["a", "b", "c"], np.array([0, 2003, 2005])), 30, 3)
    assert (across.files, across.starts.tolist()) == (["a", "a", "b", "c", "c"], [0, 10, 13, 15, 20])


def test_what_cannot_be_trained_is_refused(hum: Corpus) -> None:
    assert PRESETS.keys() == models.PRESETS.keys()
    with pytest.raises(ValueError, match="preset: expected one of cpu, paper, got 'tpu'"):
        make_preset("tpu", "lstm")
    with pytest.raises(ValueError, match=r"core: expected one of compressive, .*, got 'gru'"):
        make_preset("cpu", "gru")
    with pytest.raises(ValueError, match=r"sequence_length: expected a multiple .*segment_size = 64, got 100"):
        dataclasses.replace(make_preset("cpu", "compressive"), learner=SequenceLearnerConfig(sequence_length=100))
    with pytest.raises(ValueError, match=r"tokens: expected more than the 4 x 32 of one batch .*, got 128"):
        make_learner(config_of("lstm"), corpus_of(hum.splits["test"].tokens[:128]))
    assert make_preset("cpu", "wavenet").corpus == CorpusConfig()
