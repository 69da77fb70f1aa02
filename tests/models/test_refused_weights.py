"""Weights that cannot be used: one line that names file and tensor, before a model is built."""

import gzip
import json
import os
import pickle
import shutil
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from amp_xla.backend import K
from amp_xla.data.text.vocabulary import SPECIAL_TOKENS
from amp_xla.errors import DataError
from amp_xla.models import dropout, encoders
from amp_xla.models.weights import google, pretrained
from amp_xla.models.weights.pretrained import TOKENS
from tests.models.test_hugging_face import FOLDERS
from tests.support import google_folder
from tests.support.google_folder import cut, without

DATA, INDEX = "bert_model.ckpt.data-00000-of-00001", "bert_model.ckpt.index"
QUERY = "bert/encoder/layer_1/attention/self/query/kernel"
TABLE = "embeddings.word_embeddings.weight"
TORCH_QUERY = "bert.encoder.layer.0.attention.self.query.weight"
RENAMED = "bert.encoder.layer.0.attention.self.querry.weight"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Return intact folders in Google's and in Hugging Face's format."""
    written = google_folder.write(tmp_path_factory.mktemp("weights") / "google")
    return {"google": written, "hf": FOLDERS.with_name("hugging_face_classifiers") / "bert"}


def config(**values):
    """Return a change of the configuration; None removes a key."""

    def change(folder):
        (path,) = folder.glob("*config.json")
        merged = {**json.loads(path.read_text()), **values}
        path.write_text(json.dumps({k: v for k, v in merged.items() if v is not None}))

    return change


def no_positions(folder):
    """What transformers builds without embeddings of positions."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "position_embedding_type": None}))


def tensor(value):
    """Return a change that replaces a tensor of Google's, or removes it if ``value`` is None."""

    def change(folder):
        shutil.rmtree(str(folder))
        google_folder.write(folder, {QUERY: value})

    return change


def replaced(value, name=TORCH_QUERY):
    def change(folder):
        values = load_file(str(folder / "model.safetensors"))
        values.pop(TORCH_QUERY)
        if value is not None:
            values[name] = value
        save_file(values, str(folder / "model.safetensors"))

    return change


def pickled(value, legacy=False):
    """A pytorch_model.bin in the old format, or a plain pickle."""

    def change(folder):
        (folder / "model.safetensors").unlink()
        with open(str(folder / "pytorch_model.bin"), "wb") as file:
            for part in [0x1950A86A20F9469CFC6C, 1001, {}] if legacy else []:
                pickle.dump(part, file, 2)
            pickle.dump(value, file, 2)

    return change


def zipped(raw, storage=b""):
    """A pytorch_model.bin of today with this pickle, and a storage."""

    def change(folder):
        (folder / "model.safetensors").unlink()
        path = folder / "pytorch_model.bin"
        with zipfile.ZipFile(str(path), "w", zipfile.ZIP_STORED) as archive:
            archive.writestr("archive/data.pkl", b"\x80\x02" + raw)
            archive.writestr("archive/data/0", storage, zipfile.ZIP_DEFLATED)

    return change


def sparse(folder):
    """In the old format, a pickle of bytes that are not there."""
    (folder / "model.safetensors").unlink()
    path = folder / "pytorch_model.bin"
    path.write_bytes(b"\x80\x04\x8e" + struct.pack("<Q", 6 << 30))
    os.truncate(str(path), 7 << 30)


def view(numel=4, size=b"K\x04", stride=b"K\x01", key=b"X\x01\x00\x00\x000"):
    """The pickle of a dictionary with a tensor."""
    storage = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\n%sX\x03\x00\x00\x00cpu%stQ"
    storage %= key, b"J" + struct.pack("<i", numel)
    call = b"ctorch._utils\n_rebuild_tensor_v2\n(%sK\x00%s\x85%s\x85\x89}tR"
    return b"}X\x01\x00\x00\x00a" + call % (storage, size, stride) + b"s."


