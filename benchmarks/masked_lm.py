"""Contestants on a masked language model: bert4keras and JAX here, Hugging Face on PyTorch.

They have the same shape and the same made-up sequences. Hugging Face's ``BertForMaskedLM`` is used
as its users do: logits at each position, AdamW, gradients clipped at norm 1. JAX has no dropout,
since ``jax.nn.dot_product_attention`` has none.

    ./amp-xla python -m benchmarks.masked_lm ours '{"precision": "amp", ...}'
"""

from __future__ import annotations

import functools
import json
import sys
from typing import Any, Dict, Iterator, Mapping

import numpy as np

from amp_xla.speed.child import WARM_STEPS, peak_bytes, peak_resident
from benchmarks import serve
from benchmarks.torch_classifier import autocast, bert_config, peak

MASKED_SHARE = 0.15
FIRST_WORD = 106  # smaller ids are special tokens in BERT's vocabularies


def batch(shape: Mapping[str, Any]) -> serve.Batch:
    """Return token ids int64 [B, L] and sorted positions to predict, int64 [B, K]."""
    rng = np.random.RandomState(shape["seed"])
    size = (shape["batch_size"], shape["max_length"])
    ids = rng.randint(FIRST_WORD, shape["vocab_size"], size)
    count = round(MASKED_SHARE * size[1])
    return ids, np.sort(np.argsort(rng.rand(*size), 1)[:, :count], 1)


def our_config(shape: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the content of the model's ``bert_config.json``: heads of size 64."""
    from amp_xla.models.options import bert_config

    hidden = shape["hidden"]
    return bert_config(
        shape["vocab_size"], shape["layers"], hidden, hidden // 64, shape["max_length"],
        shape["dropout"],
    )  # fmt: skip


def ours(shape: Mapping[str, Any]) -> serve.Contestant:
    """Return this project's contestant, built as in the pretraining recipe."""
    from amp_xla.backend import configuring

    resolved = configuring.resolve(precision=shape["precision"], xla=shape["xla"])
    from amp_xla.models import dropout
    from amp_xla.models.language_model import LanguageModel
    from amp_xla.training import job
    from amp_xla.training.options import UpdateOptions
    from amp_xla.training.step import TrainStep, initialize_variables

    job.seed_everything(shape["seed"])
    step_input = dropout.install(shape["seed"])
    lm = LanguageModel(our_config(shape), shape["max_length"], informed=True, any_length=False)
    inputs = lm.placeholders()
    loss, _ = lm.loss(inputs)
    update = UpdateOptions(learning_rate=shape["learning_rate"], warmup=0.01)
    optimizer, rate = update.scheduled(10**6, resolved.loss_scale)
    train = TrainStep(inputs, step_input, loss, optimizer, lm.weights, rate)
    initialize_variables()
    number = iter(range(10**9))

    def step(batch: serve.Batch) -> float:
        ids, positions = (array.astype(np.int32) for array in batch)
        feed = {
            "token_ids": ids,
            "segment_ids": np.zeros_like(ids),
            "positions": positions,
            "labels": np.take_along_axis(ids, positions, 1),
            "weights": np.ones(positions.shape, np.float32),
        }
        return float(train(feed, next(number)).loss)

    def facts() -> Dict[str, Any]:
        executed = train.executed
        assert executed is not None  # the warm-up has run
        return {"half_nodes": executed.half_nodes - executed.casts, "clusters": executed.clusters}

    return serve.Contestant(step, facts, peak_bytes)


def hugging_face(shape: Mapping[str, Any]) -> serve.Contestant:
    """Return ``BertForMaskedLM`` with fused AdamW, in float32 or bfloat16, optionally compiled."""
    import torch
    from transformers import BertForMaskedLM

    torch.manual_seed(shape["seed"])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model: Any = BertForMaskedLM(bert_config(shape, shape["vocab_size"])).to(device).train()
    forward = torch.compile(model) if shape.get("compile") else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=shape["learning_rate"], fused=True)

    def step(batch: serve.Batch) -> float:
        ids, positions = (torch.from_numpy(array).to(device) for array in batch)
        labels = torch.full_like(ids, -100).scatter_(1, positions, ids.gather(1, positions))
        with autocast(shape["precision"], device):
            loss = forward(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return float(loss)

    return serve.Contestant(step, peak=peak)


def in_jax(shape: Mapping[str, Any]) -> serve.Contestant:
    """Return ``amp_xla.jax``'s encoder with BERT's head, in float32 or bfloat16."""
    import jax
    import jax.numpy as jnp
    import optax

    from amp_xla.jax import bert
    from amp_xla.jax.step import adamw
    from amp_xla.precision.jax import NoOpLossScale, value_and_grad

    hidden, vocab = shape["hidden"], shape["vocab_size"]
    sizes = bert.Shape(vocab, hidden, shape["layers"], hidden // 64, 4 * hidden)
    classifier = bert.new_classifier(sizes, hidden, shape["seed"])  # its dense layer: the head's
    model = {
        "bert": classifier.bert,
        "transform": classifier.logits,
        "norm": bert.Norm(jnp.ones([hidden]), jnp.zeros([hidden])),
        "bias": jnp.zeros([vocab]),
    }

    def loss(model: Any, ids: Any, positions: Any) -> Any:
        vectors = model["bert"](ids, jnp.zeros_like(ids))
        vectors = jnp.take_along_axis(vectors, positions[:, :, None], 1)
        vectors = jax.nn.gelu(model["transform"](vectors), approximate=False)
        logits = model["norm"](vectors) @ model["bert"].tokens.T + model["bias"]
        labels = jnp.take_along_axis(ids, positions, 1)
        each = optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), labels)
        return each.mean()

    policy = {"bf16": "mixed_bfloat16", "fp32": "float32"}[shape["precision"]]
    differentiate = value_and_grad(loss, NoOpLossScale(), policy)
    optimizer = adamw(shape["learning_rate"], 0.01, 1.0)

    @functools.partial(jax.jit, donate_argnums=0)
    def update(state: Any, ids: Any, positions: Any) -> Any:
        model, slots = state
        value, grads, _, _ = differentiate(model, ids, positions)
        updates, slots = optimizer.update(grads, slots, model)
        return (optax.apply_updates(model, updates), slots), value

    state = (model, optimizer.init(model))

    def step(batch: serve.Batch) -> float:
        nonlocal state
        state, value = update(state, *(array.astype(np.int32) for array in batch))
        return float(value)

    def peak_in_jax() -> int:
        memory = jax.local_devices()[0].memory_stats()
        return int(memory["peak_bytes_in_use"]) if memory else peak_resident()

    return serve.Contestant(step, peak=peak_in_jax)


def main() -> int:
    """Build the contestant named in the arguments; answer the harness' commands."""
    side, shape = sys.argv[1], json.loads(sys.argv[2])
    contestant = {"ours": ours, "hugging_face": hugging_face, "jax": in_jax}[side](shape)

    def epoch(number: int) -> Iterator[serve.Batch]:
        yield batch(shape)

    def accuracy() -> float:
        raise SystemExit("error: made-up sequences have no labels; --epochs is for classification")

    serve.serve(epoch, contestant, accuracy, WARM_STEPS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
