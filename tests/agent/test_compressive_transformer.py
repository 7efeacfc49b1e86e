"""The Compressive Transformer equals the literal transcription of the paper, whatever its config and its episodes."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.core import CompressiveTransformerConfig, GatedTransformerXLConfig, TransformerXLConfig
from agent.core.compression import COMPRESSIONS
from tests.agent.literal import check_against_literal
from tests.agent.tiny import GATES, HEADS, NORMS, POSITIONS, SIZE, assert_same, config_of, normal, resets


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("loss", ["attention", "autoencoding", "bptt", "none"])
def test_equals_algorithms_1_and_2(
    build: Callable[..., Any], gate: str, norm: str, position: str, compression: str, loss: str
) -> None:
    choices = {"gate": gate, "norm": norm, "compressed_position": position, "compression": compression}
    core = build(config_of(6, 5, 4, 3, compression_loss=loss, **choices))
    check_against_literal(core, normal(1, 20, SIZE), resets(1, 20, (0, 9)))


# n_s, n_m, n_cm and c; without compressed memory it is Transformer-XL.
SIZES = [(4, 4, 4, 4), (4, 1, 2, 1), (4, 0, 3, 2), (4, 6, 3, 4), (1, 2, 3, 1), (4, 7, 0, 3)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("compression", ["convolution", "most-used"])
def test_equals_algorithm_1_at_any_size(
    build: Callable[..., Any], sizes: tuple[int, int, int, int], position: str, compression: str
) -> None:
    core = build(config_of(*sizes, compressed_position=position, compression=compression))
    check_against_literal(core, normal(2, 21, SIZE), resets(2, 21, (1, 6)))


@st.composite
def configs(draw: st.DrawFn) -> CompressiveTransformerConfig:
    n_s = draw(st.sampled_from([1, 2, 3, 4, 6]))
    divisors = [c for c in range(1, n_s + 1) if n_s % c == 0]

    def for_each_layer(sizes: st.SearchStrategy[int]) -> tuple[int, int]:
        return draw(st.tuples(sizes, sizes))

    return config_of(
        n_s,
        n_m=for_each_layer(st.integers(0, 6)),
        n_cm=for_each_layer(st.integers(0, 4)),
        c=for_each_layer(st.sampled_from(divisors)),
        norm=draw(st.sampled_from(NORMS)),
        gate=draw(st.sampled_from(GATES)),
        compressed_position=draw(st.sampled_from(POSITIONS)),
        compression=draw(st.sampled_from(tuple(COMPRESSIONS))),
        compression_loss=draw(st.sampled_from(("attention", "autoencoding", "none"))),
    )


@settings(max_examples=8 * settings.default.max_examples)
@given(config=configs(), steps=st.integers(1, 20), data=st.data())
def test_equals_the_literal_with_resets(
    build: Callable[..., Any], config: Any, steps: int, data: st.DataObject
) -> None:
    places = st.tuples(st.integers(0, 1), st.integers(0, steps - 1))
    reset = resets(2, steps, *data.draw(st.sets(places, max_size=4)))
    check_against_literal(build(config), normal(2, steps, SIZE, seed=steps), reset)


def test_gated_transformer_xl_has_pre_norms_and_gates(build: Callable[..., Any]) -> None:
    sizes = {"model_size": SIZE, "num_layers": 2, "num_heads": HEADS, "mlp_size": 6}
    memory = {"segment_size": 4, "memory_size": 5}
    gated = build(GatedTransformerXLConfig(**sizes, **memory))
    same = build(TransformerXLConfig(**sizes, **memory, norm="pre", gate="gru"))
    inputs = normal(2, 18, SIZE)
    reset = resets(2, 18, (1, 6))
    actual = gated(inputs, reset, gated.initial_state(2)).features
    expected = same(inputs, reset, same.initial_state(2)).features
    assert_same(actual, expected, 0)
    with pytest.raises(ValueError, match="gate: expected one of gru, got 'residual'"):
        GatedTransformerXLConfig(gate="residual")
