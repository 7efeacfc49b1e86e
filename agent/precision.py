"""Precision of matrix products and convolutions: what a device computes fast, and the context to compute in it.

Weights, their updates, losses, softmax and the heads of the agent are float32 in any case.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from agent.core.fields import Precision

_CPU_FEATURES = {"amx_bf16": "AMX", "avx512_bf16": "AVX512-BF16", "sve_bf16": "SVE-BF16", "bf16": "ARM BF16"}
"""Capabilities of CPUs, as torch names them, with which bfloat16 is faster than float32."""


def bfloat16_hardware(device: torch.device) -> str:
    """What makes bfloat16 fast on a device, in words; empty if nothing does."""
    if device.type == "cuda":
        supported = torch.cuda.is_bf16_supported(including_emulation=False)
        if supported:
            return "tensor cores"
        return ""
    if device.type != "cpu":
        return ""
    # The first of them that the processor has.
    capabilities = torch.cpu.get_capabilities()
    for feature, name in _CPU_FEATURES.items():
        if capabilities.get(feature):
            return name
    return ""


def resolve_precision(precision: Precision, device: torch.device) -> Precision:
    """float32 or bfloat16; "auto" is bfloat16 where the device computes it fast."""
    if precision != "auto":
        return precision
    if bfloat16_hardware(device):
        return "bfloat16"
    return "float32"


def describe_precision(precision: Precision, device: torch.device) -> str:
    """A precision in words, with what makes it fast on a device."""
    if precision == "float32":
        return precision
    if precision == "auto":  # left to devices that may be elsewhere
        return "what each device computes fast"
    hardware = bfloat16_hardware(device)
    if not hardware:
        return f"{precision} (slow here, because this {device.type} does not support it)"
    return f"{precision} ({hardware})"


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Mixed precision for "bfloat16"; nothing for "float32". Within one context, weights are converted once."""
    if precision == "bfloat16":
        # Weights stay float32.
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()
