"""Export of models in users' scripts: bert4keras' encoder, and the layers after it."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, Iterator, List, Optional, Sequence, Set, Tuple

import numpy as np

from amp_xla import backend
from amp_xla.backend import K, keras
from amp_xla.callbacks.description import renumbered
from amp_xla.data.text.tokenizer import REQUIRED, Tokenizer
from amp_xla.data.text.vocabulary import Rules
from amp_xla.errors import AmpXlaError
from amp_xla.export import graph
from amp_xla.export.hugging_face import kind_of
from amp_xla.export.model import Exportable, random_tokens
from amp_xla.export.text_models import dense, pointer
from amp_xla.models import dropout, encoders
from amp_xla.models.weights import first_line, google
from amp_xla.training.checkpoint import STATE, Checkpoint, CheckpointError, problems
from amp_xla.training.step import restore_weights

# Key of a bert_config.json -> attribute of bert4keras' model, if it has another name
_ATTRIBUTES = {
    "max_position_embeddings": "max_position", "type_vocab_size": "segment_vocab_size",
    "hidden_dropout_prob": "dropout_rate", "attention_probs_dropout_prob": "attention_dropout_rate",
}  # fmt: skip
# Layer of bert4keras -> what it computes, and its usual activation
_OWN_HEADS = {
    "Pooler-Dense": ("pooler", "tanh"), "NSP-Proba": ("next-sentence probabilities", "softmax"),
    "MLM-Activation": ("probabilities of tokens", "softmax"),
}  # fmt: skip

_POINTER = "bert4keras' {2}({3.heads}, {3.head_size}, RoPE={3.RoPE}) of the {0}"
# Class of a layer -> its formula; {0}: its input's formula; {1}, {2}, {3}: its name, class, object
_FORMULAS = {
    "Dropout": "{0}", "GlobalAveragePooling1D": "mean of the {0} but padding",
    "Dense": "({0}) @ {1}.weight.T + {1}.bias", "GlobalPointer": _POINTER,
    "EfficientGlobalPointer": _POINTER,
    "ConditionalRandomField": "best path of {0} and {1}.transitions",
}  # fmt: skip


@contextlib.contextmanager
def recorded() -> Iterator[List[Any]]:
    """Collect the models that bert4keras builds within the block; their dropout is off."""
    base, built = backend.bert4keras("models").Transformer, []  # type: Any, List[Any]
    original = base.build

    def build(self: Any, *args: Any, **kwargs: Any) -> Any:
        built.append(self)
        return original(self, *args, **kwargs)

    base.build = build
    try:
        with dropout.inference():
            yield built
    finally:
        base.build = original


def tokenizer_in(module: Any) -> Optional[Tokenizer]:
    """Return a script's last global bert4keras tokenizer in which [PAD] is 0; else None."""
    kind, found = backend.bert4keras("tokenizers").Tokenizer, None
    for value in vars(module).values():
        ids: Dict[str, int] = value._token_dict if isinstance(value, kind) else {}
        tokens = sorted(ids, key=ids.__getitem__)
        if tokens[:1] == ["[PAD]"] and set(REQUIRED) <= set(tokens):
            found = Tokenizer(tokens, Rules(bool(value._do_lower_case)))
    return found


def load(model: Any, weights: str, built: Sequence[Any], module: Any) -> None:
    """Load a model's weights from a file or a checkpoint.

    Args:
      weights: path of a ``save_weights`` file, a bert4keras checkpoint or a run's checkpoint.
      built: what ``recorded`` collected.
      module: the script, for messages.

    Raises:
      AmpXlaError: there is no such file, or it is damaged or does not fit the model.
    """
    path = Path(weights)
    if (path / STATE).is_file():
        wrong = problems(path)
        if wrong:
            raise AmpXlaError(f"{path} is damaged: {wrong[0]}")
        checkpoint = Checkpoint(path)
        # The tensors are those of all models that the process had built.
        trained = set(checkpoint.state.get("fit", {}).get("weights") or checkpoint.tensors())
        if renumbered(trained, model):
            raise CheckpointError(f"{path} {_other_numbers(trained, model, module)}")
        restore_weights(checkpoint, model.weights)
        return
    indexed = Path(f"{path}.index").is_file()
    if not indexed and not path.is_file():
        raise AmpXlaError(f"--weights {path}: there is no such file or checkpoint")
    try:
        if indexed and "_CHECKPOINTABLE_OBJECT_GRAPH" not in google.tensors(path):
            exported = {id(weight) for weight in model.weights}
            for transformer in built:  # written by bert4keras' save_weights_as_checkpoint
                if not exported.isdisjoint(map(id, transformer.model.weights)):
                    transformer.load_weights_from_checkpoint(str(path))
            for name in _unmapped(model, built):
                raise ValueError(f"it lacks {name}; use a file of model.save_weights")
        else:
            status = model.load_weights(str(path))
            if indexed:
                status.assert_existing_objects_matched()
    except Exception as error:
        raise AmpXlaError(
            f"--weights {path} does not fit the model: {first_line(error)}"
        ) from error


