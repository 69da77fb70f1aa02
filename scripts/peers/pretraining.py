"""One side of ``make bench-peers ARGS="--task pretraining"``: a masked language model's step.

This project's, or Hugging Face's ``BertForMaskedLM`` as its users run it (logits at every
position, AdamW, clipping at 1). Same shape, dropout on, the same made-up sequences: what a step
costs does not depend on which tokens they hold.

    python -m scripts.peers.pretraining ours '{"precision": "amp", ...}'
"""

from __future__ import annotations

import json
import sys
from typing import Any, Callable, Dict, Iterator

import numpy as np

from scripts.peers import protocol
from scripts.peers.hugging_face import autocast, bert_config

MASKED_SHARE = 0.15
FIRST_WORD = 106  # ids below are special tokens in BERT's vocabularies
Step = Callable[[protocol.Batch], float]


def batch(shape: Dict[str, Any]) -> protocol.Batch:
    """Token ids int64 [B, L], and where to predict them: sorted int64 [B, K]."""
    rng = np.random.RandomState(shape["seed"])
    size = (shape["batch_size"], shape["max_length"])
    ids = rng.randint(FIRST_WORD, shape["vocab_size"], size)
    count = round(MASKED_SHARE * size[1])
    return ids, np.sort(np.argsort(rng.rand(*size), 1)[:, :count], 1)


def ours(shape: Dict[str, Any]) -> Step:
    """This package's model and optimizer, as the pretraining recipe builds them."""
    from amp_xla import setup

    resolved = setup.resolve(precision=shape["precision"], xla=shape["xla"])
    from amp_xla.backend import tf
    from amp_xla.models import dropout, losses
    from amp_xla.models.language_model import LanguageModel
    from amp_xla.optimizers.scheduled import scheduled
    from amp_xla.training import job
    from amp_xla.training.step import TrainStep, initialize_variables

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
    initialize_variables()
    number = iter(range(10**9))

    def step(batch: protocol.Batch) -> float:
        ids, positions = (array.astype(np.int32) for array in batch)
        feed = {
            "token_ids": ids,
            "segment_ids": np.zeros_like(ids),
            "positions": positions,
            "labels": np.take_along_axis(ids, positions, 1),
            "weights": np.ones(positions.shape, np.float32),
        }
        return float(train(feed, next(number)).loss)

    return step


def hugging_face(shape: Dict[str, Any]) -> Step:
    """``BertForMaskedLM``, fused AdamW, float32 or bfloat16 autocast."""
    import torch
    from transformers import BertForMaskedLM

    torch.manual_seed(shape["seed"])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model: Any = BertForMaskedLM(bert_config(shape, shape["vocab_size"])).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=shape["learning_rate"], fused=True)

    def step(batch: protocol.Batch) -> float:
        ids, positions = (torch.from_numpy(array).to(device) for array in batch)
        labels = torch.full_like(ids, -100).scatter_(1, positions, ids.gather(1, positions))
        with autocast(shape["precision"], device):
            loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return float(loss)

    return step


def main() -> int:
    """Builds one side and serves."""
    which, shape = sys.argv[1], json.loads(sys.argv[2])
    step = {"ours": ours, "hugging_face": hugging_face}[which](shape)

    def epoch(number: int) -> Iterator[protocol.Batch]:
        yield batch(shape)

    def accuracy() -> float:
        raise SystemExit("made-up sequences have nothing to learn: --epochs is for classification")

    protocol.serve(epoch, step, accuracy)
    return 0


if __name__ == "__main__":
    sys.exit(main())