TWICE, TUPLE = b"K\x01" + b"2\x86" * 40, b"K\x01" + b"q\x00h\x00\x86" * 40  # t = (t, t)
DEEP = b")" + b"\x85" * 10**5
MANY = b"(" + b"K\x01" * 10**5 + b"tq\x01"  # a tuple of many numbers
PARAMETER = b"ctorch._utils\n_rebuild_parameter\nq\x02"
SAME = [b"\x8a\x0a" + (n * (2**61 - 1)).to_bytes(10, "little") + b"K\x01" for n in range(1, 10**4)]
PICKLES = {
    "memo": (b"}r\x00\x00\x00\x20\x85.", "dictionary of tensors"),
    "copies": (b"}" + TWICE + b"K\x01s.", "damaged"),
    "hash": (b"}" + TUPLE + b"K\x01s.", "neither text nor a small number"),
    "name": (view(key=TUPLE), "a storage without a name or a size"),
    "deep": (b"}" + DEEP + b"K\x01s.", "neither text nor a small number"),
    "deep items": (b"}(" + DEEP + b"K\x01u.", "neither text nor a small number"),
    "one hash": (b"}(" + b"".join(SAME) + b"u.", "neither text nor a small number"),
    "deep dictionary": (b"ccollections\nOrderedDict\n" + DEEP + b"\x85R.", "other arguments"),
    "arguments": (MANY + PARAMETER + (b"h\x02h\x01R" * 10**5) + b".", "other arguments"),
    "digits": (b"L" + b"9" * 10**6 + b"L\n.", "damaged"),
    "dimensions": (view(size=b"K\x01" * 9), "damaged"),
    "larger": (view(size=b"J\x00\x00\x00\x40", stride=b"K\x00"), "larger than its storage"),
    "negative": (view(stride=b"J\xff\xff\xff\xff"), "impossible shape"),
    "not there": (view(2**31 - 1), "archive/data/0"),
    "large": (b"}" + b"0" * (2 << 20), "too large"),
    "a module": (b"cos\nsystem\n.", "uses os.system"),
    "a state": (PARAMETER + b"}X\x08\x00\x00\x00__code__K\x01sb.", "dictionary of tensors"),
}
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 409\n"


def pointer(folder):
    (folder / "model.safetensors").write_text(POINTER)


def pipe(folder):
    (folder / "model.safetensors").unlink()
    os.mkfifo(str(folder / "model.safetensors"))


def long_header(folder):
    path = folder / "model.safetensors"
    path.write_bytes((1 << 40).to_bytes(8, "little") + path.read_bytes()[8:])
    os.truncate(str(path), (1 << 40) + 8)


class Command:
    def __reduce__(self):
        return os.system, ("touch $OLDPWD/ran; touch ran",)


