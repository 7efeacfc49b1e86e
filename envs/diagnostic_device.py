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
        num_envs, symbols = task.num_envs, task.symbols
        state = {name: torch.zeros(num_envs, dtype=torch.int64, device=device) for name in ("rng", *task.variables)}
        super().__init__(num_envs, symbols, torch.zeros(num_envs, symbols + 1, device=device), state)
        self.delay, self.worth, self._symbols = task.delay, task.reward, torch.arange(symbols, device=device)

    def seed(self, seed: int) -> None:
        rows = [int(stream(seed + row).view("int64")) for row in range(self.num_envs)]
        self.state["rng"].copy_(torch.tensor(rows))

    def launch(self) -> None:
        rng, symbol, time = self.state.values()
        acts = ~self.begin & (self.action >= 0)
        asked = acts & (time == self.delay)
        self.reward.copy_(self.worth * (asked & (self.action == symbol)))
        self.terminated.copy_(torch.where(self.begin | acts, asked, self.terminated))
        time += acts
        rng += self.begin * _GOLDEN
        drawn = (_shifted(_mixed(rng), 32) * len(self._symbols)) >> 32
        symbol.copy_(torch.where(self.begin, drawn, symbol))
        time *= ~self.begin
        self.observation[:, :-1] = (self._symbols == symbol[:, None]) & (time == 0)[:, None]
        self.observation[:, -1] = time == self.delay


#: The constants of `envs.batched` as int64, in which sums and products have the same bits as in uint64.
_GOLDEN, _MIX_1, _MIX_2 = (bits - 2**64 for bits in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def _shifted(z: Tensor, bits: int) -> Tensor:
    """z >> bits as of unsigned numbers."""
    return (z >> bits) & (2 ** (64 - bits) - 1)


def _mixed(z: Tensor) -> Tensor:
    """`envs.batched.mixed`."""
    z = (z ^ _shifted(z, 30)) * _MIX_1
    z = (z ^ _shifted(z, 27)) * _MIX_2
    return z ^ _shifted(z, 31)
