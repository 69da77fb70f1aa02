"""Functions that both Hugging Face contestants use."""

from __future__ import annotations

import contextlib
from typing import Any, Mapping

from amp_xla.speed.child import peak_resident


def bert_config(shape: Mapping[str, Any], vocab_size: int) -> Any:
    """Return the BERT configuration: heads of size 64, exact GELU."""
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
    """Return bfloat16 autocast, or a context that does nothing for ``fp32``."""
    import torch

    if precision == "fp32":
        return contextlib.nullcontext()
    return torch.autocast(device, dtype=torch.bfloat16)


def peak() -> int:
    """Return the peak memory in bytes: of the GPU if there is one, else of the process."""
    import torch

    gpu = torch.cuda.is_available()
    return int(torch.cuda.max_memory_allocated()) if gpu else peak_resident()
