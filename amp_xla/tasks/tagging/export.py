"""Export of taggers."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

import numpy as np

from amp_xla.data.text.labels import Labels
from amp_xla.export.graph import Parts, exportable
from amp_xla.export.model import LINEAR, Exportable
from amp_xla.export.text_models import dense, encoder_of, pointer
from amp_xla.models.encoders import POINTER_SIZE
from amp_xla.models.weights.pretrained import TAGGER
from amp_xla.tasks.tagging import model
from amp_xla.tasks.tagging.spans import is_flat
from amp_xla.training.checkpoint import Checkpoint

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


def tagger(config: Any, checkpoint: Checkpoint) -> Exportable:
    """Return the tagger of a run: logits of BIO tags, or scores of spans."""
    head = config.head
    names, flat = Labels.load(checkpoint.file("labels.json")).names, is_flat(head)

    def build(folder: Optional[str]) -> Parts:
        encoder = encoder_of(config, checkpoint, folder)
        built = model.tagger(config, encoder.model, len(names), 0.0)
        output, weights = built.model.output, built.model.weights
        if flat:
            tags = dense("classifier", built.model.get_layer("Tags"))
            transitions = {"transitions": built.transitions} if head == "crf" else {}
            return Parts(encoder, {"logits": output}, tags, weights, transitions)
        kernels = pointer(built.model.get_layer("Spans"))
        return Parts(encoder, {"scores": output}, kernels, weights)

    tags = [f"{start}-{name}" for name in names for start in "BI"]
    labels, kind = (("O", *tags), "ForTokenClassification") if flat else (names, None)
    formula = "vectors of all tokens" + LINEAR
    if not flat:
        layer = model.POINTERS[head]
        formula = f"bert4keras' {layer}({len(names)}, {POINTER_SIZE}) of the vectors"
    exported = exportable(
        checkpoint, build, config.batches.max_length, labels, kind=kind, formula=formula,
        task="token-classification",
    )  # fmt: skip
    return _decoding(exported) if flat else exported


def _decoding(model: Exportable) -> Exportable:
    """Return a tagger whose Hugging Face folder has the code that finds the best path."""
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