def _other_numbers(trained: Set[str], model: Any, module: Any) -> str:
    """Return the end of an error: which weight the checkpoint lacks, why, and what helps."""
    script, names = Path(module.__file__).name, [weight.op.name for weight in model.weights]
    models = {key: x for key, x in vars(module).items() if isinstance(x, keras.models.Model)}
    whole = [
        f"export {script}:{key}" for key, x in models.items()
        if len(x.weights) == len(names) and {weight.op.name for weight in x.weights} <= trained
    ]  # fmt: skip
    hint = [*whole, f"make the trained model a global of {script}, built as in training"][0]
    name = next(name for name in names if name not in trained)
    return f"has no {name}: {script} built its models in another order in training; {hint}"


def _unmapped(model: Any, built: Sequence[Any]) -> List[str]:
    """Return the names of weights that a bert4keras checkpoint of the encoders ``built`` lacks."""
    held = {id(v) for transformer in built for v in encoders.variables(transformer).values()}
    names = (weight.name for weight in model.weights if id(weight) not in held)
    return [name for name in names if "Relative-Position" not in name]  # constants


def exportable(
    model: Any, batch: Any, built: Sequence[Any], tokenizer: Optional[Tokenizer], bert: bool
) -> Exportable:
    """Return a script's model, with its weights loaded.

    Args:
      batch: the script's batch, as for ``fit``; if None, or if ``bert``, token ids are drawn.
      built: what ``recorded`` collected.
      bert: whether the format stores only the encoder, and describes other layers by a formula.

    Raises:
      AmpXlaError: the model does not fit the format, or no random inputs can be drawn for it.
    """
    mine = [t for t in built if {id(w) for w in t.model.weights} <= {id(w) for w in model.weights}]
    outputs = dict(zip((re.sub(r"[^\w.-]", "_", n) for n in model.output_names), model.outputs))
    crf = [layer.trans for layer in model.layers if hasattr(layer, "trans")]
    answers = {"transitions": crf[0]} if len(crf) == 1 else {}
    if not bert:
        parts = graph.Parts(SimpleNamespace(model=model), outputs, {})
        return Exportable(
            {}, {}, graph.running(parts), lambda folder: graph.running(parts),
            tokenizer,  # type: ignore[arg-type]
            graph=lambda half: graph.serving(parts, half),
            answers={name: K.eval(value).tolist() for name, value in answers.items()},
            inputs=_samples(model, batch, mine), call=f"call: {', '.join(graph.names_of(model))}",
        )  # fmt: skip
    if len(mine) != 1:
        raise _refused(f"the model has {len(mine)} encoders of build_transformer_model, not 1")
    return _encoder(model, mine[0], tokenizer, answers)


def _refused(problem: str) -> AmpXlaError:
    return AmpXlaError(
        f"--format hf or google: {problem}; --format savedmodel and onnx do not need this"
    )


def _samples(model: Any, batch: Any, built: Sequence[Any]) -> Tuple[np.ndarray, ...]:
    """Return the inputs of a batch, or random token ids and segment ids."""
    names = list(model.input_names)
    if batch is not None:
        values = batch[0] if isinstance(batch, (tuple, list)) else batch
        if isinstance(values, dict):
            values = [values[name] for name in names]
        values = values if isinstance(values, (tuple, list)) else [values]
        return tuple(np.asarray(value) for value in values)
    if not built or not set(names) <= set(graph.NAMES):
        raise AmpXlaError(
            f"cannot draw values for the model's inputs ({', '.join(names)}): return (model, "
            "batch) from the function; the outputs are then compared on that batch"
        )
    length = K.int_shape(model.inputs[0])[1] or min(built[0].max_position or 32, 32)
    arrays = random_tokens(built[0].vocab_size, length, built[0].segment_vocab_size)
    drawn = dict(zip(graph.NAMES, arrays))
    return tuple(drawn[name] for name in names)


