"""The presets of language models have the numbers of the paper (Rae et al. 2019)."""

from typing import Any

import pytest
import torch

from sequences.text.config import PRESETS
from sequences.text.modality import make_model


def fields_of(config: Any, *names: str) -> tuple[Any, ...]:
    return tuple(getattr(config, name) for name in names)


@pytest.mark.parametrize(
    ("preset", "sizes", "slots", "transformer_xl"),
    [
        # Section 5.2 and appendix B; Transformer-XL has a memory of 2304.
        ("enwik8", (24, 1024, 8, 3072), (768, 768, 1152, 3), 2304),
        # Section 5.3 and appendix B.
        ("wikitext103", (18, 1024, 16, 4096), (512, 512, 512, 4), 1024),
        # Section 5.1. Its Transformer-XL attends to as many slots.
        ("pg19", (36, 1024, 16, 4096), (512, 512, 512, 2), 1024),
    ],
)
def test_sizes_are_those_of_sections_5_1_to_5_3(preset: str, sizes: Any, slots: Any, transformer_xl: int) -> None:
    core = PRESETS[preset]("compressive").model.core
    assert fields_of(core, "num_layers", "model_size", "num_heads", "mlp_size") == sizes
    assert fields_of(core, "segment_size", "memory_size", "compressed_size", "compression_rate") == slots
    assert core.compression == "convolution"
    assert core.compression_loss == "attention"
    assert PRESETS[preset]("transformer-xl").model.core.memory_size == transformer_xl


@pytest.mark.parametrize(
    ("preset", "batch_size", "warmup_steps", "decay_steps"),
    [("enwik8", 64, 4_000, 100_000), ("wikitext103", 128, 16_000, 500_000), ("pg19", 512, 16_000, 500_000)],
)
def test_the_recipe_is_that_of_section_5(preset: str, batch_size: int, warmup_steps: int, decay_steps: int) -> None:
    """The paper does not say the batch size of Enwik8."""
    config = PRESETS[preset]("compressive")
    learner = config.learner
    assert fields_of(learner, "batch_size", "warmup_steps", "decay_steps") == (batch_size, warmup_steps, decay_steps)
    assert learner.steps == warmup_steps + decay_steps
    assert fields_of(learner, "least_learning_rate", "learning_rate", "max_gradient_norm") == (1e-6, 3e-4, 0.1)
    assert fields_of(learner, "accumulation_steps", "late_start", "late_accumulation_steps") == (1, 60_000, 4)
    assert learner.sequence_length == config.core_config.segment_size


def test_models_of_enwik8_are_as_large_as_the_published_ones() -> None:
    """Transformer-XL has 277 M parameters (Dai et al. 2019, table 2). Compression adds three matrices a layer."""
    sizes = {}
    for core in ("compressive", "transformer-xl"):
        with torch.device("meta"):
            model = make_model(PRESETS["enwik8"](core).model, 256)
        sizes[core] = sum(parameter.numel() for parameter in model.parameters())
    assert sizes["transformer-xl"] == pytest.approx(277e6, rel=0.005)
    biases = 24 * 1024
    assert sizes["compressive"] - sizes["transformer-xl"] - 24 * 3 * 1024**2 in (0, biases)


def test_data_are_cut_as_the_paper_does() -> None:
    """Words for WikiText-103, with adaptive inputs and softmax; 32,000 subwords for PG-19; bytes for Enwik8."""
    found = {name: fields_of(PRESETS[name]("compressive"), "corpus", "tokens", "vocabulary") for name in PRESETS}
    assert found["enwik8"][:2] == ("enwik8", "bytes")
    assert found["wikitext103"][:2] == ("wikitext103", "words")
    assert found["pg19"] == ("pg19", "subwords", 32_000)
    assert PRESETS["wikitext103"]("compressive").model.cutoffs == (20_000, 40_000, 200_000)
