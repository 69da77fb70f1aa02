"""Tiny random Hugging Face folders and their hidden states, written by transformers itself.

    PYTHON -m tests.models.transformers_folders tests/models/hugging_face

PYTHON has PyTorch 2.13.0 and transformers: 5.23.0 writes all but two families; 4.30.2 has NEZHA,
and with it the package roformer 0.4.3 has RoFormerV2. Hidden states are those of real tokens.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

COMMON = dict(
    vocab_size=30, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
    intermediate_size=24, max_position_embeddings=20, type_vocab_size=2, initializer_range=0.2,
    hidden_act="gelu",
)  # fmt: skip


def families(seed):
    """Yield (name, model, how to save it)."""
    import torch
    import transformers as hf

    torch.manual_seed(seed)
    if hasattr(hf, "NezhaModel"):
        yield "nezha", hf.NezhaModel(hf.NezhaConfig(**COMMON)), {}
        import roformer

        config = roformer.RoFormerConfig(
            **{**COMMON, "hidden_act": "relu"}, embedding_size=16, norm_type="rms_norm",
            use_bias=False,
        )  # fmt: skip
        yield "roformer_v2", roformer.RoFormerModel(config), dict(torch_save={})
        return
    bert = hf.BertConfig(**COMMON)
    yield "bert", hf.BertForMaskedLM(bert), dict(max_shard_size="10KB")
    yield "bert_zip", hf.BertModel(bert), dict(torch_save={})
    old = dict(_use_new_zipfile_serialization=False)
    yield "bert_old", hf.BertForPreTraining(bert), dict(torch_save=old)
    macbert = hf.BertForMaskedLM(hf.BertConfig(**COMMON, layer_norm_eps=1e-3))
    yield "macbert", macbert.to(torch.bfloat16), {}
    ernie = hf.ErnieConfig(**{**COMMON, "hidden_act": "relu"}, use_task_id=True)
    yield "ernie", hf.ErnieModel(ernie), {}
    albert = hf.AlbertConfig(**{**COMMON, "hidden_act": "gelu_new"}, embedding_size=8)
    yield "albert", hf.AlbertForMaskedLM(albert), {}
    electra = hf.ElectraConfig(**COMMON, embedding_size=8)
    yield "electra", hf.ElectraForPreTraining(electra), {}
    yield "roformer", hf.RoFormerModel(hf.RoFormerConfig(**COMMON, embedding_size=8)), {}


def write(root, seed=0):
    import torch

    random = np.random.RandomState(seed)
    tokens = random.randint(1, COMMON["vocab_size"], (4, 11))
    tokens[1, 6:] = 0
    segments = np.where(tokens, random.randint(0, 2, tokens.shape), 0)
    for name, model, how in families(seed):
        folder = root / name
        folder.mkdir(parents=True, exist_ok=True)
        for key, value in model.named_parameters():  # which start as 0 and 1
            if key.lower().replace("_", "").find("layernorm") >= 0 or key.endswith("bias"):
                value.data += torch.randn_like(value) * 0.2
        if "torch_save" in how:
            state = model.state_dict()
            if name == "bert_old":  # the names of PyTorch before its version 1
                for key in list(state):
                    new = key.replace("LayerNorm.weight", "LayerNorm.gamma")
                    state[new.replace("LayerNorm.bias", "LayerNorm.beta")] = state.pop(key)
            model.config.save_pretrained(folder)
            torch.save(state, folder / "pytorch_model.bin", **how["torch_save"])
        else:
            model.save_pretrained(folder, **{"safe_serialization": True, **how})
        model = model.eval().float()
        encoder = getattr(model, model.base_model_prefix, model)
        with torch.no_grad():
            hidden = encoder(
                torch.tensor(tokens), attention_mask=torch.tensor(tokens > 0).long(),
                token_type_ids=torch.tensor(segments),
            ).last_hidden_state.numpy()  # fmt: skip
        np.savez(folder / "hidden.npz", tokens=tokens, segments=segments, hidden=hidden)


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