def _encoder(model: Any, transformer: Any, tokenizer: Any, answers: Any) -> Exportable:
    family, mask = _family(transformer)
    config = {k: getattr(transformer, _ATTRIBUTES.get(k, k)) for k in encoders.KEYS}
    act = getattr(keras.activations.get(transformer.hidden_act), "__name__", "")
    config.update(model_type=family, hidden_act=act.replace("_erf", ""))
    if mask is not None:
        config["application"] = mask
    if tokenizer is None or tokenizer.vocab_size != transformer.vocab_size:
        raise _refused(
            "the script needs a global variable with a bert4keras Tokenizer of "
            f"{transformer.vocab_size:,} tokens, as many as the encoder has"
        )
    unknown = [*_unmapped(transformer.model, [transformer]), *transformer.model.input_names[2:]]
    if unknown or len(transformer.inputs) < 2:
        raise _refused(
            f"the encoder has {', '.join(unknown[:3]) or 'one input'}; needed: token and segment "
            "ids as inputs, and only weights of bert4keras' own layers"
        )
    head: Dict[str, Any] = {}
    hidden = _hidden(transformer)
    formulas = [_formula(tensor, transformer, hidden, head) for tensor in model.outputs]
    known = {"vectors of all tokens", *(words for words, _ in _OWN_HEADS.values())}
    alone = not mask and set(formulas) <= known

    def build(folder: Optional[str]) -> graph.Parts:
        if folder is None:
            return graph.Parts(transformer, {"vectors": hidden}, head, answers=answers)
        opened = google.pretrained(folder)
        again = encoders.build(opened.config, application=mask or "encoder")
        again.load_weights_from_checkpoint(opened.take(encoders.tensors(again), False))
        return graph.Parts(again, {"vectors": _hidden(again)}, {})

    return graph.with_weights(
        build, config, tokenizer, transformer.max_position,
        kind=kind_of(encoders.tensors(transformer)) if alone else None,
        formula="" if mask else "; ".join(formulas),
        inputs=_samples(transformer.model, None, [transformer]),
    )  # fmt: skip


def _family(transformer: Any) -> Tuple[str, Optional[str]]:
    """Return bert4keras' name of the model, and its attention mask: ``lm``, ``unilm`` or None."""
    models, names = backend.bert4keras("models"), {v: k for k, v in encoders.CLASSES.items()}
    masks = {"lm": models.LM_Mask, "unilm": models.UniLM_Mask}
    mask = next((name for name, base in masks.items() if isinstance(transformer, base)), None)
    classes = [c for c in type(transformer).__mro__ if not issubclass(c, tuple(masks.values()))]
    if classes[0].__module__ != models.__name__ or classes[0].__name__ not in names:
        raise _refused(f"the encoder's class is {classes[0].__name__}, not {', '.join(names)}")
    return names[classes[0].__name__], mask


def _hidden(transformer: Any) -> Any:
    """Return the encoder's output before its heads."""
    last, shared = transformer.num_hidden_layers - 1, "Transformer-FeedForward-Norm"
    name = transformer.prefixed(f"Transformer-{last}-FeedForward-Norm")
    if name in transformer.layers:
        return transformer.layers[name].get_output_at(0)
    return transformer.layers[transformer.prefixed(shared)].get_output_at(last)


def _formula(tensor: Any, transformer: Any, hidden: Any, head: Dict[str, Any]) -> str:
    """Return how to compute a tensor from the encoder's output; add its weights to ``head``."""
    if tensor is hidden:
        return "vectors of all tokens"
    layer, node, _ = tensor._keras_history
    own = {id(x): name for name, x in transformer.layers.items()}.get(id(layer))
    act = getattr(getattr(layer, "activation", None), "__name__", "linear")
    if own is not None and own[len(transformer.prefix) :] in _OWN_HEADS:
        words, usual = _OWN_HEADS[own[len(transformer.prefix) :]]
        as_usual = act == usual or (act, usual) == ("linear", "softmax")  # logits, as transformers
        return words if as_usual else f"{words} with {act} in place of {usual}"
    inputs, kind = layer.get_input_at(node), type(layer).__name__
    axis = getattr(layer, "output_axis", None)
    if isinstance(inputs, list) and isinstance(axis, int):  # of a bert4keras Loss
        return _formula(inputs[axis], transformer, hidden, head)
    if own is None and not isinstance(inputs, list):
        inner = _formula(inputs, transformer, hidden, head)
        if kind == "Lambda" and _is_first(tensor, inputs, transformer):
            return f"first of the {inner}"
        if kind in _FORMULAS and getattr(layer, "use_bias", True):
            head.update(pointer(layer, f"{layer.name}."))
            if kind == "Dense":
                head.update(dense(layer.name, layer))
            if kind == "ConditionalRandomField":
                head[f"{layer.name}.transitions"] = layer.trans
            formula = _FORMULAS[kind].format(inner, layer.name, kind, layer)
            return formula if act == "linear" else f"{act}({formula})"
    raise _refused(
        f"no formula for layer {layer.name} ({kind}) after the encoder; allowed: Dense, Dropout, "
        "first token, mean, CRF, global pointers"
    )


def _is_first(tensor: Any, inputs: Any, transformer: Any) -> bool:
    """Return whether ``tensor`` holds the first token's vector of each text in ``inputs``."""
    fed = dict(zip(transformer.inputs, _samples(transformer.model, None, [transformer])))
    taken, given = backend.session().run([tensor, inputs], fed)
    return given.ndim == 3 and np.array_equal(taken, given[:, 0])
