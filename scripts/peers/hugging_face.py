"""What both Hugging Face contestants are made of."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Mapping

from amp_xla.speed.child import peak_resident


def bert_config(shape: Mapping[str, Any], vocab_size: int) -> Any:
    """The model that all contestants have; heads of 64, GELU by the error function."""
    from transformers import BertConfig

    return BertConfig(
        vocab_size=vocab_size,
        hidden_size=shape["hidden"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["hidden"] // 64,
        intermediate_size=4 * shape["hidden"],
        hidden_dropout_prob=shape["dropout"],
        attention_probs_dropout_prob=shape["dropout"],
    )


def autocast(precision: str, device: str) -> Any:
    """bfloat16 autocast, or for ``fp32`` nothing."""
    import torch

    if precision == "fp32":
        return contextlib.nullcontext()
    return torch.autocast(device, dtype=torch.bfloat16)


def peak() -> int:
    """The most memory so far, of the GPU where there is one; bytes."""
    import torch

    gpu = torch.cuda.is_available()
    return int(torch.cuda.max_memory_allocated()) if gpu else peak_resident()


def ceiling(precision: str, size: int, seconds: float, products: int) -> float:
    """``amp_xla.graph.flops.ceiling`` in PyTorch: the same products, the fastest run counts."""
    import torch

    gpu = torch.cuda.is_available()
    kind = torch.float32 if precision == "fp32" else torch.bfloat16
    random = torch.randn(size, size, device="cuda" if gpu else "cpu")
    a = (random * size**-0.5).to(kind)

    def run() -> float:
        began, product = time.perf_counter(), a
        for _ in range(products):
            product = product @ a
        if gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - began

    run()
    times, until = [run()], time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < until:
        times.append(run())
    return 2.0 * size**3 * products / min(times)
