"""What every recurrent core promises, and the checks that all of them share.

A core maps a sequence and a state to features and the next state. The promises (one path for acting and learning,
rows and episodes kept apart, causality) are listed in `docs/core.md` and tested by one suite for every core.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from agent.core.state import State, leaves


class CoreOutput(NamedTuple):
    """What a core returns.

    features: [B, T, D].
    state: the state after the last step.
    losses: auxiliary losses, each a scalar to be added to the task's loss with weight 1 (empty without gradients).
    attention: one tensor a layer, [B, H, T, S] weights over the slots [compressed | memory | segment], or None unless
        it was asked for (and always None for cores without attention).
    """

    features: Tensor
    state: State
    losses: dict[str, Tensor]
    attention: tuple[Tensor, ...] | None = None


def _alone(tensor: Tensor) -> Tensor:
    return tensor


class Core(nn.Module):
    """The contract; a core defines `initial_state` and `forward`, and overrides the rest where it applies.

    Attributes:
        total: sums a tensor over the processes that share a batch; see `share_batch`.
    """

    total: Callable[[Tensor], Tensor] = staticmethod(_alone)

    def initial_state(self, batch_size: int) -> State:
        """The state before anything was seen: fixed shapes, every tensor batch first."""
        raise NotImplementedError

    def forward(self, inputs: Tensor, reset: Tensor, state: State, return_attention: bool = False) -> CoreOutput:
        """Consumes T steps of B rows.

        Args:
            inputs: [B, T, D], D = model_size, in the dtype of the parameters (under autocast, float32).
            reset: [B, T] bool; where it is true, all before that step is forgotten first.
            state: of B rows, from `initial_state` or an earlier call. It is not changed, but for what lies beyond its
                phase if it has a cache.
            return_attention: whether the output has the attention weights, of a core that has attention.

        Raises:
            ValueError: if shapes or dtypes are others, or the state is of another kind of core or another batch.
        """
        raise NotImplementedError

    def with_cache(self, state: State) -> State:
        """The state with all that can be computed once while weights do not change; calls keep it up to date."""
        return state

    def without_cache(self, state: State) -> State:
        """The state as learners and files want it."""
        return state

    def compression_parameters(self) -> list[nn.Parameter]:
        """The parameters that only the compression loss trains."""
        return []

    def share_batch(self, total: Callable[[Tensor], Tensor]) -> None:
        """Tells the core that other processes have the other rows of its batches.

        From then on losses are this process's part: over the processes they add up to the losses of the whole batch.

        Args:
            total: sums a tensor over the processes, without gradient. It is called within `forward` where gradients are
                enabled, equally often in each process if calls have equally many steps and one phase.
        """
        self.total = total


def check_call(inputs: Tensor, reset: Tensor, state: State, model_size: int, kind: type = tuple) -> None:
    """Checks the arguments of a call; `kind` is the type of the core's states.

    Raises:
        ValueError: names the argument, the expected and the actual shape, dtype or device.
    """
    if inputs.ndim != 3 or inputs.shape[2] != model_size or inputs.shape[1] == 0:
        raise ValueError(f"inputs: expected [B, T >= 1, {model_size}], got {list(inputs.shape)}")
    if not inputs.is_floating_point():
        raise ValueError(f"inputs: expected a floating-point tensor, got {inputs.dtype}")
    if reset.shape != inputs.shape[:2]:
        raise ValueError(f"reset: expected {list(inputs.shape[:2])}, got {list(reset.shape)}")
    if reset.dtype != torch.bool:
        raise ValueError(f"reset: expected torch.bool, got {reset.dtype}")
    if reset.device != inputs.device:
        raise ValueError(f"reset: expected device {inputs.device}, got {reset.device}")
    if not isinstance(state, kind):
        raise ValueError(f"state: expected {kind.__name__}, got {type(state).__name__}")
    for leaf in leaves(state):
        if leaf.shape[0] != inputs.shape[0]:
            raise ValueError(f"state: expected batch size {inputs.shape[0]}, got {leaf.shape[0]}")
        if leaf.device != inputs.device:
            raise ValueError(f"state: expected device {inputs.device}, got {leaf.device}")
        other = leaf.is_floating_point() and leaf.dtype != inputs.dtype
        if other and not torch.is_autocast_enabled(inputs.device.type):
            raise ValueError(f"state: expected {inputs.dtype} as inputs, got {leaf.dtype}")


def finite(tensor: Tensor) -> Tensor:
    """The tensor with 0 where it is not finite: what a core computes with.

    Masks and resets multiply by 0, be it as a softmax weight, and 0 x NaN is NaN. So inputs and the state that comes in
    go through this first; what a core makes of them is then finite, unless it overflows.
    """
    return tensor.nan_to_num(0.0, 0.0, 0.0)


def mark_broken(features: Tensor, inputs: Tensor) -> Tensor:
    """Features [B, T, D] of `finite(inputs)`, with NaN where the inputs [B, T, D] were not finite.

    So it shows, at its own step, although nothing else depends on it: no other feature, no state, no loss and no
    gradient, where the step's features are not used.
    """
    return torch.add(features, inputs.detach(), alpha=0)  # 0 x NaN is NaN
