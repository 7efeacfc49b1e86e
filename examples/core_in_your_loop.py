"""The Compressive Transformer as a memory in a training loop of your own.

The task: a number is shown once and must be repeated `DELAY` steps later, while other numbers are seen. Segment and
memory reach back 23 steps at most. So the answer has to be read from compressed memory, which reaches 16 steps farther.

    python examples/core_in_your_loop.py            20 seconds on one CPU core
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agent.core import CompressiveTransformer, CompressiveTransformerConfig, detach_state

DELAY = 30
SYMBOLS = 4
ROWS = 32
STEPS = 32


def batch(generator: torch.Generator, last: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Symbols [B, T], the symbols `DELAY` steps before them [B, T], and the last `DELAY` ones for the next batch."""
    symbols = torch.randint(SYMBOLS, (ROWS, STEPS), generator=generator)
    stream = torch.cat([last, symbols], dim=1)
    targets = stream[:, :STEPS]
    return symbols, targets, stream[:, STEPS:]


def train(updates: int = 300, seed: int = 0, compressed_size: int = 8) -> float:
    """Trains, and returns the share of correct answers in the last batches; chance is 0.25.

    With `compressed_size=0` the core is a Transformer-XL, which forgets the number too early and stays at chance.
    """
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    core = CompressiveTransformer(
        CompressiveTransformerConfig(
            model_size=32,
            num_layers=1,
            num_heads=4,
            mlp_size=64,
            norm="pre",
            segment_size=8,
            memory_size=16,
            compressed_size=compressed_size,
            compression_rate=2,
            # Keeps all of what is compressed. The default keeps what attention reads when slots are compressed. Here
            # that is nothing: a number is read when it is asked for. So learning would take longer.
            compression_loss="autoencoding",
            # The task asks for the number at a fixed distance in time, so slots say how old they are in steps.
            compressed_position="time",
        )
    )
    network = nn.ModuleDict({"embed": nn.Embedding(SYMBOLS, 32), "core": core, "answer": nn.Linear(32, SYMBOLS)})
    optimizer = torch.optim.Adam(network.parameters(), lr=5e-3)
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
        for own in output.losses.values():
            loss = loss + own.value
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        is_correct = logits.argmax(dim=-1) == targets
        correct.append(is_correct.float().mean().item())
        if number % 100 == 99:
            share = sum(correct[-20:]) / 20
            print(f"update {number + 1}  loss {loss.item():.3f}  correct {share:.2f}", flush=True)
    return sum(correct[-20:]) / 20


def main() -> None:
    """Trains in one thread."""
    # One thread: several wait for each other wherever another program uses a core, and then take many times as long.
    torch.set_num_threads(1)
    train()


if __name__ == "__main__":
    main()
