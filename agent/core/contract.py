"""The contract of recurrent cores, and the checks that all of them share. docs/core.md lists the promises."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from .state import State, leaves


class Mean(NamedTuple):
    """An auxiliary loss as sums and counts, which learners that share a batch reduce over all rows.

    total: [N] sums over the rows of this call: one for each compressed segment or each centroid, or a single one.
    count: [N] number of terms in each sum.
    """

    total: Tensor
    count: Tensor  # type: ignore[assignment]  # a tuple has a method of this name

    @property
    def value(self) -> Tensor:
        """The scalar loss over the rows of this call: the mean of the N means. A mean without terms is 0."""
        terms = self.count.clamp(min=1)
        means = self.total / terms
        return means.mean()


class CoreOutput(NamedTuple):
    """The output of a core.

    features: [B, T, D].
    state: the state after the last step.
    losses: auxiliary losses, to be added to the task's loss with weight 1; empty if gradients are disabled.
    attention: one tensor for each layer, [B, H, T, S] weights over the slots [compressed or routed | memory | segment];
        None unless requested, and for cores without attention.
    """

    features: Tensor
    state: State
    losses: dict[str, Mean]
    attention: tuple[Tensor, ...] | None = None


class Core(nn.Module):
    """The contract. A core defines `initial_state` and `forward`, and overrides the rest where it applies."""

    def initial_state(self, batch_size: int) -> State:
        """The state before the first step: fixed shapes, every tensor batch first."""
        raise NotImplementedError

    def forward(self, inputs: Tensor, reset: Tensor, state: State, return_attention: bool = False) -> CoreOutput:
        """Consumes T steps of B rows.

        Args:
            inputs: [B, T, D], D = model_size, in the dtype of the parameters (under autocast, float32).
            reset: [B, T] bool, true where an episode starts: the row's state is forgotten before that step.
            state: of B rows, from `initial_state` or an earlier call. The call does not change it, except for slots
                of its cache that are still undefined.
            return_attention: whether the output includes the attention weights.

        Raises:
            ValueError: see `check_call`.
        """
        raise NotImplementedError

    def with_cache(self, state: State) -> State:
        """Adds what can be computed once while weights do not change; later calls keep it up to date."""
        return state

    def without_cache(self, state: State) -> State:
        """Removes the cache, for learners and files."""
        return state

    def compression_parameters(self) -> list[nn.Parameter]:
        """The parameters that only the core's own losses train, such as that of compression."""
        return []


def check_call(inputs: Tensor, reset: Tensor, state: State, model_size: int, kind: type = tuple) -> None:
    """Checks the arguments of a call; `kind` is the type of the core's states.

    Raises:
        ValueError: names the argument, the expected and the actual shape, dtype or device.
    """
    # The inputs.
    has_steps = inputs.ndim == 3 and inputs.shape[1] > 0
    has_features = has_steps and inputs.shape[2] == model_size
    if not has_features or not inputs.is_floating_point():
        got = f"{inputs.dtype} {list(inputs.shape)}"
        raise ValueError(f"inputs: expected floats [B, T >= 1, {model_size}], got {got}")

    # The resets are those of the same rows and steps.
    device = inputs.device
    shape = inputs.shape[:2]
    same_steps = reset.shape == shape
    if not same_steps or reset.dtype != torch.bool or reset.device != device:
        got = f"{reset.dtype} {list(reset.shape)} on {reset.device}"
        raise ValueError(f"reset: expected torch.bool {list(shape)} on {device}, got {got}")

    # The state is that of this core and of the same rows.
    if not isinstance(state, kind):
        raise ValueError(f"state: expected {kind.__name__}, got {type(state).__name__}")
    batch_size = inputs.shape[0]
    for leaf in leaves(state):
        wrong_dtype = leaf.is_floating_point() and leaf.dtype != inputs.dtype
        if wrong_dtype and torch.is_autocast_enabled(device.type):
            wrong_dtype = False  # a cache may have another precision than the inputs
        if wrong_dtype or leaf.shape[0] != batch_size or leaf.device != device:
            got = f"{leaf.dtype} with batch size {len(leaf)} on {leaf.device}"
            expected = f"{inputs.dtype} with batch size {batch_size} on {device}, as the inputs"
            raise ValueError(f"state: expected {expected}, got {got}")


def finite(tensor: Tensor) -> Tensor:
    """Replaces values that are not finite by 0.

    Masks multiply by 0, and 0 x NaN is NaN: cores apply this to inputs and to the incoming state first.
    """
    return tensor.nan_to_num(0.0, 0.0, 0.0)


def mark_broken(features: Tensor, inputs: Tensor) -> Tensor:
    """Sets all features [B, T, D] of a step to NaN if one of its inputs [B, T, D] was not finite."""
    zeros = 0 * inputs.detach()  # 0 x NaN is NaN
    return features + zeros.sum(dim=-1, keepdim=True)


def full_precision(x: Tensor) -> torch.autocast:
    """No mixed precision; the meta device has none."""
    device = "cpu" if x.is_meta else x.device.type
    return torch.autocast(device, enabled=False)
