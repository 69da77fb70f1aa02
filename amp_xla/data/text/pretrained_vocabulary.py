"""Tokenizers of pretrained weights and of checkpoints: vocabulary and rules."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, Optional, Tuple

from amp_xla.data.text.splitting import Rules
from amp_xla.data.text.vocabulary import load_vocab
from amp_xla.errors import DataError
from amp_xla.process.progress import note

SETTINGS, WHOLE = "tokenizer_config.json", "tokenizer.json"
_HF = "hugging_face"
# Part of tokenizer.json -> the only type supported here
_PARTS = {
    "model": "WordPiece", "normalizer": "BertNormalizer", "pre_tokenizer": "BertPreTokenizer",
}  # fmt: skip
# Field of Rules -> its key in tokenizer_config.json, and in tokenizer.json's normalizer
_KEYS = {
    "lowercase": ("do_lower_case", "lowercase"),
    "strip_accents": ("strip_accents", "strip_accents"),
    "chinese": ("tokenize_chinese_chars", "handle_chinese_chars"),
}


def path(folder: str) -> str:
    """Return the file with the tokens: ``tokenizer.json`` if it exists, or ``vocab.txt``."""
    whole = os.path.join(folder, WHOLE)
    return whole if os.path.isfile(whole) else os.path.join(folder, "vocab.txt")


def read(folder: str) -> Tuple[List[str], Rules]:
    """Return the tokens in the order of their ids, and the rules."""
    source, how = path(folder), rules(folder)
    tokens = _tokens(source) if os.path.basename(source) == WHOLE else load_vocab(source)
    kind = str(json_file(os.path.join(folder, SETTINGS)).get("tokenizer_class", ""))
    if kind.startswith("RoFormer"):
        note(
            f"warning: the tokenizer of {folder} cuts Chinese text into words with jieba; here "
            "Chinese is cut into characters, so results may be worse"
        )
    return tokens, how


def rules(folder: str) -> Rules:
    """Return the tokenizer's rules; ``tokenizer_config.json`` has priority over ``tokenizer.json``.

    Hugging Face's rules apply if there is a ``tokenizer.json``, or no ``bert_config.json``.
    """
    settings_of = json_file(os.path.join(folder, SETTINGS))
    normalizer = _normalizer(os.path.join(folder, WHOLE))
    fields: Dict[str, Any] = {}
    for field, (key, other) in _KEYS.items():
        value = settings_of.get(key, (normalizer or {}).get(other))
        if value is not None and not isinstance(value, bool):
            raise DataError(f"{os.path.join(folder, SETTINGS)}: {key} is {value!r}, not a boolean")
        if value is not None:
            fields[field] = value
    google = normalizer is None and os.path.isfile(os.path.join(folder, "bert_config.json"))
    of_checkpoint = settings_of.get("rules")
    return Rules(
        hugging_face=not google if of_checkpoint is None else of_checkpoint == _HF, **fields
    )


def settings(rules: Rules) -> Dict[str, Any]:
    """Return the content of ``tokenizer_config.json``, from which ``read`` gets the rules."""
    values = {key: getattr(rules, field) for field, (key, _) in _KEYS.items()}
    return {**values, "rules": _HF if rules.hugging_face else "bert4keras"}


def _normalizer(source: str) -> Optional[Dict[str, Any]]:
    """Return the normalizer's settings in a ``tokenizer.json``; None if there is no such file."""
    whole = json_file(source)
    if not whole:
        return None
    parts = {part: whole.get(part) or {} for part in _PARTS}
    if "continuing_subword_prefix" in parts["model"]:  # old files do not name the model's type
        parts["model"].setdefault("type", _PARTS["model"])
    for part, kind in _PARTS.items():
        actual = parts[part].get("type")
        if actual != kind:
            raise DataError(f"{source}: its {part} is {actual}; only BERT's {kind} is supported")
    return dict(parts["normalizer"])


def _tokens(source: str) -> List[str]:
    """Return the tokens of a ``tokenizer.json``; unused ids get tokens that occur in no text."""
    whole = json_file(source)
    ids: Dict[str, int] = dict(whole["model"]["vocab"])
    ids.update({token["content"]: token["id"] for token in whole.get("added_tokens") or []})
    # In vocab.txt a space would end the token. Words have no spaces, so replacing it is safe.
    tokens = {number: "\u2581".join(token.split(" ")) for token, number in ids.items()}
    return [tokens.get(number, f"[none{number}]") for number in range(max(tokens, default=-1) + 1)]


def json_file(source: str) -> Dict[str, Any]:
    """Return the JSON object in a file; an empty one if there is no such file."""
    try:
        with open(source, encoding="utf-8-sig") as file:
            content = json.load(file)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"cannot read {source}: {error}") from None
    if not isinstance(content, dict):
        raise DataError(f"{source}: a JSON object is needed")
    return content