INTEGERS, NAN = np.zeros((16, 16), np.int32), np.full((16, 16), np.nan, np.float32)
SQUARE = np.zeros([16, 16], np.float32)
GOOGLE = {
    "truncated": (cut(DATA, 0.5), ("bert_model.ckpt", "tensor", "damaged")),
    "index truncated": (cut(INDEX, 0.5), (INDEX, "damaged")),
    "no data": (without(DATA), (DATA, "exists, but not")),
    "no config": (without(google_folder.NAME), ("has no bert_config.json, config.json or albert",)),
    "not JSON": (cut(google_folder.NAME, 0.5), ("cannot use", google_folder.NAME)),
    "no hidden size": (config(hidden_size=None), ("hidden_size is missing",)),
    "layers as text": (config(num_hidden_layers="2"), ('num_hidden_layers is "2"',)),
    "heads 3": (config(num_attention_heads=3), ("num_attention_heads 3", "hidden_size 16")),
    "unknown act": (config(hidden_act="gelo"), ('hidden_act is "gelo"',)),
    "layers 3": (config(num_hidden_layers=3), ("num_hidden_layers 3", "has 2 layers", "layer_2/")),
    "no tensor": (tensor(None), ("bert_model.ckpt", "has no tensor", QUERY)),
    "integers": (tensor(INTEGERS), ("bert_model.ckpt", QUERY, "is int32", "float32")),
    "not a number": (tensor(NAN), ("bert_model.ckpt", QUERY, "NaN")),
    "hidden 32": (config(hidden_size=32), (TOKENS, "[20, 16]", "[20, 32]")),
}  # fmt: skip
HUGGING_FACE = {
    "renamed": (replaced(SQUARE, RENAMED), ("unused tensor", RENAMED)),
    "missing": (replaced(None), ("model.safetensors has no tensor", TORCH_QUERY)),
    "wrong shape": (replaced(SQUARE[1:]), (TORCH_QUERY, "is [15, 16]", "needs [16, 16]")),
    "header cut": (cut("model.safetensors", 0.01), ("model.safetensors is truncated",)),
    "code": (pickled({"a": Command()}, legacy=True), ("uses posix.system", "nothing but tensors")),
    "code at once": (pickled(Command()), ("uses posix.system",)),
    "no weights": (without("model.safetensors"), ("model.safetensors or pytorch_model.bin",)),
    "roberta": (config(model_type="roberta"), ('model_type is "roberta"', "allowed: bert, albert")),
    "relative": (config(position_embedding_type="relative_key"), ("position_embedding_type",)),
    "no positions": (no_positions, ("position_embedding_type is null; allowed: absolute",)),
    "epsilon": (config(layer_norm_eps=-1), ("layer_norm_eps is -1",)),
    "a million layers": (config(num_hidden_layers=10**6), ("num_hidden_layers is 1000000",)),
    "10^30 layers": (config(num_hidden_layers=10**30), ("num_hidden_layers is 1e+30",)),
    "too wide": (config(hidden_size=2**14), ("more than", "parameters", "weights have only")),
    "a pointer": (pointer, ("model.safetensors", "git lfs pull")),
    **{name: (zipped(raw), ("pytorch_model.bin", words)) for name, (raw, words) in PICKLES.items()},
    "a bomb": (zipped(view(2**26), bytes(1 << 28)), ("is compressed",)),
    "sparse": (sparse, ("pytorch_model.bin", "damaged")),
    "a pipe": (pipe, ("model.safetensors", "not a regular file")),
    "long header": (long_header, ("model.safetensors is truncated or damaged",)),
    "of two kinds": (config(model_type="albert", embedding_size=8), ("has no tensor bert.",)),
}  # fmt: skip


CASES = {**GOOGLE, **HUGGING_FACE}
BY_TENSORFLOW = ("truncated", "index truncated", "no tensor", "integers")  # its readers' errors


@pytest.mark.parametrize(
    "case", [pytest.param(x, marks=[pytest.mark.once] * (x not in BY_TENSORFLOW)) for x in CASES]
)
def test_what_is_wrong_with_a_folder_is_one_line(case, folders, tmp_path):
    change, words = CASES[case]
    folder = tmp_path / "bert"
    shutil.copytree(str(folders["google" if case in GOOGLE else "hf"]), str(folder))
    change(folder)
    K.clear_session()
    with pytest.raises(DataError) as caught, dropout.inference():
        encoders.transformer(str(folder), length=16)
    message = str(caught.value)
    assert "\n" not in message and str(folder) in message
    for word in words:
        assert word in message
    assert not list(tmp_path.rglob("ran")) and not Path("ran").exists()


@pytest.mark.once
def test_damaged_files_of_pytorch_and_lost_parts(tmp_path):
    def refused(folder, words):
        with pytest.raises(DataError, match=words), dropout.inference():
            K.clear_session()
            encoders.transformer(str(folder))

    for name in ("bert_zip", "bert_old", "bert"):
        shutil.copytree(str(FOLDERS / name), str(tmp_path / name))
    for name in ("bert_zip", "bert_old"):
        path = tmp_path / name / "pytorch_model.bin"
        whole = path.read_bytes()
        for keep in (0.2, 0.97):
            path.write_bytes(whole[: int(len(whole) * keep)])
            refused(tmp_path / name, "pytorch_model.bin.* (damaged|truncated)")
        path.write_bytes(whole)
    table = google.pretrained(str(tmp_path / "bert_zip")).stored()[TABLE].read().tobytes()
    data = bytearray((tmp_path / "bert_zip" / "pytorch_model.bin").read_bytes())
    data[data.index(table)] ^= 1
    (tmp_path / "bert_zip" / "pytorch_model.bin").write_bytes(bytes(data))
    refused(tmp_path / "bert_zip", f"pytorch_model.bin: tensor {TABLE} is damaged")
    (part, *_) = sorted((tmp_path / "bert").glob("model-*.safetensors"))
    part.unlink()
    refused(tmp_path / "bert", f"index.json names {part.name}, which is not in")


