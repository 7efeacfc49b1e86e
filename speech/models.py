"""The four models of the comparison, and their sizes: the shared cores and WaveNet around one embedding and softmax.

A preset is a function from the name of a core to its config. All cores of a preset have as many parameters as its
Compressive Transformer, to within 2 %.
"""

import math
from collections.abc import Callable
from typing import Any

import torch

from agent.core import CORES, CompressiveTransformerConfig, Core, LSTMConfig, TransformerXLConfig, make_core
from agent.language_model import SequenceModel
from agent.memory_check import build_network
from speech import audio
from speech.wavenet import WaveNet, WaveNetConfig

SPEECH_CORES: dict[str, tuple[type, Callable[[Any], Core]]] = {
    **{name: CORES[name] for name in ("compressive", "transformer-xl", "lstm")},
    "wavenet": (WaveNetConfig, WaveNet),
}
"""Cores that have a size in every preset."""

SpeechCoreConfig = CompressiveTransformerConfig | TransformerXLConfig | LSTMConfig | WaveNetConfig


def paper(core: str) -> SpeechCoreConfig:
    """Section 5.6: about 40 M parameters, 20 layers of transformers and 30 of WaveNet, a window of 768 steps.

    Transformer-XL has the compressed slots as memory, so the attention cost is the same: 1536 slots (the paper's text
    says 1568, which 768 + 768 are not). The widths are ours, for the paper names none.
    """
    transformer: dict[str, Any] = {"model_size": 384, "num_layers": 20, "num_heads": 8, "segment_size": 768}
    cores: dict[str, SpeechCoreConfig] = {
        "compressive": CompressiveTransformerConfig(
            **transformer, mlp_size=896, memory_size=768, compressed_size=768, compression_rate=4
        ),
        "transformer-xl": TransformerXLConfig(**transformer, mlp_size=1664, memory_size=1536),
        "lstm": LSTMConfig(model_size=1288, num_layers=3),
        "wavenet": WaveNetConfig(model_size=472, num_layers=30, stack_layers=10, gate_size=472, skip_size=472),
    }
    return cores[core]


def cpu(core: str) -> SpeechCoreConfig:
    """Sizes for two CPU cores: about 0.2 M parameters, and a memory of 64 + 64 slots that reaches back 384 samples."""
    transformer: dict[str, Any] = {
        "model_size": 64, "num_layers": 3, "num_heads": 4, "segment_size": 64, "norm": "pre",
    }  # fmt: skip
    cores: dict[str, SpeechCoreConfig] = {
        "compressive": CompressiveTransformerConfig(
            **transformer, mlp_size=128, memory_size=64, compressed_size=64, compression_rate=4
        ),
        "transformer-xl": TransformerXLConfig(**transformer, mlp_size=256, memory_size=128),
        "lstm": LSTMConfig(model_size=127, num_layers=1),
        "wavenet": WaveNetConfig(model_size=38, num_layers=20, stack_layers=10, gate_size=38, skip_size=38),
    }
    return cores[core]


PRESETS: dict[str, Callable[[str], SpeechCoreConfig]] = {"cpu": cpu, "paper": paper}


def make_model(config: SpeechCoreConfig) -> SequenceModel:
    """A model of the 256 levels with its own table of vectors at the output.

    Raises:
        ValueError: if no core has such a config.
    """
    make: Callable[[Any], Core] = WaveNet if isinstance(config, WaveNetConfig) else make_core
    model = build_network(lambda: SequenceModel(make(config), audio.LEVELS, tied=False), config)
    with torch.no_grad():
        for table in (model.embedding, model.outputs):
            assert table is not None
            smooth = _smooth_vectors(config.model_size)
            table.vectors[0].copy_(smooth * table.vectors[0].std() / smooth.std())
    return model


def _smooth_vectors(size: int) -> torch.Tensor:
    """Vectors [256, size] that begin alike where levels are alike: random mixtures of cosines of the level.

    Levels have an order, unlike letters; with independent vectors each of them has to be learned alone.
    """
    levels = (torch.arange(audio.LEVELS) + 0.5) / audio.LEVELS
    waves = torch.cos(math.pi * torch.arange(1, 33) * levels[:, None])
    return (waves / torch.arange(1, 33) ** 0.5) @ torch.randn(32, size)


def parameters(model: torch.nn.Module) -> int:
    """How many numbers are trained."""
    return sum(parameter.numel() for parameter in model.parameters())
