"""A side of ``bench-gpu`` and of ``bench-peers --task pretraining``: a masked language model.

This project's, or Hugging Face's ``BertForMaskedLM`` as its users run it (logits at every
position, AdamW, clipping at 1). Same shape, dropout on, the same made-up sequences: what a step
costs does not depend on which tokens they hold.

    python -m scripts.peers.pretraining ours '{"precision": "amp", ...}'
"""

from __future__ import annotations

import functools
import json
import sys
from typing import Any, Dict, Iterator, Mapping

import numpy as np

from amp_xla.speed.child import WARM_STEPS, peak_bytes, reply
from scripts.peers import protocol
from scripts.peers.hugging_face import autocast, bert_config, ceiling, peak

MASKED_SHARE = 0.15
FIRST_WORD = 106  # ids below are special tokens in BERT's vocabularies


def batch(shape: Mapping[str, Any]) -> protocol.Batch:
    """Token ids int64 [B, L], and where to predict them: sorted int64 [B, K]."""
    rng = np.random.RandomState(shape["seed"])
    size = (shape["batch_size"], shape["max_length"])
    ids = rng.randint(FIRST_WORD, shape["vocab_size"], size)
    count = round(MASKED_SHARE * size[1])
    return ids, np.sort(np.argsort(rng.rand(*size), 1)[:, :count], 1)


def model_flops(shape: Mapping[str, Any]) -> float:
    """FLOPs of a step that the model needs: its matrix products, forward and twice that backward.

    The vocabulary counts at the masked positions only: whoever computes it at every position, or
    something twice, is not paid for that.
    """
    layers, hidden, length = shape["layers"], shape["hidden"], shape["max_length"]
    tokens = shape["batch_size"] * length
    masked = shape["batch_size"] * round(MASKED_SHARE * length)
    encoder = layers * tokens * (24 * hidden**2 + 4 * length * hidden)
    return 3.0 * (encoder + masked * (2 * hidden**2 + 2 * hidden * shape["vocab_size"]))


def built(shape: Mapping[str, Any]) -> Any:
    """(step, feed of a batch, settings) of this project, as the pretraining recipe builds them."""
    from amp_xla.backend import configuring

    resolved = configuring.resolve(precision=shape["precision"], xla=shape["xla"])
    from amp_xla.backend import tf
    from amp_xla.models import dropout, losses
    from amp_xla.models.language_model import LanguageModel
    from amp_xla.optimizers.scheduled import scheduled
    from amp_xla.training import job
    from amp_xla.training.step import TrainStep

    job.seed_everything(shape["seed"])
    step_input = dropout.install(shape["seed"])
    lm = LanguageModel(
        shape["vocab_size"], shape["max_length"], shape["layers"], shape["hidden"],
        shape["hidden"] // 64, dropout_rate=shape["dropout"],
    )  # fmt: skip
    inputs = {
        "token_ids": lm.model.inputs[0],
        "segment_ids": lm.model.inputs[1],
        "positions": tf.placeholder(tf.int32, [None, None]),
        "labels": tf.placeholder(tf.int32, [None, None]),
        "weights": tf.placeholder(tf.float32, [None, None]),
    }
    out = lm.head(inputs, lm.model.output)
    loss = losses.weighted_mean(out["loss"], tf.reshape(inputs["weights"], [-1]))
    optimizer, rate = scheduled(
        shape["learning_rate"], 10**6, 0.01, resolved.loss_scale, clip_norm=1.0
    )
    train = TrainStep(inputs, step_input, loss, optimizer, lm.weights, rate)

    def feed(batch: protocol.Batch) -> Dict[str, Any]:
        ids, positions = (array.astype(np.int32) for array in batch)
        return {
            "token_ids": ids,
            "segment_ids": np.zeros_like(ids),
            "positions": positions,
            "labels": np.take_along_axis(ids, positions, 1),
            "weights": np.ones(positions.shape, np.float32),
        }

    return train, feed, resolved


def ours(shape: Mapping[str, Any]) -> protocol.Contestant:
    """This project."""
    train, feed, resolved = built(shape)
    from amp_xla.graph import flops
    from amp_xla.training.step import initialize_variables

    initialize_variables()
    number = iter(range(10**9))

    def facts() -> Dict[str, Any]:
        found = train.executed
        return {"half_nodes": found.half_nodes - found.casts, "clusters": found.clusters}

    def ceiling(size: int, seconds: float, products: int) -> float:
        return flops.ceiling(resolved.half or "float32", size, seconds, products)[0]

    def step(batch: protocol.Batch) -> float:
        return float(train(feed(batch), next(number)).loss)

    return protocol.Contestant(step, facts, peak_bytes, ceiling)


def foretold(shape: Mapping[str, Any]) -> Dict[str, Any]:
    """What inspect says of the step on this machine's GPU, or on an A100 where there is none."""
    train, feed, _ = built(shape)
    from amp_xla import backend
    from amp_xla.diagnose import inspect

    capability = backend.compute_capability() or (8, 0)
    arrays = train.arrays(feed(batch(shape)), 0)
    report = inspect(train, gpu=".".join(map(str, capability)), batch=arrays)
    return {"half_nodes": report.half_nodes, "flops": report.matmul_flops}


def hugging_face(shape: Mapping[str, Any]) -> protocol.Contestant:
    """``BertForMaskedLM``, fused AdamW, float32 or bfloat16 autocast, compiled where asked for."""
    import torch
    from transformers import BertForMaskedLM

    torch.manual_seed(shape["seed"])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model: Any = BertForMaskedLM(bert_config(shape, shape["vocab_size"])).to(device).train()
    forward = torch.compile(model) if shape.get("compile") else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=shape["learning_rate"], fused=True)

    def step(batch: protocol.Batch) -> float:
        ids, positions = (torch.from_numpy(array).to(device) for array in batch)
        labels = torch.full_like(ids, -100).scatter_(1, positions, ids.gather(1, positions))
        with autocast(shape["precision"], device):
            loss = forward(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return float(loss)

    return protocol.Contestant(step, dict, peak, functools.partial(ceiling, shape["precision"]))


def main() -> int:
    """Builds one side and serves."""
    which, shape = sys.argv[1], json.loads(sys.argv[2])
    if which == "inspect":
        reply(**foretold(shape))
        return 0
    contestant = {"ours": ours, "hugging_face": hugging_face}[which](shape)

    def epoch(number: int) -> Iterator[protocol.Batch]:
        yield batch(shape)

    def accuracy() -> float:
        raise SystemExit("made-up sequences have nothing to learn: --epochs is for classification")

    protocol.serve(epoch, contestant, accuracy, WARM_STEPS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
