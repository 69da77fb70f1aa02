"""A small BERT and made-up Chinese news for the examples in this folder: nothing to download.

./amp-xla python examples/ner_crf.py                           # small random weights, a minute
./amp-xla python examples/ner_crf.py chinese_L-12_H-768_A-12   # a checkpoint's folder
"""

from __future__ import annotations

import json
import os
import random
import sys

PEOPLE = "张伟 王芳 李娜 刘洋 陈杰 杨静 赵磊 黄敏 周涛 吴霞 徐强 孙丽".split()
CITIES = "北京 上海 广州 深圳 成都 杭州 武汉 西安 南京 重庆".split()
COMPANIES = "蓝天航空 东方书店 长江银行 新星软件 红叶医院 大同大学 华丰食品 海河汽车".split()
# Kind of event -> texts, and the (subject, predicate, object) triples in them.
EVENTS = {
    "birth": (
        [
            "{person}出生于{city}，如今在{company}工作。",
            "{city}是{person}的出生地，{company}是他的单位。",
        ],
        [("{person}", "出生地", "{city}"), ("{person}", "单位", "{company}")],
    ),
    "founding": (
        ["{person}昨天在{city}创办了{company}。", "位于{city}的{company}开业，创始人是{person}。"],
        [("{company}", "创始人", "{person}"), ("{company}", "总部", "{city}")],
    ),
    "joining": (
        [
            "据报道，{person}离开{city}，加入{company}。",
            "{company}宣布：{person}从{city}来，下月上任。",
        ],
        [("{person}", "单位", "{company}")],
    ),
    "moving": (
        [
            "{company}的总部搬到{city}，{person}负责此事。",
            "{person}说，{company}明年会把总部迁往{city}。",
        ],
        [("{company}", "总部", "{city}")],
    ),
}
PREDICATES = sorted({p for _, triples in EVENTS.values() for _, p, _ in triples})


def news(count, seed):
    """Return ``count`` dicts with event, text, entities (start, end, kind) and spo_list."""
    draw, samples = random.Random(seed), []
    for _ in range(count):
        event = draw.choice(sorted(EVENTS))
        texts, triples = EVENTS[event]
        names = {
            "person": draw.choice(PEOPLE),
            "city": draw.choice(CITIES),
            "company": draw.choice(COMPANIES),
        }
        text = draw.choice(texts).format(**names)
        samples.append({
            "event": event,
            "text": text,
            "entities": [
                (text.index(name), text.index(name) + len(name) - 1, kind)
                for kind, name in sorted(names.items())
            ],
            "spo_list": [tuple(part.format(**names) for part in triple) for triple in triples],
        })  # fmt: skip
    return samples


def bert_files():
    """Return (config_path, checkpoint_path, dict_path) of the folder in sys.argv.

    Without a folder: a small configuration, None for the weights, and a vocabulary of characters.
    """
    if len(sys.argv) > 1:
        names = ("bert_config.json", "bert_model.ckpt", "vocab.txt")
        return tuple(os.path.join(sys.argv[1], name) for name in names)
    os.makedirs("small_bert", exist_ok=True)
    characters = {c for sample in news(1000, 0) for c in sample["text"]}
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted(characters)]
    config = {
        "vocab_size": len(tokens), "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": 256, "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
        "initializer_range": 0.02, "max_position_embeddings": 128, "type_vocab_size": 2,
    }  # fmt: skip
    with open("small_bert/vocab.txt", "w", encoding="utf-8") as file:
        file.write("\n".join(tokens) + "\n")
    with open("small_bert/bert_config.json", "w") as file:
        json.dump(config, file)
    return "small_bert/bert_config.json", None, "small_bert/vocab.txt"
