"""The rooms level as an environment on a device: stepped and drawn by a kernel on a GPU, as in `env.py` on a CPU."""

import functools
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from envs.batched import stream
from envs.device import DeviceEnv
from envs.rooms import level, render
from envs.rooms.config import RoomsConfig, resolve
from envs.rooms.env import _run


class DeviceRooms(DeviceEnv):
    """N environments of one config: those of `RoomsVectorEnv` with the same seed and actions.

    On a CPU and in numba's simulator of a GPU they are equal bit by bit. A GPU rounds differently (fused multiply-add,
    its own sines), which changes some colours by 1 and, over a long episode, the way of a player.

    Args:
        config: a `RoomsConfig` or the name of a variant.
        device: a CPU or a GPU. The kernel for a GPU is compiled here, in about 15 s.

    Raises:
        ValueError: for a config with `own_view`.
        ImportError: if the extra `gpu` is needed and not installed.
    """

    def __init__(self, num_envs: int, config: RoomsConfig | str = "full", device: torch.device | str = "cpu") -> None:
        self.config = config = resolve(config)
        if config.own_view:
            raise ValueError("RoomsConfig.own_view: expected False on a device, got True")
        host = level.allocate(num_envs, config.examples)._asdict()
        state = {name: torch.from_numpy(own).to(device) for name, own in host.items()}
        super().__init__(
            num_envs,
            len(config.action_names),
            torch.zeros(num_envs, *config.image_shape, dtype=torch.uint8, device=device),
            state,
            {"correct_choices": state["correct"], "wrong_choices": state["wrong"]},
            config.action_repeat,
            state["done"],
        )
        self._run: Any = _run
        self._array: Any = Tensor.numpy
        if self.device.type == "cuda" or numba.config.ENABLE_CUDASIM:  # type: ignore[attr-defined]
            from envs.rooms import kernels  # needs numba-cuda

            self._run, self._array = functools.partial(kernels.run, self.device), kernels.array
        tuples: Any = level.build(config), render.build(config), level.State(**state)  # type: ignore[arg-type]
        views = torch.zeros(num_envs if config.shrink > 1 else 1, *config.view_shape, dtype=torch.uint8, device=device)
        self._arguments = self._arrays((*tuples, self.begin, self.action, self.reward, views, self.observation))
        self.launch()  # compiles

    def _arrays(self, value: Any) -> Any:
        """Tensors, and arrays once they are on the device, as compiled code takes them, in whatever tuples they are."""
        if isinstance(value, np.ndarray):
            value = torch.from_numpy(value).to(self.device)
        if isinstance(value, Tensor):
            return self._array(value)
        if isinstance(value, tuple):
            values = map(self._arrays, value)
            return type(value)(*values) if hasattr(value, "_fields") else tuple(values)
        return value

    def seed(self, seed: int) -> None:
        rows = np.array([stream((seed, row)) for row in range(self.num_envs)])
        self.state["rng"].copy_(torch.from_numpy(rows))

    def launch(self) -> None:
        self._run(*self._arguments)
