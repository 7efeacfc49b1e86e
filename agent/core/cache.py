"""The cache of keys and values of one layer, valid while the weights do not change.

Axes: B batch, H heads, S slots, K features of a head.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(eq=False)
class KVCache:
    """Keys and values of the slots [older | memory | segment] of one layer, and the encodings of distances.

    States that follow each other share the tensors. The newest state writes its next steps into them without a copy:
    the earlier states end before these steps and do not read them. A state that is not the newest copies first.

    Attributes:
        keys, values: [B, H, S, K]; slots after the last step of the state are undefined.
        near: [H, K, N], projected encodings of the distances N - 1, ..., 0, shared by the batch. N = S, but for several
            rings of routed slots: these share positions, so N counts one ring.
        far: [H, K, M], projected encodings of the distances 0, ..., M - 1 for compressed slots, shared by the batch;
            None if a compressed slot counts as one position.
        far_index: [n_s, n_cm] int64, distances from each step of a segment to the compressed slots, if there is `far`.
        newest: whether this state may write into the tensors in place, those of its segment's inputs included: no other
            state has written into them.
    """

    keys: Tensor
    values: Tensor
    near: Tensor
    far: Tensor | None
    far_index: Tensor | None
    newest: bool = False

    @property
    def shared_positions(self) -> int:
        """Number of slots that have the position of another slot: those of all rings but one."""
        return self.keys.shape[2] - self.near.shape[-1]

    def map(self, function: Callable[..., Tensor], *others: "KVCache") -> "KVCache":
        """Applies a function to the tensors that have a batch axis, of this cache and of others."""
        caches = (self, *others)
        keys = function(*(cache.keys for cache in caches))
        values = function(*(cache.values for cache in caches))
        return replace(self, keys=keys, values=values, newest=False)

    def map_shared(self, function: Callable[[Tensor], Tensor]) -> "KVCache":
        """Applies a function to the tensors that the batch shares."""
        far = None if self.far is None else function(self.far)
        far_index = None if self.far_index is None else function(self.far_index)
        return replace(self, near=function(self.near), far=far, far_index=far_index)

    def write(self, slots: Tensor, new: Tensor, begin: int) -> Tensor:
        """Returns `slots` [..., S, D] with `new` [..., T, D] from `begin` on: in place if this is the newest state."""
        end = begin + new.shape[-2]
        if self.newest and _in_place():
            slots[..., begin:end, :] = new
            return slots

        # Another state may have written here: a copy.
        before = slots[..., :begin, :]
        after = slots[..., end:, :]
        return torch.cat([before, new, after], dim=-2)

    def append(self, keys: Tensor, values: Tensor, begin: int) -> "KVCache":
        """Returns the cache with keys and values [B, H, T, K] of new steps from slot `begin` on."""
        keys = self.write(self.keys, keys, begin)
        values = self.write(self.values, values, begin)
        # From now on, the new state is the one that may write in place.
        if _in_place():
            self.newest = False
        return replace(self, keys=keys, values=values, newest=_in_place())

    def replaced(self, keys: Tensor, values: Tensor) -> "KVCache":
        """Returns the cache with other keys and values [B, H, S, K], which no other state has."""
        return replace(self, keys=keys, values=values, newest=_in_place())


def _in_place() -> bool:
    """Whether tensors may be changed: learning needs them unchanged, and compiled code does not see `newest` change."""
    return not torch.is_grad_enabled() and not torch.compiler.is_compiling()
