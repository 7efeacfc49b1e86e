"""The diagnostic task recall as operators of torch, on any device: an example of an environment without own kernels."""

import torch
from torch import Tensor

from envs.batched import stream
from envs.device import DeviceEnv
from envs.diagnostic import Recall


class DeviceRecall(DeviceEnv):
    """The environments of a `Recall` on a device, equal to it with the same seed and actions.

    Observations are [N, symbols + 1] float32. `state` holds the random streams "rng" as int64, "symbol" and "time".
    """

    def __init__(self, task: Recall, device: torch.device | str = "cpu") -> None:
        state = {}
        for name in ("rng", *task.variables):
            state[name] = torch.zeros(task.num_envs, dtype=torch.int64, device=device)
        observation = torch.zeros(task.num_envs, task.symbols + 1, device=device)
        super().__init__(task.num_envs, task.symbols, observation, state)
        self._seen = observation
        self.delay = task.delay
        self.worth = task.reward
        self._symbols = torch.arange(task.symbols, device=device)

    def seed(self, seed: int) -> None:
        rows = [int(stream(seed + row).view("int64")) for row in range(self.num_envs)]
        self.state["rng"].copy_(torch.tensor(rows))

    def launch(self) -> None:
        rng = self.state["rng"]
        symbol = self.state["symbol"]
        time = self.state["time"]

        # Rows that act: the answer to the question ends the episode.
        acts = ~self.begin & (self.action >= 0)
        asked = acts & (time == self.delay)
        right = asked & (self.action == symbol)
        self.reward.copy_(self.worth * right)
        self.terminated.copy_(torch.where(self.begin | acts, asked, self.terminated))
        time += acts

        # Rows that begin an episode: `envs.batched.draw`, whose stream moves in these alone.
        rng += self.begin * _GOLDEN
        bits = _shifted(_mixed(rng), 32)
        drawn = (bits * len(self._symbols)) >> 32
        symbol.copy_(torch.where(self.begin, drawn, symbol))
        time *= ~self.begin

        # The symbol is shown in the first step, the question after the delay.
        one_hot = self._symbols == symbol[:, None]
        at_start = (time == 0)[:, None]
        self._seen[:, :-1] = one_hot & at_start
        self._seen[:, -1] = time == self.delay


_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64
"""The constants of `envs.batched` as int64, in which sums and products have the same bits as in uint64."""


def _shifted(z: Tensor, bits: int) -> Tensor:
    """z >> bits as of unsigned numbers."""
    return (z >> bits) & (2 ** (64 - bits) - 1)


def _mixed(z: Tensor) -> Tensor:
    """`envs.batched.mixed`."""
    z = (z ^ _shifted(z, 30)) * _MIX_1
    z = (z ^ _shifted(z, 27)) * _MIX_2
    return z ^ _shifted(z, 31)