def read(folder, language_model=False):
    opened = google.pretrained(str(folder))
    return opened.take(google_folder.tensors(opened.config, language_model))


def test_usable_weights_are_read_and_unused_ones_named(folders, tmp_path, capfd):
    folder = folders["google"]
    values = read(folder, language_model=True)
    assert {value.dtype for value in values.values()} == {np.dtype(np.float32)}
    assert capfd.readouterr().err == ""
    read(folder)
    unused = f"{folder / 'bert_model.ckpt'}: not used: cls/predictions (5)\n"
    assert capfd.readouterr().err == unused
    with pytest.raises(DataError, match="vocab_size 20, but the vocabulary has 21 tokens"):
        google.pretrained(str(folder)).check_sizes(21, None)
    # Half precision is cast when it is read. An encoder needs no head.
    changes = {QUERY: np.zeros((16, 16), np.float16), "cls/predictions/output_bias": None}
    half = google_folder.write(tmp_path / "half", changes)
    read(half)
    with pytest.raises(DataError, match="cls/predictions/output_bias"):
        read(half, language_model=True)


@pytest.mark.once
@pytest.mark.parametrize(
    "name, content, words",
    [
        ("tokenizer.json", {"added_tokens": [{"content": "x", "id": 10**12}]}, "id of x is 10"),
        ("tokenizer.json", {"added_tokens": [{"content": 5, "id": 9}]}, "content is a whole"),
        ("tokenizer.json", {"model": {"type": "WordPiece", "vocab": {"a": -1}}}, "id of a is -1"),
        ("tokenizer.json", {"model": {"type": "WordPiece", "vocab": [[1, 2]]}}, "cannot read"),
        ("vocab.txt", gzip.compress(bytes(1 << 25)), "larger than"),
        ("vocab.txt", POINTER.encode(), "git lfs pull"),
        (google_folder.NAME, "{}", "vocab_size is missing"),
        ("vocab.txt", "".join(f"{t}\n" for t in [*SPECIAL_TOKENS, *range(99)]), "104 tokens, but"),
    ],
)
def test_the_tokenizer_is_checked_before_texts_are_read(folders, tmp_path, name, content, words):
    folder = tmp_path / "w"
    shutil.copytree(str(folders["google"]), str(folder))
    pretrained.check(str(folder))
    if isinstance(content, dict):
        parts = {"normalizer": "BertNormalizer", "pre_tokenizer": "BertPreTokenizer"}
        parts = {name: {"type": kind} for name, kind in parts.items()}
        content = json.dumps({**parts, "model": {"type": "WordPiece", "vocab": {}}, **content})
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=f"^--bert {folder}: .*{words}"):
        pretrained.check(str(folder))


@pytest.mark.once
def test_published_keys_that_no_model_reads(tmp_path):
    """NEZHA's ``embedding_size`` and null; Hugging Face's cache consists of links."""
    shutil.copytree(str(FOLDERS / "nezha"), str(tmp_path / "blobs"))
    path = tmp_path / "blobs" / "config.json"
    sizes = dict.fromkeys(["type_vocab_size", "max_position_embeddings", "layer_norm_eps"])
    path.write_text(json.dumps({**json.loads(path.read_text()), "embedding_size": 128, **sizes}))
    (tmp_path / "snapshot").mkdir()
    for path in (tmp_path / "blobs").iterdir():
        (tmp_path / "snapshot" / path.name).symlink_to(f"../blobs/{path.name}")
    K.clear_session()
    with dropout.inference():
        built = encoders.transformer(str(tmp_path / "snapshot"), length=8)
    assert K.int_shape(built.model.output)[-1] == 16
