"""Contestants on a masked language model: bert4keras and JAX here, Hugging Face on PyTorch.

They do the same work: the same weights, made-up sequences, dropout, AdamW, gradients clipped at
norm 1, and logits at the masked positions. With ``all_positions`` Hugging Face's
``BertForMaskedLM`` computes them at each position, as its users do.

    ./amp-xla python -m benchmarks.masked_lm ours '{"precision": "amp", ...}' '{"steps": 8, ...}'
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import sys
import types
import zlib
from typing import Any, Dict, Iterator, List, Mapping, Tuple

import numpy as np

from amp_xla.models.weights.hugging_face import EMBEDDINGS, spelling
from benchmarks import timing
from benchmarks.child import peak_bytes, peak_resident
from benchmarks.torch_classifier import autocast, bert_config, peak

MASKED_SHARE = 0.15
FIRST_WORD = 106  # smaller ids are special tokens in BERT's vocabularies


def batch(shape: Mapping[str, Any]) -> timing.Batch:
    """Return token ids int64 [B, L] and sorted positions to predict, int64 [B, K]."""
    rng = np.random.RandomState(shape["seed"])
    size = (shape["batch_size"], shape["max_length"])
    ids = rng.randint(FIRST_WORD, shape["vocab_size"], size)
    count = round(MASKED_SHARE * size[1])
    return ids, np.sort(np.argsort(rng.rand(*size), 1)[:, :count], 1)


def initial(name: str, size: Tuple[int, ...]) -> Any:
    """Return a tensor's first value by its name in PyTorch: uniform, of deviation 0.02."""
    if len(size) == 1:
        return np.full(size, float(name.endswith("LayerNorm.weight")), np.float32)
    bits = np.random.RandomState(zlib.crc32(name.encode())).randint(0, 2**16, size, np.uint16)
    return (bits.astype(np.float32) / 2**16 - 0.5) * np.float32(0.02 * 12**0.5)


def initial_of_google(name: str, size: Tuple[int, ...]) -> Any:
    """Return the same by Google's name; kernels are [in, out]."""
    spelled = spelling([f"bert.{EMBEDDINGS}"], "bert", "the model")(name)
    kernel = name.endswith("/kernel")
    return initial(spelled, size[::-1]).T if kernel else initial(spelled, size)


