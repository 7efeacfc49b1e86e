"""Drawing: the nucleus by its definition, the model's own distribution, and prompts that outgrow the segment."""

import pytest
import torch
from text.sampling import nucleus, sample
from torch import Tensor

from agent.core import CompressiveTransformerConfig, make_core
from agent.language_model import SequenceModel

VOCABULARY = 5


def log_probs(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).log()


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [
        (0.0, [1]),
        (0.3, [1]),
        (0.5, [1, 3]),
        (0.69, [1, 3]),
        (0.75, [1, 3, 0]),
        (0.98, [1, 3, 0, 2]),
        (1.0, [1, 3, 0, 2, 4]),
    ],
)
def test_nucleus_keeps_tokens_whose_exclusive_cumulative_probability_is_within(top_p, kept) -> None:
    """Probabilities 0.5, 0.2, 0.15, 0.14, 0.01 in order of 1, 3, 0, 2, 4: before them are 0, 0.5, 0.7, 0.85, 0.99."""
    logits = log_probs(0.15, 0.5, 0.14, 0.2, 0.01)
    found = nucleus(logits, top_p)
    assert set(torch.isfinite(found).nonzero().flatten().tolist()) == set(kept)
    assert torch.equal(found[kept], logits[kept])


def make_model() -> SequenceModel:
    torch.manual_seed(0)
    config = CompressiveTransformerConfig(8, 2, 2, 8, 4, 4, 4, 2)
    return SequenceModel(make_core(config), VOCABULARY).double().eval()


PROMPT = torch.randint(VOCABULARY, (41,), generator=torch.Generator().manual_seed(1))


def test_greedy_is_the_most_probable_given_all_that_came_before() -> None:
    """A prompt ten times the segment: memory, and what is drawn, are those of one call over everything."""
    model = make_model()
    drawn = list(sample(model, PROMPT, 12, temperature=0, chunk=7))
    whole = torch.cat([PROMPT, torch.tensor(drawn)])[None]
    output = model(whole, torch.zeros_like(whole, dtype=torch.bool), model.initial_state(1))
    assert output.log_probs[0, len(PROMPT) - 1 : -1].argmax(dim=-1).tolist() == drawn


def test_frequencies_are_the_models_probabilities() -> None:
    model = make_model()
    prompt = PROMPT[:2]
    tokens = prompt[None]
    with torch.no_grad():
        expected = (
            model(tokens, torch.zeros_like(tokens, dtype=torch.bool), model.initial_state(1)).log_probs[0, -1].exp()
        )
    drawn = torch.tensor([next(sample(model, prompt, 1, top_p=1, seed=seed)) for seed in range(200)])
    found = torch.bincount(drawn, minlength=VOCABULARY) / len(drawn)
    assert (found - expected).abs().max() < 4 * (0.25 / len(drawn)) ** 0.5


def test_seeds_and_temperature() -> None:
    model = make_model()
    first, again, other = (list(sample(model, PROMPT, 30, 2.0, seed=seed)) for seed in (0, 0, 1))
    assert first == again != other
    for temperature in (1e-4, 5e-324):
        assert list(sample(model, PROMPT[:1], 5, temperature)) == list(sample(model, PROMPT[:1], 5, 0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt": PROMPT[:0]}, r"prompt: expected \[N >= 1\], got \[0\]"),
        ({"temperature": -1.0}, "temperature: expected 0 or more, got -1.0"),
        ({"temperature": float("nan")}, "temperature: expected 0 or more, got nan"),
        ({"temperature": float("inf")}, "temperature: expected 0 or more, got inf"),
        ({"top_p": 0.0}, "top_p: expected 0 < top_p <= 1, got 0.0"),
        ({"top_p": float("nan")}, "top_p: expected 0 < top_p <= 1, got nan"),
    ],
)
def test_impossible_arguments_are_refused(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        sample(make_model(), **{"prompt": PROMPT, "length": 1, **arguments})
