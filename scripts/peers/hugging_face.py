"""What both Hugging Face contestants are made of."""

from __future__ import annotations

import contextlib
from typing import Any, Mapping


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
