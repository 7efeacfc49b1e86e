"""The rooms level as an environment on a device: stepped and drawn by a kernel on a GPU, as in `env.py` on a CPU."""

import functools
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from envs.batched import stream
from envs.device import DeviceEnv
from envs.rooms import level
from envs.rooms.config import RoomsConfig, resolve
from envs.rooms.env import _run
from envs.rooms.scene import build_scene


class DeviceRooms(DeviceEnv):
    """N environments of one config: those of `RoomsVectorEnv` with the same seed and actions.

    On a CPU and in numba's simulator of a GPU they are equal bit by bit. A GPU rounds differently (fused multiply-add,
    its own sines), which changes some colors by 1 and, over a long episode, the way of a player.

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
        observation: Tensor | tuple[Tensor, ...] = image
        if config.own_view:
            observation = (image, torch.zeros_like(image))
        super().__init__(
            num_envs,
            len(config.action_names),
            observation,
            state,
            {"correct_choices": state["correct"], "wrong_choices": state["wrong"]},
            config.action_repeat,
            state["done"],
        )
        self._run: Any = _run
        self._array: Any = Tensor.numpy
        if self.device.type == "cuda" or numba.config.ENABLE_CUDASIM:  # type: ignore[attr-defined]
            from envs.rooms import kernels  # needs numba-cuda

            self._run = functools.partial(kernels.run, self.device)
            self._array = kernels.array

        # The arguments of `_run` in a step.
        plan: Any = level.build(config)
        scene: Any = build_scene(config)
        drawn: Any = level.State(**state)  # type: ignore[arg-type]
        num_views = num_envs if config.shrink > 1 else 1  # views that are not averaged are drawn as images
        views = torch.zeros(num_views, *config.view_shape, dtype=torch.uint8, device=device)
        step = (plan, scene, drawn, self.begin, self.action, self.reward, views, image)
        self._launches = [self._arrays(step)]

        # A second view is a drawing of the same state with the level's own look, in which nothing happens: no row
        # begins an episode or has an action, and the rewards are not used.
        if config.own_view:
            in_own_look = drawn._replace(look=torch.zeros_like(state["look"]))
            begins_nowhere = torch.zeros_like(self.begin)
            no_actions = torch.full_like(self.action, -1)
            no_rewards = torch.zeros_like(self.reward)
            own_image = self.observation[1]
            drawing = (plan, scene, in_own_look, begins_nowhere, no_actions, no_rewards, views, own_image)
            self._launches.append(self._arrays(drawing))
        self.launch()  # compiles

    def _arrays(self, value: Any) -> Any:
        """Tensors, and arrays once they are on the device, as compiled code takes them, in whatever tuples they are."""
        if isinstance(value, np.ndarray):
            value = torch.from_numpy(value).to(self.device)
        if isinstance(value, Tensor):
            return self._array(value)
        if isinstance(value, tuple):
            values = [self._arrays(part) for part in value]
            if hasattr(value, "_fields"):  # a named tuple
                return type(value)(*values)
            return tuple(values)
        return value

    def seed(self, seed: int) -> None:
        rows = np.array([stream((seed, row)) for row in range(self.num_envs)])
        self.state["rng"].copy_(torch.from_numpy(rows))

    def launch(self) -> None:
        for arguments in self._launches:
            self._run(*arguments)
