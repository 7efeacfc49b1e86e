"""What every learner does with parameters, gradients and optimizers, whatever its losses are."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from learner.communicator import DataParallel


def split_parameters(module: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The trained parameters (main, compression), each in the order of `module.named_parameters()`.

    Raises:
        ValueError: if a compression parameter is not a parameter of the module.
    """
    compression = {id(parameter) for parameter in module.compression_parameters()}  # type: ignore[operator]
    every = list(module.parameters())
    strangers = compression - {id(parameter) for parameter in every}
    if strangers:
        raise ValueError(f"compression_parameters: expected parameters of the agent, got {len(strangers)} others")
    trained = [parameter for parameter in every if parameter.requires_grad]
    return (
        [parameter for parameter in trained if id(parameter) not in compression],
        [parameter for parameter in trained if id(parameter) in compression],
    )


def sum_gradients(parameters: Iterable[nn.Parameter], parallel: DataParallel) -> None:
    """Replaces gradients by their sum over the learners, all in one go."""
    if parallel.size == 1:
        return
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    sums = parallel.sum(torch.cat([gradient.flatten() for gradient in gradients]))
    for gradient, total in zip(gradients, sums.split([gradient.numel() for gradient in gradients])):
        gradient.copy_(total.view_as(gradient))


def gradient_norm(parameters: Sequence[nn.Parameter]) -> Tensor:
    """The Euclidean norm of the gradients as one vector: a scalar on their device."""
    return get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])


def not_finite(module: nn.Module) -> str:
    """The parameters whose gradient is not finite, by name, as a message has room for them."""
    return shorten(
        [
            name
            for name, parameter in module.named_parameters()
            if parameter.grad is not None and not bool(parameter.grad.isfinite().all())
        ]
    )


def shorten(names: list[str]) -> str:
    """The first five names, and how many more there are."""
    listed = ", ".join(names[:5]) or "none"
    return f"{listed} and {len(names) - 5} more" if len(names) > 5 else listed


_MEASURED = {torch.optim.Adam: ("exp_avg", "exp_avg_sq"), torch.optim.RMSprop: ("square_avg",)}
"""What optimizers measure of each parameter, in tensors of its shape, beside the number of steps."""


def load_optimizer(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Takes up what an optimizer of the same kind had measured; the hyper-parameters stay those of this one.

    Args:
        saved: its `state_dict()`, which is not changed and shares no tensor with the optimizer afterwards.

    Raises:
        ValueError: if it is the state of other parameters.
    """
    own = optimizer.state_dict()["param_groups"]
    try:
        if len(own) != len(saved["param_groups"]):
            raise ValueError(f"optimizer: expected {len(own)} groups of parameters, got {len(saved['param_groups'])}")
        groups = [{**mine, "params": theirs["params"]} for mine, theirs in zip(own, saved["param_groups"])]
        optimizer.load_state_dict(copy_to_cpu({**saved, "param_groups": groups}))
        names = _MEASURED[type(optimizer)]
        for parameter, measured in optimizer.state.items():
            for name in ("step", *names, *measured):
                shape = torch.Size() if name == "step" else parameter.shape
                if not isinstance(measured[name], Tensor) or measured[name].shape != shape:
                    raise ValueError(f"optimizer: {name}: expected a tensor of {list(shape)}, got another")
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"optimizer: expected the state of {type(optimizer).__name__}, got another: {error!r}"
        ) from error
    if optimizer.defaults.get("momentum"):
        # RMSProp makes this at a parameter's first step only; the one that was saved may have had no momentum.
        for measured in optimizer.state.values():
            measured.setdefault("momentum_buffer", torch.zeros_like(measured["square_avg"]))


def weights_to_cpu(module: nn.Module) -> dict[str, Tensor]:
    """Copies of a module's parameters and buffers, by name, on the CPU; from a GPU in one transfer."""
    tensors = module.state_dict()
    try:
        joined = torch.cat([tensor.contiguous().view(-1).view(torch.uint8) for tensor in tensors.values()]).cpu()
    except torch.OutOfMemoryError:
        return copy_to_cpu(dict(tensors))
    parts = joined.split([tensor.nbytes for tensor in tensors.values()])
    # Clones: a view is pickled with all of `joined`, and begins where its dtype may not.
    return {name: part.clone().view(like.dtype).view(like.shape) for (name, like), part in zip(tensors.items(), parts)}


def copy_to_cpu(tree: Any) -> Any:
    """A nest of dicts, lists and tuples with copies, on the CPU, of its tensors."""
    if isinstance(tree, Tensor):
        return tree.detach().to("cpu", copy=True)
    if isinstance(tree, dict):
        return {key: copy_to_cpu(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(copy_to_cpu(value) for value in tree)
    return tree
