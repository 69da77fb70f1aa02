"""Answer texts from exported folders, where this project is not installed.

    PYTHON answers_elsewhere.py

Each line of its input is a job: ``call``, ``folder``, ``texts`` (two texts of a pair are separated
by a tab), ``length`` and ``out``, the file .npz for the answers; perhaps ``code``, that of
docs/export.md. PYTHON has transformers, sentence-transformers and ONNX Runtime; or TensorFlow and
bert4keras, and ONNX Runtime in the job's folder ``packages``.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np

os.environ["TF_USE_LEGACY_KERAS"] = os.environ["TF_KERAS"] = "1"
MASK = "[MASK]"


def padded(rows):
    """Return ids or segments of all texts, int32 [texts, longest]."""
    result = np.zeros([len(rows), max(map(len, rows))], np.int32)
    for i, row in enumerate(rows):
        result[i, : len(row)] = row
    return result


def by_transformers(job):
    from transformers import BertTokenizerFast

    tokenizer = BertTokenizerFast.from_pretrained(job["folder"])
    sides = [list(side) for side in zip(*(text.split("\t") for text in job["texts"]))]
    encoded = tokenizer(*sides, truncation=True, max_length=job["length"])
    return padded(encoded["input_ids"]), padded(encoded["token_type_ids"])


def by_bert4keras(job):
    from bert4keras.tokenizers import Tokenizer

    folder = Path(job["folder"])
    lower = json.loads((folder / "tokenizer_config.json").read_text())["do_lower_case"]
    tokenizer = Tokenizer(str(folder / "vocab.txt"), do_lower_case=lower)
    rows = []
    for text in job["texts"]:
        sides = text.split("\t")
        if MASK in text:  # its tokenizer would split the word
            first, last = map(tokenizer.tokenize, text.split(MASK))
            sides = [[*first[:-1], MASK, *last[1:]]]
        rows.append(tokenizer.encode(*sides, maxlen=job["length"]))
    return tuple(map(padded, zip(*rows)))


def pipeline(job):
    from transformers import pipeline

    pipe = pipeline("text-classification", job["folder"], truncation=True, top_k=None)
    pairs = [dict(zip(("text", "text_pair"), text.split("\t"))) for text in job["texts"]]
    names = pipe.model.config.label2id
    rows = [{answer["label"]: answer["score"] for answer in row} for row in pipe(pairs)]
    return {"probabilities": [[row[name] for name in names] for row in rows]}


def tagger(job):
    from transformers import pipeline

    how = {"aggregation_strategy": "simple", "trust_remote_code": True}
    pipe = pipeline("token-classification", job["folder"], **how)
    found = [
        [[entity["start"], entity["end"], entity["entity_group"]] for entity in row]
        for row in pipe(job["texts"], batch_size=8)
    ]
    return {"entities": np.array(json.dumps(found))}


def documented(job):
    names = {"folder": job["folder"], "texts": job["texts"]}
    exec(job["code"], names)
    return {"logits": names["logits"].numpy(), "labels": names["labels"]}


def sentence_transformers(job):
    from sentence_transformers import SentenceTransformer

    texts = [text for side in zip(*(t.split("\t") for t in job["texts"])) for text in side]
    return {"vectors": SentenceTransformer(job["folder"]).encode(texts)}


def cross_encoder(job):
    from sentence_transformers import CrossEncoder

    pairs = [text.split("\t") for text in job["texts"]]
    return {"similarity": CrossEncoder(job["folder"]).predict(pairs)}


def transformers(job):
    import torch
    from transformers import AutoModelForMaskedLM

    ids, segments = (torch.tensor(x).long() for x in by_transformers(job))
    model = AutoModelForMaskedLM.from_pretrained(job["folder"])
    with torch.no_grad():
        out = model(ids, attention_mask=(ids > 0).long(), token_type_ids=segments)
    return masked(job, {"ids": ids.numpy(), "logits": out[0].numpy()})


def onnx(job):
    encoded = by_bert4keras if "packages" in job else by_transformers
    sys.path.append(job.get("packages", ""))
    import onnxruntime

    session = onnxruntime.InferenceSession(
        job["folder"] + "/model.onnx", providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return answers(
        job, lambda *inputs: session.run(names, dict(zip(("token_ids", "segment_ids"), inputs))),
        names, encoded(job),
    )  # fmt: skip


def savedmodel(job):
    import tensorflow as tf

    tf.compat.v1.enable_eager_execution()
    served = tf.compat.v2.saved_model.load(job["folder"]).signatures["serving_default"]
    names = sorted(served.structured_outputs)

    def run(ids, segments):
        out = served(token_ids=tf.constant(ids), segment_ids=tf.constant(segments))
        return [out[name].numpy() for name in names]

    return answers(job, run, names, by_bert4keras(job))


def answers(job, run, names, inputs):
    """Return the outputs by name, or the texts of a generator."""
    ids, segments = inputs
    if "target" in job:
        return {"generated": generated(job, run, ids)}
    return masked(job, {"ids": ids, **dict(zip(names, run(ids, segments)))})


def masked(job, found):
    """Return the outputs at [MASK], if the texts have it: the others are large."""
    if MASK in job["texts"][0]:
        with open(job["folder"] + "/vocab.txt", encoding="utf-8") as file:
            mask = file.read().split("\n").index(MASK)
        found = {name: value[found["ids"] == mask] for name, value in found.items()}
    return found


def generated(job, run, ids):
    """Return the most probable token at each place, until [SEP], int [texts, target]."""
    with open(job["folder"] + "/vocab.txt", encoding="utf-8") as file:
        end = file.read().split("\n").index("[SEP]")
    lengths = (ids > 0).sum(1)
    ids = np.pad(ids, [(0, 0), (0, job["target"])])
    places = np.arange(ids.shape[1])
    segments = (places >= lengths[:, None]).astype(np.int32)
    rows, written = np.arange(len(ids)), []
    for _ in range(job["target"]):
        shown = (places < lengths[:, None]).astype(np.int32)
        (logits,) = run(ids, segments * shown)
        written.append(logits[rows, lengths - 1].argmax(1))
        ids[rows, lengths] = written[-1]
        lengths = lengths + 1
    result = np.stack(written, 1)
    ended = np.cumsum(result == end, 1) > 0
    return np.where(ended, 0, result)


if __name__ == "__main__":
    assert "amp_xla" not in sys.modules
    for line in sys.stdin:
        each = json.loads(line)
        np.savez(each["out"], **globals()[each["call"]](each))
        print(each["out"], flush=True)
