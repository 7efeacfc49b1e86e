"""What the configs of the transformers refuse, and dropout."""

import pytest
import torch
from torch import Tensor

from agent.core import GatedTransformerXLConfig, TransformerXLConfig
from tests.agent.tiny import SIZE, config_of, normal, resets


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"c": 3}, "compression_rate: expected a divisor of segment_size = 4, got 3"),
        ({"model_size": 5}, "model_size: expected a multiple of num_heads = 2, got 5"),
        ({"model_size": 5, "num_heads": 1}, "model_size: expected an even number .*, got 5"),
        ({"num_layers": 0}, "num_layers: expected 1 or more, got 0"),
        ({"mlp_size": 1.5}, "mlp_size: expected an integer, got 1.5"),
        ({"n_s": True}, "segment_size: expected an integer, got True"),
        ({"n_m": -1}, "memory_size: expected 0 or more, got -1"),
        ({"n_cm": -2}, "compressed_size: expected 0 or more, got -2"),
        ({"compression": "most"}, "compression: expected one of convolution, .*mean.*, got 'most'"),
        ({"compression_loss": "l2"}, "compression_loss: expected one of attention, .*none, got 'l2'"),
        ({"norm": "rms"}, "norm: expected one of pre, post, got 'rms'"),
        ({"gate": "lstm"}, "gate: expected one of residual, gru, got 'lstm'"),
        ({"compressed_position": "far"}, "compressed_position: expected one of slot, time, got 'far'"),
        ({"attention": "flash"}, "attention: expected one of sdpa, flex, got 'flash'"),
        ({"attention": "flex", "compression": "most-used"}, "attention: expected sdpa with most-used .*, got 'flex'"),
        ({"dropout": 1.0}, r"dropout: expected a number in \[0, 1\), got 1.0"),
        ({"n_m": (1, 2, 3)}, r"memory_size: expected one number or 2 \(num_layers\), got \(1, 2, 3\)"),
        ({"n_cm": (4, -1)}, r"compressed_size: expected 0 or more, got \(4, -1\)"),
        ({"c": (2, 0)}, r"compression_rate: expected 1 or more, got \(2, 0\)"),
        ({"c": (2, 3)}, "compression_rate: expected a divisor of segment_size = 4, got 3"),
    ],
)
def test_config_errors_name_the_field(fields, message) -> None:
    with pytest.raises(ValueError, match=message):
        config_of(**fields)


def test_a_rate_that_is_not_used_may_be_anything() -> None:
    assert config_of(4, 4, 0, 3).compressed_size == 0


@pytest.mark.parametrize("config", [TransformerXLConfig, GatedTransformerXLConfig])
@pytest.mark.parametrize(
    ("name", "value", "default"),
    [
        ("compression", "mean", "'convolution'"),
        ("compression_loss", "bptt", "'attention'"),
        ("compression_rate", 2, "4"),
        ("compression_rate", (4, 2), "4"),
        ("compressed_position", "time", "'slot'"),
    ],
)
def test_transformer_xl_does_not_compress(config, name, value, default) -> None:
    with pytest.raises(ValueError, match=f"{name}: expected the default, {default}, for Transformer-XL, .*, got "):
        config(num_layers=2, **{name: value})
    assert config(num_layers=2, compression_rate=(4, 4)).compressed_size == 0


def test_transformer_xl_has_no_compressed_memory() -> None:
    with pytest.raises(ValueError, match="compressed_size: expected 0 for Transformer-XL, got 4"):
        TransformerXLConfig(compressed_size=4)
    assert TransformerXLConfig(2, 2, 1, compressed_size=(0, 0)).layer_sizes[1].compressed == 0


def test_dropout_acts_while_training_only(build) -> None:
    core, inputs, reset = build(config_of(dropout=0.5)), normal(1, 6, SIZE), resets(1, 6)

    def features() -> Tensor:
        return core(inputs, reset, core.initial_state(1)).features

    assert torch.equal(features(), features())
    core.train()
    assert not torch.equal(features(), features())