def our_config(shape: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the content of the model's ``bert_config.json``: heads of size 64."""
    from amp_xla.models.options import bert_config

    hidden = shape["hidden"]
    return bert_config(
        shape["vocab_size"], shape["layers"], hidden, hidden // 64, shape["max_length"],
        shape["dropout"], shape.get("attention_dropout"),
    )  # fmt: skip


def our_step(shape: Mapping[str, Any]) -> Tuple[Any, Any]:
    """Return a ``LanguageModel`` and its ``TrainStep``, built as in the pretraining recipe."""
    from amp_xla.training.context import RunContext
    from amp_xla.training.options import PrecisionOptions, UpdateOptions

    precision = PrecisionOptions(shape["precision"], shape["xla"], shape.get("loss_scale"))
    context = RunContext(types.SimpleNamespace(
        seed=shape["seed"], precision_options=precision,
        update=UpdateOptions(learning_rate=shape["learning_rate"], warmup=0.0),
    ))  # fmt: skip
    from amp_xla.models.language_model import LanguageModel

    lm = LanguageModel(our_config(shape), shape["max_length"], any_length=False)
    inputs = lm.placeholders()
    loss, _ = lm.loss(inputs)
    return lm, context.step(inputs, loss, context.optimizer(10**6), lm.weights, {})


def ours(shape: Mapping[str, Any]) -> timing.Contestant:
    """Return this project's contestant."""
    lm, train = our_step(shape)
    from amp_xla.models import encoders
    from amp_xla.training.step import initialize_variables

    sizes = encoders.tensors(lm.transformer)
    lm.transformer.load_weights_from_checkpoint({n: initial_of_google(n, sizes[n]) for n in sizes})
    initialize_variables()
    number, facts, flops = itertools.count(), timing.TrainStepFacts(train), 0

    def step(batch: timing.Batch) -> float:
        nonlocal flops
        ids, positions = (array.astype(np.int32) for array in batch)
        feed = {
            "token_ids": ids,
            "segment_ids": np.zeros_like(ids),
            "positions": positions,
            "labels": np.take_along_axis(ids, positions, 1),
            "weights": np.ones(positions.shape, np.float32),
        }
        if shape.get("count_flops") and not flops:
            flops = matmul_flops(train, [*feed.values(), 0])
        return facts.loss(train(feed, next(number)))

    return timing.Contestant(step, lambda: {**facts(), "flops": flops}, peak_bytes)


def matmul_flops(train: Any, arrays: List[Any]) -> int:
    """Return the FLOPs of the matrix products in the graph of a TensorFlow step."""
    from amp_xla.graph import shapes, training_graph

    training = training_graph.view(train)
    graph = training.export(training.fetches)
    sizes = {name: list(np.shape(array)) for name, array in zip(training.feeds, arrays)}
    flops, unknown = shapes.matmul_flops(
        graph, shapes.static_shapes(graph, training.fetches, sizes)
    )
    assert not unknown, unknown
    return sum(flops.values())


def hugging_face(shape: Mapping[str, Any]) -> timing.Contestant:
    """Return ``BertForMaskedLM`` with fused AdamW, in float32 or bfloat16, optionally compiled."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import BertForMaskedLM

    torch.manual_seed(shape["seed"])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = bert_config(shape, shape["vocab_size"])
    if shape.get("count_flops"):
        config._attn_implementation = "eager"  # the counter adds what a fused backward repeats
    model: Any = BertForMaskedLM(config).to(device).train()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(initial(name, tuple(parameter.shape))))
    optimizer = torch.optim.AdamW(model.parameters(), lr=shape["learning_rate"], fused=True)
    facts = {"device": device, "half_nodes": 0, "flops": 0}

    # Without a mask, since nothing is padded: an all-ones mask keeps PyTorch from its flash kernel.
    def logits_and_labels(ids: Any, positions: Any) -> Any:
        vectors, labels = model.bert(input_ids=ids).last_hidden_state, ids
        if not shape.get("all_positions"):
            rows = torch.arange(len(ids), device=device)[:, None]
            vectors, labels = vectors[rows, positions], ids[rows, positions]
        else:
            labels = torch.full_like(ids, -100).scatter_(1, positions, ids.gather(1, positions))
        return model.cls(vectors).flatten(0, 1), labels.flatten()

    forward = torch.compile(logits_and_labels) if shape.get("compile") else logits_and_labels

    def step(batch: timing.Batch) -> float:
        ids, positions = (torch.from_numpy(array).to(device) for array in batch)
        counts = shape.get("count_flops") and not facts["flops"]
        counter = FlopCounterMode(display=False)
        with counter if counts else contextlib.nullcontext():
            with autocast(shape["precision"], device):
                logits, labels = forward(ids, positions)
                loss = torch.nn.functional.cross_entropy(logits.float(), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
        facts["half_nodes"] = int(logits.dtype != torch.float32)
        facts["flops"] = counter.get_total_flops() if counts else facts["flops"]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return float(loss.detach())

    return timing.Contestant(step, lambda: facts, peak)


def in_jax(shape: Mapping[str, Any]) -> timing.Contestant:
    """Return ``amp_xla.jax``'s encoder with BERT's head, in float32 or bfloat16."""
    import jax
    import jax.numpy as jnp
    import optax

    from amp_xla.jax import bert, weights
    from amp_xla.jax.step import adamw
    from amp_xla.precision.jax import NoOpLossScale, value_and_grad

    hidden, vocab = shape["hidden"], shape["vocab_size"]
    like = jax.eval_shape(lambda: bert.new_classifier(our_config(shape), hidden, 0)).bert

    def value(name: str, *size: int) -> Any:
        return jnp.asarray(initial_of_google(name, size))

    values = {id(leaf): value(name, *leaf.shape) for name, leaf in weights.named(like).items()}
    head = "cls/predictions/transform"
    dense, norm = f"{head}/dense", f"{head}/LayerNorm"
    model = {
        "bert": jax.tree_util.tree_map(lambda leaf: values[id(leaf)], like),
        "transform": bert.Dense(value(f"{dense}/kernel", hidden, hidden), value(dense, hidden)),
        "norm": bert.Norm(value(f"{norm}/gamma", hidden), value(norm, hidden)),
        "bias": jnp.zeros([vocab]),
    }
    rate, attention = shape["dropout"], shape.get("attention_dropout", shape["dropout"])
    half = {"bf16": jnp.bfloat16, "fp32": jnp.float32}[shape["precision"]]
    fused = not attention and bert.has_fused_attention(half, 64)

    def loss(model: Any, key: Any, ids: Any, positions: Any) -> Any:
        masks = bert.Dropout(jax.random.key_data(key), rate, attention, fused)
        vectors = model["bert"](ids, jnp.zeros_like(ids), masks)
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
        model, slots, number = state
        key = jax.random.fold_in(jax.random.key(shape["seed"]), number)
        value, grads, _, _ = differentiate(model, key, ids, positions)
        updates, slots = optimizer.update(grads, slots, model)
        return (optax.apply_updates(model, updates), slots, number + 1), value

    state = (model, optimizer.init(model), jnp.int32(0))
    facts: Dict[str, Any] = {"device": jax.default_backend()}
    program: Any = None

    def step(batch: timing.Batch) -> float:
        nonlocal state, program
        arrays = [array.astype(np.int32) for array in batch]
        if program is None:
            traced = update.trace(state, *arrays)
            lowered = traced.lower()
            facts.update(products(traced.jaxpr.jaxpr))
            facts["fused"] = lowered.as_text().count("__cudnn$fmha")
            program = lowered.compile()
        state, value = program(state, *arrays)
        return float(value)

    def peak_in_jax() -> int:
        memory = jax.local_devices()[0].memory_stats()
        return int(memory["peak_bytes_in_use"]) if memory else peak_resident()

    return timing.Contestant(step, lambda: facts, peak_in_jax)


def products(jaxpr: Any) -> Dict[str, int]:
    """Count the matrix products of a program, those in half precision, and their FLOPs."""
    from jax.extend import core

    counts = {"half_nodes": 0, "flops": 0}
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            left, right = (variable.aval for variable in equation.invars)
            (summed, _), _ = equation.params["dimension_numbers"]
            counts["half_nodes"] += "16" in left.dtype.name and "16" in right.dtype.name
            inner = [left.shape[axis] for axis in summed]
            counts["flops"] += 2 * int(np.prod([*equation.outvars[0].aval.shape, *inner]))
        for value in equation.params.values():
            for part in value if isinstance(value, (list, tuple)) else [value]:
                inside = getattr(part, "jaxpr", part)
                if isinstance(inside, core.Jaxpr):
                    for name, count in products(inside).items():
                        counts[name] += count
    return counts


def main() -> int:
    """Build the contestant named in the arguments; do the task."""
    side, shape = sys.argv[1], json.loads(sys.argv[2])
    contestant = {"ours": ours, "hugging_face": hugging_face, "jax": in_jax}[side](shape)

    def epoch(number: int) -> Iterator[timing.Batch]:
        yield batch(shape)

    timing.run(epoch, contestant)
    return 0


if __name__ == "__main__":
    sys.exit(main())
