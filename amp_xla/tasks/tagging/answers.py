"""Entities: evaluation, prediction, export, scores. TensorFlow is imported in functions only."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from amp_xla.data.alignment import AlignedTexts
from amp_xla.data.batches import windows
from amp_xla.data.batches.protocol import Batch
from amp_xla.data.labelled import Labelled
from amp_xla.data.text.entities import Entity, unpack
from amp_xla.data.text.labels import Labels
from amp_xla.export.model import LINEAR, Exportable
from amp_xla.models.weights.pretrained import TAGGER
from amp_xla.tasks.tagging import spans
from amp_xla.training import extraction
from amp_xla.training.answers import Answers
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.evaluation import Infer
from amp_xla.training.sample_scores import Samples, Scorer

# transformers' own class takes the largest logit of each token, which is another path. A type of
# its own keeps that class from loading the folder without a word.
CODE = "tagger.py"
_CODE = '''"""A {base} that answers as `amp-xla predict`; load it with trust_remote_code=True."""

import torch
from {package} import {base}Config, {base}ForTokenClassification


class TaggerConfig({base}Config):
    model_type = "{kind}"


class Tagger({base}ForTokenClassification):
    """The largest logit of each token is on the best path: I follows only B or I of its label.

    Logits are scores of the best path through a tag of a token, less the best path's.
    """

    config_class = TaggerConfig

    def __init__(self, config):
        super().__init__(config)
        self.transitions = torch.nn.Parameter(torch.zeros(config.num_labels, config.num_labels))

    def forward(self, input_ids=None, attention_mask=None, **inputs):
        out = super().forward(input_ids, attention_mask, **{{**inputs, "return_dict": True}})
        scores, never = out.logits.double(), float("-inf")
        tag = torch.arange(scores.shape[-1], device=scores.device)
        inside = (tag > 0) & (tag % 2 == 0)
        continues = (tag == tag[:, None]) | (tag == tag[:, None] + 1)
        step = self.transitions.double().masked_fill(inside & ~continues, never)
        real = torch.ones_like(scores[..., 0]) if attention_mask is None else attention_mask
        word = torch.zeros_like(real, dtype=torch.bool)  # not [CLS], [SEP] or padding
        word[:, 1:-1] = (real[:, :-2] * real[:, 1:-1] * real[:, 2:]) > 0
        scores = scores.masked_fill(~word[..., None] & (tag > 0), never)
        before, after = [scores[:, 0]], [torch.zeros_like(scores[:, 0])]
        for token in scores.unbind(1)[1:]:
            before.append((before[-1][:, :, None] + step).amax(1) + token)
        for token in scores.unbind(1)[:0:-1]:
            after.append((step + (token + after[-1])[:, None]).amax(2))
        paths = torch.stack(before, 1) + torch.stack(after[::-1], 1)
        out.logits = (paths - paths.amax((1, 2), keepdim=True)).to(out.logits.dtype)
        return out
'''
_LOAD = (
    'from transformers import pipeline; pipeline("token-classification", "{{}}", '
    'aggregation_strategy="simple", trust_remote_code=True)  # runs its {}'
)


def evaluate(infer: Infer, data: Labelled, head: str) -> Dict[str, float]:
    """Return entity F1, precision, recall and mean loss; see ``extraction.evaluate``."""
    return extraction.evaluate(infer, data, unpack, functools.partial(_decode, head))


def _decode(
    head: str, batch: Batch, out: Mapping[str, Any], aligned: AlignedTexts, names: Sequence[str]
) -> List[List[Entity]]:
    """Return a list per row: a text's first row has all its entities, its other rows have none."""
    rows, flat = spans.decode(head, out, batch["token_ids"]), spans.is_flat(head)
    sizes, (texts, begins) = (batch["token_ids"] != 0).sum(1) - 2, windows.owners(batch)
    found: List[List[Entity]] = [[] for _ in rows]
    for first, of_text in windows.rows_of_texts(batch):
        each, places = [rows[row] for row in of_text], begins[of_text].tolist()
        joined = spans.joined(each, places, int(sizes[first]), flat)
        found[first] = aligned.entities(int(texts[first]), joined, names)
    return found


def predict(config: Any, checkpoint: Checkpoint, texts: Sequence[str]) -> Answers:
    """Return, for each text, a column ``start:end label words`` per entity."""
    from amp_xla.tasks.tagging import model

    def build(encoder: Any, labels: int) -> Tuple[Any, Dict[str, Any]]:
        tagger = model.tagger(config, encoder, labels, 0.0)
        return tagger.model, tagger.outputs(tagger.model.output)

    return extraction.predict(
        config, checkpoint, texts, "entities", build, functools.partial(_decode, config.head),
        lambda entities: {"entities": entities},
    )  # fmt: skip


def exportable(config: Any, checkpoint: Checkpoint) -> Exportable:
    """Return the model to export: logits of BIO tags, or scores of spans."""
    from amp_xla.export import graph, text_models
    from amp_xla.models.encoders import POINTER_SIZE
    from amp_xla.tasks.tagging import model

    head = config.head
    names, flat = Labels.load(checkpoint.file("labels.json")).names, spans.is_flat(head)

    def build(folder: Optional[str]) -> graph.Parts:
        encoder = text_models.encoder_of(config, checkpoint, folder)
        built = model.tagger(config, encoder.model, len(names), 0.0)
        output, weights = built.model.output, built.model.weights
        if flat:
            tags = text_models.dense("classifier", built.model.get_layer("Tags"))
            transitions = {"transitions": built.transitions} if head == "crf" else {}
            return graph.Parts(encoder, {"logits": output}, tags, weights, transitions)
        kernels = text_models.pointer(built.model.get_layer("Spans"))
        return graph.Parts(encoder, {"scores": output}, kernels, weights)

    tags = [f"{start}-{name}" for name in names for start in "BI"]
    labels, kind = (("O", *tags), "ForTokenClassification") if flat else (names, None)
    formula = "vectors of all tokens" + LINEAR
    if not flat:
        layer = model.POINTERS[head]
        formula = f"bert4keras' {layer}({len(names)}, {POINTER_SIZE}) of the vectors"
    exported = graph.exportable(
        checkpoint, build, config.batches.max_length, labels, kind=kind, formula=formula,
        task="token-classification",
    )  # fmt: skip
    return _decoding(exported) if flat else exported


def _decoding(model: Exportable) -> Exportable:
    """Add code to a tagger's export, so that transformers finds the best path of tags."""
    family, size = model.config["model_type"], len(model.labels)
    kind = f"{family}{TAGGER}"
    names = {
        "base": "RoFormer" if family.startswith("roformer") else family.capitalize(), "kind": kind,
        "package": "roformer" if family == "roformer_v2" else "transformers",
    }  # fmt: skip
    classes = {"AutoConfig": "TaggerConfig", "AutoModelForTokenClassification": "Tagger"}
    transitions = np.array(model.answers.get("transitions", np.zeros([size, size])), np.float32)
    return dataclasses.replace(
        model, head={**model.head, "transitions": transitions}, load=_LOAD.format(CODE),
        files={CODE: _CODE.format(**names).encode()},
        settings={
            "model_type": kind, "architectures": ["Tagger"],
            "auto_map": {auto: f"tagger.{name}" for auto, name in classes.items()},
        },
    )  # fmt: skip


def scored(checkpoint: Checkpoint, samples: Samples) -> Scorer:
    """Check the labels of ``samples``; return a function that computes the scores of answers."""
    return extraction.ExtractionScores.scorer(
        checkpoint, samples, unpack, lambda answer: [Entity(*each) for each in answer["entities"]]
    )
