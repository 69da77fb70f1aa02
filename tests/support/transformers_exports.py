"""Run exported folders in transformers.

    PYTHON -m tests.support.transformers_exports FOLDER...

PYTHON has PyTorch and transformers (benchmarks/peers.txt). A folder may have ``asked.npz``, token
and segment ids, and ``texts.json``. ``found.npz`` gets the vectors or the logits of words, and for
texts the ids, and of a classifier the logits by the code of docs/export.md, or the probabilities by
``pipeline``; for sentence-transformers' folders the vectors by the modules that they name.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np


def code():
    page = (Path(__file__).resolve().parents[2] / "docs" / "export.md").read_text(encoding="utf-8")
    return re.findall(r"<!-- run: transformers -->\n```python\n(.*?)```", page, re.DOTALL)[0]


def found(folder):
    import torch
    import transformers as hf

    config = json.loads((folder / "config.json").read_text())
    head = re.findall(r"For[A-Z]\w+|$", config["architectures"][0])[0]  # none in RoFormerModel
    masked, kind = head == "ForMaskedLM", getattr(hf, f"AutoModel{head}")
    result = {}
    if (folder / "asked.npz").exists():
        asked = np.load(folder / "asked.npz")
        model, info = kind.from_pretrained(folder, output_loading_info=True)
        new = [n for n in info["missing_keys"] if "pooler" not in n and "embed_positions" not in n]
        assert not new and not info["unexpected_keys"], info
        ids, segments = (torch.tensor(asked[name]).long() for name in ("ids", "segments"))
        with torch.no_grad():
            out = model.eval().float()(
                ids, attention_mask=(ids > 0).long(), token_type_ids=segments
            )
        result["out"] = (out.logits if head else out.last_hidden_state).numpy()
    if (folder / "texts.json").exists():
        texts = json.loads((folder / "texts.json").read_text())
        tokenizer = hf.AutoTokenizer.from_pretrained(folder)
        result["ids"] = np.array(tokenizer(texts, padding=True)["input_ids"])
        if (folder / "modules.json").exists():
            kinds = [
                x["type"].split(".")[-1] for x in json.loads((folder / "modules.json").read_text())
            ]
            assert kinds == ["Transformer", "Pooling", "Normalize"]
            pooling = json.loads((folder / "1_Pooling" / "config.json").read_text())
            assert [key for key in pooling if pooling[key] is True] == ["pooling_mode_mean_tokens"]
            inputs = tokenizer(texts, padding=True, return_tensors="pt")
            mask = inputs["attention_mask"][..., None]
            with torch.no_grad():
                vectors = kind.from_pretrained(folder)(**inputs).last_hidden_state
            mean = (vectors * mask).sum(1) / mask.sum(1)
            result["vectors"] = torch.nn.functional.normalize(mean).numpy()
        elif head == "ForSequenceClassification":
            pipe = hf.pipeline("text-classification", str(folder), top_k=None, truncation=True)
            pairs = [dict(zip(("text", "text_pair"), text.split("\t"))) for text in texts]
            answers = [{x["label"]: x["score"] for x in row} for row in pipe(pairs)]
            result["scores"] = np.array([[row[x] for x in config["label2id"]] for row in answers])
        elif masked:
            with torch.no_grad():
                out = kind.from_pretrained(folder)(**tokenizer(texts, return_tensors="pt"))
            result["out"] = out.logits.numpy()
        else:
            names = {"folder": str(folder), "texts": texts}
            exec(code(), names)
            result["logits"], result["labels"] = names["logits"].numpy(), np.array(names["labels"])
    return result


if __name__ == "__main__":
    for name in sys.argv[1:]:
        np.savez(Path(name) / "found.npz", **found(Path(name)))
