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
        ImportError: if the extra `gpu` is needed and not installed.
    """

    def __init__(self, num_envs: int, config: RoomsConfig | str = "full", device: torch.device | str = "cpu") -> None:
        self.config = config = resolve(config)
        host = level.allocate(num_envs, config.examples)._asdict()
        state = {name: torch.from_numpy(own).to(device) for name, own in host.items()}
        image = torch.zeros(num_envs, *config.image_shape, dtype=torch.uint8, device=device)
        super().__init__(
            num_envs,
            len(config.action_names),
            (image, torch.zeros_like(image)) if config.own_view else image,
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

        # The arguments of `_run`: the step, and, with a second view, a drawing of the same state with the level's own
        # look, in which nothing happens.
        plan: Any = level.build(config)
        scene: Any = render.build(config)
        drawn = level.State(**state)  # type: ignore[arg-type]
        views = torch.zeros(num_envs if config.shrink > 1 else 1, *config.view_shape, dtype=torch.uint8, device=device)
        step = (plan, scene, drawn, self.begin, self.action, self.reward, views, image)
        self._launches = [self._arrays(step)]
        if config.own_view:
            look = torch.zeros_like(state["look"])
            nothing = [torch.zeros_like(self.begin), torch.full_like(self.action, -1), torch.zeros_like(self.reward)]
            own = (plan, scene, drawn._replace(look=look), *nothing, views, self.observation[1])  # type: ignore[arg-type]
            self._launches.append(self._arrays(own))
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
        for arguments in self._launches:
            self._run(*arguments)
