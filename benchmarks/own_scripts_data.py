"""Small data and random weights in the formats that bert4keras' example scripts read."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional

import numpy as np

WORDS = (
    "今天 天气 不错 我们 去 公园 散步 北京 是 中国 的 首都 他 喜欢 读书 学校 在 河边 "
    "老师 讲 了 一个 故事 孩子 们 听 得 入迷 "
    "火车 开往 上海 苹果 很 甜 价格 便宜 手机 坏 了 明天 再 来"
).split()
BERTS = (
    "chinese_L-12_H-768_A-12", "chinese_roberta_wwm_ext_L-12_H-768_A-12",
    "chinese_simbert_L-12_H-768_A-12", "chinese_wwm_L-12_H-768_A-12", "uncased_L-12_H-768_A-12",
    "uer/mixed_corpus_bert_base_model",
)  # fmt: skip
SHAPE: Dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "max_position_embeddings": 512, "type_vocab_size": 2, "hidden_act": "gelu",
}  # fmt: skip


def write(root: Path, datasets: Path, texts: Iterable[str]) -> None:
    """Write everything that the scripts read.

    Args:
      root: folder in place of ``/root``.
      datasets: folder of the data that the scripts read from their working directory.
      texts: the scripts, whose characters the vocabulary has too.
    """
    random.seed(1)
    _write_labelled(root, datasets)
    _write_questions(root)
    _write_sequences(root)
    _write_captions(root / "caption" / "coco")
    _write_weights(root / "kg" / "bert", sorted(set("".join([*WORDS, *texts]))))


def _sentence(words: int = 12) -> str:
    return "".join(random.choice(WORDS) for _ in range(words)) + "。"


def _text(path: Path, text: str, encoding: str = "utf-8") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding=encoding)


def _json_lines(path: Path, rows: Iterable[Any]) -> None:
    _text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def _write_labelled(root: Path, datasets: Path) -> None:
    for part in ("train", "valid", "test"):
        pairs = [f"{_sentence()}\t{_sentence()}\t{i % 2}\n" for i in range(14)]
        _text(datasets / "lcqmc" / f"lcqmc.{part}.data", "".join(pairs))
        rows = [f"{_sentence()}\t{i % 2}\n" for i in range(14)]
        _text(datasets / "sentiment" / f"sentiment.{part}.data", "".join(rows))
    for part in ("train", "dev"):
        texts = [{"label": str(random.randrange(119)), "sentence": _sentence()} for _ in range(14)]
        _json_lines(root / f"CLUE-master/baselines/CLUEdataset/iflytek/{part}.json", texts)


def _write_questions(root: Path) -> None:
    questions: List[Dict[str, Any]] = [
        {
            "id": f"Q{i}",
            "question": "哪里是首都",
            "passages": [
                {"answer": "北京", "passage": f"北京{_sentence()}"},
                {"answer": "", "passage": _sentence()},
            ],
        }
        for i in range(12)
    ]
    for name in ("WebQA", "SogouQA"):
        _text(root / f"qa_datasets/{name}.json", json.dumps(questions, ensure_ascii=False))
    for part in ("train", "valid", "test"):
        rows = [
            {
                "original_text": f"有{i}个苹果，又买了2个？",
                "equation": f"x={i}+2",
                "ans": str(i + 2),
            }
            for i in range(1, 15)
        ]
        _json_lines(root / f"ape210k/{part}.ape.json", rows)
    facts = [("中国", "首都", "北京"), ("北京", "国家", "中国")]
    spoes = [{"subject": s, "predicate": p, "object": o} for s, p, o in facts]
    for part in ("train", "dev"):
        texts = [{"text": f"北京是中国的首都{_sentence(4)}", "spo_list": spoes} for _ in range(14)]
        _json_lines(root / f"kg/datasets/{part}_data.json", texts)
    _json_lines(root / "kg/datasets/all_50_schemas", [{"predicate": p} for _, p, _ in facts])


def _write_sequences(root: Path) -> None:
    novel = "".join(f"\u3000\u3000{_sentence(3)}{_sentence(3)}\r\n" for _ in range(30))
    _text(root / "金庸/书/1.txt", novel, "gbk")
    games = [{"fen": "", "iccs": "h2e2h9g7h0g2g6g5b0c2i9h9", "items": {}} for _ in range(14)]
    _json_lines(root / "qipu.json", games)
    for i in range(14):
        _text(root / f"thuctc/THUCNews/体育/{i}.txt", f"{_sentence(3)}\n{_sentence(20)}")
    words = ["  ".join(random.choice(WORDS) for _ in range(8)) + "\n" for _ in range(16)]
    _text(root / "icwb2-data/training/pku_training.utf8", "".join(words))
    for part in ("train", "val", "test"):
        titles = [f"{_sentence(3)}\t{_sentence()}\n" for _ in range(6)]
        _text(root / f"csl/{part}.tsv", "".join(titles))
    for part in ("train", "dev", "test"):
        tagged = [
            "北 B-LOC\n京 I-LOC\n"
            + "".join(f"{c} O\n" for c in _sentence(3))
            + "李 B-PER\n明 I-PER\n\n"
            for _ in range(6)
        ]
        path = root / f"ner/china-people-daily-ner-corpus/example.{part}"
        _text(path, "".join(tagged))


def _write_captions(folder: Path) -> None:
    import cv2

    for part in ("train", "val"):
        images: List[Dict[str, Any]] = []
        notes: List[Dict[str, Any]] = []
        (folder / f"{part}2014").mkdir(parents=True, exist_ok=True)
        for i in range(6):
            pixels = np.random.RandomState(i).randint(0, 255, (40 + 10 * i, 60, 3), dtype=np.uint8)
            cv2.imwrite(str(folder / f"{part}2014" / f"{i}.jpg"), pixels)
            images.append({"id": i, "file_name": f"{i}.jpg", "coco_url": ""})
            notes.append({"image_id": i, "caption": f"a train on track {i}"})
        document = json.dumps({"images": images, "annotations": notes})
        _text(folder / "annotations" / f"captions_{part}2014.json", document)


def _write_weights(folder: Path, characters: List[str]) -> None:
    chinese = [c for c in characters if "\u4e00" <= c <= "\u9fff"]
    plain = [chr(c) for c in range(33, 127) if not chr(c).isupper()]
    vocabulary = ["[PAD]", *(f"[unused{i}]" for i in range(1, 100))]
    vocabulary += ["[UNK]", "[CLS]", "[SEP]", "[MASK]", *plain, *"，。！？；：、“”"]
    vocabulary += [*(f"##{c}" for c in plain if c.isalnum()), *chinese]
    heads: Dict[str, Any] = {"with_pool": True, "with_nsp": True, "with_mlm": True}
    for name in BERTS:
        _model(folder / name, "bert_config.json", "bert_model.ckpt", vocabulary, **heads)
    _model(
        folder / "chinese_nezha_gpt_L-12_H-768_A-12", "config.json", "gpt.ckpt", vocabulary,
        with_mlm=True,
    )  # fmt: skip
    _model(
        folder / "albert_small_zh_google", "albert_config.json", "albert_model.ckpt", vocabulary,
        {"embedding_size": 16}, model="albert", with_pool=True, with_mlm=True,
    )  # fmt: skip
    _model(
        folder / "gpt2_ml", "config.json", "model.ckpt-100000", vocabulary, model="gpt2_ml"
    )  # fmt: skip
    corpus = folder / "sentences.txt"
    _text(corpus, "\n".join([*(_sentence() for _ in range(300)), *chinese, " ".join(plain)]))
    cpm = folder / "CPM_LM_2.6B_TF"
    size = _pieces(corpus, cpm / "chinese_vocab.model", ["<cls>", "\u2582", "\u2583"])
    changes: Dict[str, Any] = {"vocab_size": size, "max_position_embeddings": 1024}
    _model(cpm, "config.json", "model.ckpt", [], changes, model="gpt2")
    size = _pieces(corpus, folder / "mt5" / "sentencepiece_cn.model", [])
    _text(folder / "mt5" / "sentencepiece_cn_keep_tokens.json", json.dumps(list(range(size))))
    changes = {
        "vocab_size": size, "hidden_act": ["gelu", "linear"], "attention_head_size": 16,
        "max_position_embeddings": None,
    }  # fmt: skip
    name = "mt5_base_config.json"
    _model(folder / "mt5/mt5_base", name, "model.ckpt-1000000", [], changes, model="mt5.1.1")


def _pieces(corpus: Path, target: Path, symbols: List[str]) -> int:
    """Train a SentencePiece model; return its number of tokens."""
    import sentencepiece

    target.parent.mkdir(parents=True, exist_ok=True)
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(target.with_suffix("")), vocab_size=1400,
        character_coverage=1.0, user_defined_symbols=symbols, pad_id=0, eos_id=1, unk_id=2,
        bos_id=-1, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    processor = sentencepiece.SentencePieceProcessor()
    processor.load(str(target))
    return int(processor.get_piece_size())


def _model(
    folder: Path,
    config: str,
    checkpoint: str,
    vocabulary: List[str],
    changes: Optional[Dict[str, Any]] = None,
    **options: Any,
) -> None:
    """Write configuration, checkpoint and vocabulary of a random model."""
    from amp_xla import backend
    from amp_xla.models.weights import google

    K = backend.K
    K.clear_session()
    shape = {**SHAPE, "vocab_size": len(vocabulary), **(changes or {})}
    _text(folder / config, json.dumps(shape))
    if vocabulary:
        _text(folder / "vocab.txt", "".join(f"{token}\n" for token in vocabulary))
    build = backend.bert4keras("models").build_transformer_model
    model = build(str(folder / config), return_keras_model=False, **options)
    values: Dict[str, Any] = {}
    for layer, names in model.variable_mapping().items():
        if layer in model.layers:
            arrays = K.batch_get_value(model.layers[layer].trainable_weights)
            with backend.tf.Graph().as_default():  # bert4keras turns some matrices
                for name, array in zip(names, arrays):
                    values[name] = np.asarray(model.create_variable(name, array)[1])
    google.write_tensors(str(folder / checkpoint), values)
