"""Draws tokens from a sequence model, one by one, after prompts of any length.

The memory reads the whole prompts; each drawn token is then one call with T = 1.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from sequences.model import SequenceModel


def nucleus(log_probs: Tensor, top_p: float) -> Tensor:
    """The log-probabilities [..., V] of the nucleus (Holtzman et al. 2019), -infinity elsewhere, not normalized.

    A token is kept if the more probable ones have at most the probability `top_p` together; so at least one is kept.
    """
    ordered, index = log_probs.sort(dim=-1, descending=True, stable=True)
    probability_before = ordered.exp().cumsum(dim=-1) - ordered.exp()
    kept = ordered.masked_fill(probability_before > top_p, -torch.inf)
    return torch.empty_like(log_probs).scatter(-1, index, kept)


@torch.no_grad()
def sample(
    model: SequenceModel,
    prompts: Tensor,
    length: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int = 0,
    chunk: int = 512,
    document: int | None = None,
) -> Iterator[Tensor]:
    """Yields the next tokens, [B] int64 on the CPU, as soon as they are drawn.

    Args:
        model: is put in evaluation mode.
        prompts: [B, P] int64, one row for each sequence, with at least one token.
        temperature: logits are divided by it; 0 takes the most probable token. The nucleus is taken after that.
        top_p: probability of the nucleus; 1 for all tokens (the paper's text samples have 0.98).
        chunk: tokens of the prompts in one call.
        document: the token at which documents begin and memory is reset; None never resets it.
    """
    model.eval()
    generator = torch.Generator().manual_seed(seed)
    state = model.with_cache(model.initial_state(len(prompts)))
    prompts = prompts.to(next(model.parameters()).device)

    # Memory reads all of the prompts but the last token.
    num_read = prompts.shape[1] - 1
    for begin in range(0, num_read, chunk):
        tokens = prompts[:, begin : min(begin + chunk, num_read)]
        # With targets (any) the model does not compute a large vocabulary's probabilities for each token.
        state = model(tokens, _resets(tokens, document), state, targets=tokens).state

    tokens = prompts[:, -1:]
    for _ in range(length):
        output = model(tokens, _resets(tokens, document), state)
        state = output.state
        log_probs = output.log_probs[:, 0].cpu().double()
        drawn = _draw(log_probs, temperature, top_p, generator)
        tokens = drawn[:, None].to(tokens.device)
        yield drawn


@contextmanager
def one_thread() -> Iterator[None]:
    """With one thread of torch.

    A step of one token has little for several threads to do, which wait for each other: where another program uses a
    core, a small model draws fifty times as slowly with two.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _resets(tokens: Tensor, document: int | None) -> Tensor:
    """True where a document begins; see `sample`."""
    if document is None:
        return torch.zeros_like(tokens, dtype=torch.bool)
    return tokens == document


def _draw(log_probs: Tensor, temperature: float, top_p: float, generator: torch.Generator) -> Tensor:
    """Draws one token [B] int64 of each row of log-probabilities [B, V]; see `sample`."""
    if temperature == 0:
        return log_probs.argmax(dim=-1)
    # The largest logit becomes 0, which no temperature makes infinite.
    below_largest = log_probs - log_probs.amax(dim=-1, keepdim=True)
    logits = (below_largest / temperature).log_softmax(dim=-1)
    kept = nucleus(logits, top_p) if top_p < 1 else logits
    return torch.multinomial(kept.softmax(dim=-1), 1, generator=generator)[:, 0]
