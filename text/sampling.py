"""Drawing text from a language model, token by token, after a prompt of any length.

Memory takes in the whole prompt, segment by segment; drawing is then the same call with one token.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from agent.language_model import SequenceModel


def nucleus(log_probs: Tensor, top_p: float) -> Tensor:
    """The log-probabilities [V] of the nucleus (Holtzman et al. 2019), -infinity elsewhere, not normalised.

    A token is kept if those that are more probable have no more than `top_p` in all: so at least one is.
    """
    ordered, index = log_probs.sort(descending=True, stable=True)
    before = ordered.exp().cumsum(dim=0) - ordered.exp()
    kept = torch.full_like(log_probs, -torch.inf)
    inside = index[before <= top_p]
    kept[inside] = log_probs[inside]
    return kept


def sample(
    model: SequenceModel,
    prompt: Tensor,
    length: int,
    temperature: float = 1.0,
    top_p: float = 0.98,
    seed: int = 0,
    chunk: int = 512,
) -> Iterator[int]:
    """Yields tokens one by one, each as soon as it is drawn.

    Args:
        model: not changed, but put in evaluation mode.
        prompt: [N >= 1] int64, beginning with the tokenizer's separator if it is the beginning of a document.
        length: tokens to draw.
        temperature: finite; logits are divided by it; 0 takes the most probable token. The nucleus is taken after that.
        top_p: probability of the nucleus; 1 for all tokens (the paper's samples have 0.98).
        seed: of the draws.
        chunk: tokens of the prompt in one call.

    Raises:
        ValueError: if an argument is impossible.
    """
    if prompt.ndim != 1 or not len(prompt):
        raise ValueError(f"prompt: expected [N >= 1], got {list(prompt.shape)}")
    if not 0 <= temperature < math.inf:
        raise ValueError(f"temperature: expected 0 or more, got {temperature}")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p: expected 0 < top_p <= 1, got {top_p}")
    return _sample(model, prompt, length, temperature, top_p, seed, chunk)


@torch.no_grad()
def _sample(
    model: SequenceModel, prompt: Tensor, length: int, temperature: float, top_p: float, seed: int, chunk: int
) -> Iterator[int]:
    model.eval()
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(seed)
    state = model.core.with_cache(model.initial_state(1))
    read = prompt.to(device)[None]
    for begin in range(0, len(prompt) - 1, chunk):
        tokens = read[:, begin : min(begin + chunk, len(prompt) - 1)]
        # With targets, whatever they are, nothing is computed for each token of a large vocabulary.
        state = model(tokens, torch.zeros_like(tokens, dtype=torch.bool), state, tokens).state
    token = read[:, -1:]
    for _ in range(length):
        output = model(token, torch.zeros_like(token, dtype=torch.bool), state)
        state = output.state
        drawn = _draw(output.log_probs[0, 0].cpu().double(), temperature, top_p, generator)
        token = torch.full_like(token, drawn)
        yield drawn


def _draw(log_probs: Tensor, temperature: float, top_p: float, generator: torch.Generator) -> int:
    if temperature == 0:
        return int(log_probs.argmax())
    # The most probable is 0, which no temperature makes infinite.
    kept = nucleus(((log_probs - log_probs.max()) / temperature).log_softmax(dim=0), top_p)
    return int(torch.multinomial(kept.softmax(dim=0), 1, generator=generator))
