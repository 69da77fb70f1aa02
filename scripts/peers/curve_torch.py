"""Peer of ``bench-curve``: ``BertForMaskedLM`` from the recipe's start weights, on its batches.

Everything is PyTorch's and Hugging Face's own but the batches, read with this project's readers,
and the schedule: the first update is not at rate zero. Runs in .venvs/peers.

    .venvs/peers/bin/python -m scripts.peers.curve_torch runs/curve
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, Mapping

import numpy as np

from amp_xla.data.pretraining.phases import read
from amp_xla.data.pretraining.prepared import Manifest
from amp_xla.errors import AmpXlaError

SIDE = "hugging_face"  # its settings (.json), start weights (.npz) and losses (.jsonl)


def main() -> int:
    """Trains as the folder says, a line of losses a step."""
    import torch
    from torch.linalg import vector_norm

    out = Path(sys.argv[1])
    values = json.loads((out / f"{SIDE}.json").read_text(encoding="utf-8"))
    model = loaded(values, out)
    named = list(model.named_parameters())
    plain = [p for n, p in named if "bias" in n or "LayerNorm" in n]
    decayed = [p for n, p in named if not ("bias" in n or "LayerNorm" in n)]
    optimizer = torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": values["weight_decay"]},
            {"params": plain, "weight_decay": 0.0},
        ],
        lr=values["learning_rate"],
        betas=(0.9, values["beta2"]),
        eps=values["adam_epsilon"],
        fused=True,
    )
    total, warm = values["steps"], int(values["warmup"] * values["steps"])
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: (step + 1) / warm if step < warm else (total - step) / (total - warm + 1),
    )
    phase = text(values)
    torch.manual_seed(values["seed"])
    with open(out / f"{SIDE}.jsonl", "w", encoding="utf-8", buffering=1) as file:
        for step, batch in enumerate(phase.batches.epoch(), 1):
            model.train()
            loss = model(**fed(batch)).loss
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            if values["clip_norm"]:
                # clip_grad_norm_ adds squares up in float32: on a CPU the norm of an embedding
                # table comes out 6e-4 too small, which is all that sets the two sides apart.
                norms = [vector_norm(p.grad, dtype=torch.float64) for p in model.parameters()]
                torch.nn.utils.clip_grads_with_norm_(
                    model.parameters(), values["clip_norm"], torch.stack(norms).norm()
                )
            optimizer.step()
            schedule.step()
            line = {"step": step, "loss": float(loss.detach())}
            if step % values["evaluate_every"] == 0 or step == total:
                line["dev_loss"] = held_out(model, phase.held.epoch())
            file.write(json.dumps(line) + "\n")
    return 0


def loaded(values: Mapping[str, Any], out: Path) -> Any:
    """``BertForMaskedLM`` with the start weights, every one of which it must have."""
    import torch
    from transformers import BertConfig, BertForMaskedLM

    rates = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    config = {**values["config"], **dict.fromkeys(rates, values["dropout"])}
    model: Any = BertForMaskedLM(BertConfig(**config))
    state = {}
    with np.load(str(out / f"{SIDE}.npz")) as arrays:
        for name in arrays.files:
            array = arrays[name].T if name.endswith("/kernel") else arrays[name]
            state[_renamed(name)] = torch.from_numpy(np.ascontiguousarray(array))
    names = {name for name, _ in model.named_parameters()}  # shared ones once
    if names != set(state):
        raise AmpXlaError(f"weights of one side alone: {sorted(names ^ set(state))}")
    model.load_state_dict(state, strict=False)  # the projection is the embeddings
    return model


def _renamed(name: str) -> str:
    """Google's name of a weight -> Hugging Face's."""
    name = name.replace("layer_", "layer.").replace("output_bias", "bias")
    *path, last = name.split("/")
    last = {"kernel": "weight", "gamma": "weight", "beta": "bias"}.get(last, last)
    return ".".join([*path, last + ".weight" * last.endswith("_embeddings")])


def text(values: Mapping[str, Any]) -> Any:
    """The recipe's sequences, in its order and with its masks."""
    data = Manifest.load(values["data"])
    (phase,) = read(
        data, data.tokenizer(), [(data.settings["length"], values["steps"])],
        values["global_batch"], values["heldout"], values["objective"], values["mask"],
        values["mask_rate"], values["seed"],
    )  # fmt: skip
    return phase


def fed(batch: Any) -> Dict[str, Any]:
    """What Hugging Face's model is fed with: labels at every position, -100 where none counts."""
    import torch

    labels = np.full(batch.token_ids.shape, -100, np.int64)
    rows, places = np.nonzero(batch.weights)
    labels[rows, batch.positions[rows, places]] = batch.labels[rows, places]
    ids = torch.from_numpy(batch.token_ids.astype(np.int64))
    return {
        "input_ids": ids,
        "attention_mask": (ids != 0).long(),
        "labels": torch.from_numpy(labels),
    }


def held_out(model: Any, batches: Iterator[Any]) -> float:
    """Mean loss of all masked tokens of ``batches``."""
    import torch

    model.eval()
    loss = count = 0.0
    with torch.no_grad():
        for batch in batches:
            predicted = float(batch.weights.sum())
            loss += float(model(**fed(batch)).loss) * predicted
            count += predicted
    return loss / count


if __name__ == "__main__":
    sys.exit(main())
