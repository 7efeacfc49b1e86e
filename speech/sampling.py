"""Waveforms drawn from a model sample by sample, after a prompt of real sound.

Each sample is one call with T = 1, whatever the core: what it needs of the past is in its state.
"""

from collections.abc import Callable

import numpy as np
import torch

from agent.language_model import SequenceModel


def generate(
    model: SequenceModel,
    prompts: np.ndarray,
    samples: int,
    temperature: float = 1.0,
    seed: int = 0,
    show: Callable[[int, int], None] = lambda done, total: None,
) -> np.ndarray:
    """Tokens [B, samples] that go on where prompts end.

    Args:
        model: gives the distribution of each next token.
        prompts: [B, P >= 1] tokens, one row for each waveform.
        samples: to draw for each.
        temperature: the logits' divisor; below 1 the likelier levels get likelier still.
        seed: of the draws.
        show: is told now and then how many samples of how many are drawn.

    Raises:
        ValueError: if an argument is impossible.
    """
    if prompts.ndim != 2 or not prompts.size:
        raise ValueError(f"prompts: expected [B >= 1, P >= 1], got {list(prompts.shape)}")
    if samples < 1:
        raise ValueError(f"samples: expected 1 or more, got {samples}")
    if not temperature > 0:
        raise ValueError(f"temperature: expected a positive number, got {temperature}")
    device = next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)
    was_training = model.training
    model.eval()
    drawn = []
    try:
        with torch.no_grad():
            tokens = torch.from_numpy(prompts.astype(np.int64)).to(device)
            state = model.core.with_cache(model.initial_state(len(prompts)))
            for done in range(samples):
                output = model(tokens, torch.zeros_like(tokens, dtype=torch.bool), state)
                state = output.state
                probabilities = (output.log_probs[:, -1] / temperature).softmax(dim=-1)
                tokens = torch.multinomial(probabilities, 1, generator=generator)
                drawn.append(tokens)
                if done % 100 == 0:
                    show(done, samples)
    finally:
        model.train(was_training)
    return torch.cat(drawn, dim=1).cpu().numpy().astype(np.uint8)
