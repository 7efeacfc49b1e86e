"""Drawing: the nucleus by its definition, the model's own distribution, and prompts longer than the segment."""

from typing import Any

import pytest
import torch
from torch import Tensor

from agent.core import CompressiveTransformerConfig, make_core
from sequences.model import SequenceModel
from sequences.sampling import _draw, nucleus, one_thread, sample

PROMPTS = torch.randint(5, (2, 41), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def model() -> SequenceModel:
    """Two layers with segments, memory and compressed memory of four, which prompts of 41 tokens fill."""
    torch.manual_seed(0)
    return SequenceModel(make_core(CompressiveTransformerConfig(8, 2, 2, 8, 4, 4, 4, 2)), 5).double().eval()


def draw(*arguments: Any, **options: Any) -> Tensor:
    """All drawn tokens, [rows, steps]."""
    return torch.stack(list(sample(*arguments, **options)), dim=1)


@pytest.mark.parametrize(("top_p", "kept"), [(0.0, [1]), (0.5, [1, 3]), (0.75, [1, 3, 0]), (0.98, [1, 3, 0, 2])])
def test_the_nucleus_is_that_of_its_definition(top_p: float, kept: list[int]) -> None:
    """Probabilities 0.5, 0.2, 0.15, 0.14, 0.01 in order of 1, 3, 0, 2, 4: before them are 0, 0.5, 0.7, 0.85, 0.99."""
    probabilities = torch.tensor([0.15, 0.5, 0.14, 0.2, 0.01], dtype=torch.float64)
    logits = probabilities.log().repeat(2, 1)
    for found in nucleus(logits, top_p):
        assert set(torch.isfinite(found).nonzero().flatten().tolist()) == set(kept)
        assert torch.equal(found[kept], logits[0, kept])


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_draws_are_those_of_one_call_over_everything(model: SequenceModel, temperature: float) -> None:
    """Prompts of ten segments, in chunks; the memory holds prompts and drawn tokens."""
    drawn = draw(model, PROMPTS, 12, temperature, seed=5, chunk=7)
    whole = torch.cat([PROMPTS, drawn], dim=1)
    with torch.no_grad():
        output = model(whole, torch.zeros_like(whole, dtype=torch.bool), model.initial_state(2))
    generator = torch.Generator().manual_seed(5)
    for step in range(12):
        found = output.log_probs[:, PROMPTS.shape[1] - 1 + step]
        expected = found.argmax(dim=-1)
        if temperature:
            expected = torch.multinomial((found / temperature).softmax(dim=-1), 1, generator=generator)[:, 0]
        assert torch.equal(drawn[:, step], expected)


@pytest.mark.parametrize("chunk", [7, 512])
def test_memory_is_reset_where_documents_begin(model: SequenceModel, chunk: int) -> None:
    """In the prompts and in what is drawn, as in training with `reset_at_starts`."""
    temperature = 0.3
    with torch.no_grad():
        for parameter in model.core.parameters():
            parameter.mul_(4)  # what a new model predicts hardly depends on its memory
    drawn = draw(model, PROMPTS, 40, temperature, seed=5, chunk=chunk, document=3)
    whole = torch.cat([PROMPTS, drawn], dim=1)
    assert (PROMPTS == 3).any()
    assert (drawn == 3).any()
    with torch.no_grad():
        output = model(whole, whole == 3, model.initial_state(2))
    generator = torch.Generator().manual_seed(5)
    for step in range(40):
        found = output.log_probs[:, PROMPTS.shape[1] - 1 + step] / temperature
        expected = torch.multinomial(found.softmax(dim=-1), 1, generator=generator)[:, 0]
        assert torch.equal(drawn[:, step], expected)


def test_draws_depend_on_the_seed(model: SequenceModel) -> None:
    first = draw(model, PROMPTS, 30, 2.0, 0.98, seed=0)
    again = draw(model, PROMPTS, 30, 2.0, 0.98, seed=0)
    other = draw(model, PROMPTS, 30, 2.0, 0.98, seed=1)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("temperature", [1e-4, 5e-324])
def test_draws_at_tiny_temperatures_are_the_most_probable_tokens(model: SequenceModel, temperature: float) -> None:
    """5e-324 is the smallest number above 0."""
    prompts = PROMPTS[:, :1]
    assert torch.equal(draw(model, prompts, 5, temperature), draw(model, prompts, 5, 0))


@pytest.mark.parametrize(("temperature", "drawn"), [(1.0, {1, 3}), (0.5, {1}), (2.0, {0, 1, 3})])
def test_tokens_come_from_the_nucleus_at_the_temperature(temperature: float, drawn: set[int]) -> None:
    """Of 0.6. At temperature 1 token 1 has 0.5 and token 3 0.2; at 0.5 token 1 has 0.75; at 2 they have 0.35, 0.22."""
    probabilities = torch.tensor([0.15, 0.5, 0.14, 0.2, 0.01], dtype=torch.float64)
    log_probs = probabilities.log().repeat(1000, 1)
    found = _draw(log_probs, temperature, 0.6, torch.Generator().manual_seed(0))
    assert set(found.tolist()) == drawn


def test_samples_are_drawn_without_dropout() -> None:
    """Also from a model that is in training."""
    torch.manual_seed(0)
    core = make_core(CompressiveTransformerConfig(8, 2, 2, 8, 4, 4, 4, 2))
    model = SequenceModel(core, 5, dropout=0.9).double().train()
    first = draw(model, PROMPTS, 20, 0)
    assert torch.equal(first, draw(model.eval(), PROMPTS, 20, 0))


def test_one_thread_is_for_the_block_alone() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
