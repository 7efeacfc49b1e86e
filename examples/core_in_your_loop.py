"""The Compressive Transformer as a memory in a training loop of your own.

The task: a number is shown once and must be repeated `DELAY` steps later, while other numbers are seen.

    python examples/core_in_your_loop.py
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agent.core import CompressiveTransformer, CompressiveTransformerConfig, detach_state

DELAY, SYMBOLS, ROWS, STEPS = 12, 4, 32, 32


def batch(generator: torch.Generator, last: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Symbols [B, T], the symbols `DELAY` steps before them [B, T], and the last `DELAY` ones for the next batch."""
    symbols = torch.randint(SYMBOLS, (ROWS, STEPS), generator=generator)
    stream = torch.cat([last, symbols], dim=1)
    return symbols, stream[:, :STEPS], stream[:, STEPS:]


def train(updates: int = 400, seed: int = 0) -> float:
    """Trains, and returns the share of correct answers in the last batches; chance is 0.25."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    core = CompressiveTransformer(
        CompressiveTransformerConfig(
            model_size=32, num_layers=1, num_heads=2, mlp_size=64, segment_size=8, memory_size=16, compressed_size=8,
            compression_rate=2, norm="pre",
        )
    )  # fmt: skip
    network = nn.ModuleDict({"embed": nn.Embedding(SYMBOLS, 32), "core": core, "answer": nn.Linear(32, SYMBOLS)})
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    state = core.initial_state(ROWS)  # what is remembered of each row; it carries over from one batch to the next
    last = torch.zeros(ROWS, DELAY, dtype=torch.int64)
    correct = []
    for number in range(updates):
        symbols, targets, last = batch(generator, last)
        reset = torch.zeros(ROWS, STEPS, dtype=torch.bool)  # true where an episode starts
        output = core(network["embed"](symbols), reset, detach_state(state))
        state = output.state
        logits = network["answer"](output.features)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        # The core's own losses train the compression, and nothing else.
        loss = loss + torch.stack([each.value for each in output.losses.values()]).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        correct.append((logits.argmax(dim=-1) == targets).float().mean().item())
        if number % 100 == 99:
            print(f"update {number + 1}  loss {loss.item():.3f}  correct {sum(correct[-20:]) / 20:.2f}", flush=True)
    return sum(correct[-20:]) / 20


if __name__ == "__main__":
    train()
