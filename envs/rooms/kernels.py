"""The level's step as a kernel for GPUs, compiled by numba-cuda from the functions of which the CPU's step consists.

Imported only where it is used. With NUMBA_ENABLE_CUDASIM=1, numba's simulator runs the kernel on a CPU's memory.
"""

import math
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from envs.rooms.env import act, average, draw
from envs.rooms.level import Level, State
from envs.rooms.scene import Scene

SIMULATED = bool(numba.config.ENABLE_CUDASIM)  # type: ignore[attr-defined]
WARP = 32
"""Threads that a GPU runs together."""
THREADS = 128
"""Threads of a block, where a view has as many columns."""

try:
    import numba_cuda  # noqa: F401 (it takes the place of numba's own `numba.cuda`, which is not maintained)
    from numba import cuda

    if not SIMULATED:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        for library in ("nvvm", "nvrtc"):  # the compiler; a RuntimeError without it
            load_nvidia_dynamic_lib(library)
except (ImportError, RuntimeError) as error:
    raise ImportError("the rooms level on a GPU needs the extra `gpu`: pip install -e '.[gpu]'") from error


@cuda.jit
def step(
    plan: Level,
    scene: Scene,
    state: State,
    begin: NDArray[np.bool_],
    actions: NDArray[np.int64],
    rewards: NDArray[np.float64],
    views: NDArray[np.uint8],
    images: NDArray[np.uint8],
) -> None:
    """`run` of `env.py` for one environment a block, whose threads share the columns of the view."""
    i = cuda.blockIdx.x
    thread = cuda.threadIdx.x
    if thread == 0:
        act(plan, state, i, begin, actions, rewards)  # type: ignore[arg-type]
    cuda.syncthreads()  # type: ignore[call-arg]
    averaged = views.shape[1] > images.shape[1]
    view = views[i] if averaged else images[i]
    draw(scene, plan, state, i, thread, cuda.blockDim.x, view)
    if averaged:
        cuda.syncthreads()
        average(view, thread, cuda.blockDim.x, images[i])


def array(tensor: Tensor) -> Any:
    """A tensor's memory in the form in which kernels take it."""
    if SIMULATED:
        return tensor.numpy()
    cuda.select_device(tensor.device.index)
    return cuda.as_cuda_array(tensor)


def run(device: torch.device, *arguments: Any) -> None:
    """`step` with its arguments, in order with torch's operations on the device's present stream."""
    *_, views, images = arguments
    warps = math.ceil(views.shape[2] / WARP)
    threads = min(WARP * warps, THREADS)
    stream = 0 if SIMULATED else cuda.external_stream(torch.cuda.current_stream(device).cuda_stream)
    step[images.shape[0], threads, stream](*arguments)
