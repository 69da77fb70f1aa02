"""Options of models. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple

from typing_extensions import Annotated, Literal

from amp_xla.config import MAY_CHANGE, within
from amp_xla.errors import SettingsError
from amp_xla.models.weights import pretrained

# The vector of a text: the mean of its tokens' vectors; the vector of the first token ([CLS]); or
# this vector after the dense layer that transformers' classifiers have (BERT's pooler).
Pooling = Literal["mean", "cls", "pooler"]
HEAD = 64  # size of an attention head
POSITIONS = 512  # minimum number of position embeddings in a new model
# Name -> layers, hidden size, heads. The size of a head is 64. In the tiny model it is 32, because
# there more heads help more than wider ones.
SIZES = {"tiny": (3, 192, 6), "small": (4, 512, 8), "base": (12, 768, 12), "large": (24, 1024, 16)}


class Filling(NamedTuple):
    """A predicted token for a [MASK]; ``mask`` is the number of this [MASK] in its text, from 0."""

    mask: int
    token: str
    probability: float


@dataclasses.dataclass(frozen=True)
class GenerationOptions:
    """Text generation (runs of seq2seq)."""

    beams: Annotated[int, within(1, 64)] = 1
    """beams of beam search; 1 = greedy, the most probable token at each step"""
    top_k: Annotated[Optional[int], within(at_least=1)] = None
    """draw each token at random from this many most probable tokens; none = no limit"""
    top_p: Annotated[Optional[float], within(above=0, at_most=1)] = None
    """nucleus sampling: draw each token from the most probable tokens that together have this
    probability; 1 = all tokens. Without --top-p and --top-k, beam search chooses the tokens"""
    temperature: Annotated[float, within(above=0)] = 1.0
    """values above 1 make the probabilities of tokens more even, values below 1 less even"""
    min_tokens: Annotated[int, within(at_least=1)] = 1
    """minimum number of tokens in a generated text, including the end token"""
    seed: Annotated[int, within(0, 2**32 - 1)] = 1
    """seed for drawing tokens"""

    def __post_init__(self) -> None:
        if self.draws and self.beams > 1:
            raise SettingsError("--beams above 1 cannot be combined with --top-k or --top-p")

    @property
    def draws(self) -> bool:
        """True if tokens are drawn at random."""
        return self.top_k is not None or self.top_p is not None


@dataclasses.dataclass(frozen=True)
class EncoderOptions:
    """The encoder."""

    # May change on resume: the weights come from the run's checkpoint.
    bert: Annotated[Optional[str], MAY_CHANGE] = None
    """folder of pretrained weights: Hugging Face's format, Google's, or a pretraining run"""
    layers: Annotated[int, within(at_least=1)] = 3
    """number of transformer layers; ignored with --bert"""
    hidden: Annotated[int, within(at_least=8)] = 192
    """hidden size: up to 64 a multiple of 8, above 64 a multiple of 64; ignored with --bert"""
    dropout: Annotated[float, within(at_least=0, below=1)] = 0.1
    """share of activations and attention weights dropped in training"""
    attention_dropout: Annotated[Optional[float], within(at_least=0, below=1)] = None
    """share of attention weights dropped in training; none = --dropout"""

    def __post_init__(self) -> None:
        step = HEAD if self.hidden > HEAD else 8
        if self.hidden >= 8 and self.hidden % step:
            lower = self.hidden // step * step
            raise SettingsError(
                f"--hidden {self.hidden}: allowed is a multiple of 8 up to {HEAD}, and above it a "
                f"multiple of {HEAD}, such as {lower} or {lower + step}"
            )

    def config(self, vocab_size: int, max_length: int) -> Dict[str, Any]:
        """Return the ``bert_config.json`` of a model with random initial weights."""
        heads = max(1, self.hidden // HEAD)
        return bert_config(vocab_size, self.layers, self.hidden, heads, max_length, *self.rates)

    @property
    def rates(self) -> Tuple[float, float]:
        """Dropout rates of activations and of attention weights."""
        attention = self.attention_dropout
        return self.dropout, self.dropout if attention is None else attention

    def transformer(
        self, vocab_size: int, max_length: int, weights: bool = True, **extend: Any
    ) -> Any:
        """Build the encoder as a bert4keras model object; see ``encoders.transformer``."""
        from amp_xla.models import encoders

        config = self.config(vocab_size, max_length)
        return encoders.transformer(self.bert, config, max_length, weights, **extend)

    def classifier(
        self,
        vocab_size: int,
        classes: int,
        max_length: int,
        slots: int = 1,
        weights: bool = True,
        pooling: Pooling = "mean",
    ) -> Any:
        """Build a Keras model: token and segment ids, int [B, L] -> logits, float32 [B, classes].

        ``max_length`` and ``weights`` are ``length`` and ``weights`` of ``encoders.transformer``.
        ``slots`` is the number of texts per packed row; if it is above 1, the model has two more
        inputs, and logits are [B, slots, classes].
        """
        from amp_xla.models import encoders, packed

        extend: Dict[str, Any] = {} if slots == 1 else {"extend": packed.extended}
        extend["pooler"] = pooling == "pooler"
        encoder = self.transformer(vocab_size, max_length, weights, **extend)
        vectors = encoders.pooled(encoder, pooling, slots)
        return encoders.classifier(vectors, encoder.model.inputs, classes, self.dropout)

    def language_model(
        self, vocab_size: int, length: int, objective: str, weights: bool = True
    ) -> Any:
        """Build a ``LanguageModel`` for sequences of any length up to ``length``."""
        from amp_xla.models.language_model import LanguageModel

        config = self.config(vocab_size, length)
        return LanguageModel(config, length, objective, self.bert, weights)

    def architecture(self, vocab_size: int, max_length: int) -> bytes:
        """Return the content of the model's ``bert_config.json``."""
        from amp_xla.models.weights import google

        config = self.config(vocab_size, max_length)
        if self.bert is not None:
            config = google.pretrained(self.bert).config
        return pretrained.encoded(config)


def bert_config(
    vocab_size: int, layers: int, hidden: int, heads: int, length: int, dropout: float,
    attention_dropout: Optional[float] = None,
) -> Dict[str, Any]:  # fmt: skip
    """Return the ``bert_config.json`` of a new BERT; ``attention_dropout`` None = ``dropout``."""
    return {
        "model_type": "bert", "vocab_size": vocab_size, "hidden_size": hidden,
        "num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": 4 * hidden,
        "max_position_embeddings": max(POSITIONS, length), "type_vocab_size": 2,
        "hidden_act": "gelu", "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout if attention_dropout is None else attention_dropout,
    }  # fmt: skip


def training_flops(config: Mapping[str, Any], length: int, positions: int) -> float:
    """Return the FLOPs of a BERT language model's matrix products for one training sequence.

    The sequence has ``length`` tokens, of which ``positions`` are predicted. A multiply-add counts
    as 2; the backward pass costs two forward passes (Kaplan et al., arXiv 2001.08361, section 2.1).
    Recomputation is not counted.
    """
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    token = 4 * hidden * hidden + 2 * hidden * inner + 2 * length * hidden
    predicted = hidden * hidden + hidden * config["vocab_size"]
    return 6.0 * (config["num_hidden_layers"] * length * token + positions * predicted)


@dataclasses.dataclass(frozen=True)
class LanguageModelOptions:
    """The encoder."""

    model: Literal["tiny", "small", "base", "large"] = "tiny"
    """size as layers x hidden size: tiny 3x192, small 4x512, base 12x768, large 24x1024"""
    bert: Annotated[Optional[str], MAY_CHANGE] = None
    """folder of BERT weights to start from: Hugging Face's format, Google's, or a run"""
    dropout: Annotated[float, within(at_least=0, below=1)] = 0.0
    """share of activations and attention weights dropped; 0.1 for many epochs over little text"""
    attention_dropout: Annotated[Optional[float], within(at_least=0, below=1)] = None
    """share of attention weights dropped; none = --dropout"""

    def language_model(
        self, vocab_size: int, length: int, objective: str = "mlm", weights: bool = True,
        any_length: bool = True,
    ) -> Any:  # fmt: skip
        """Build a ``LanguageModel``; see its class."""
        from amp_xla.models.language_model import LanguageModel

        sizes = SIZES[self.model]
        config = bert_config(vocab_size, *sizes, length, self.dropout, self.attention_dropout)
        return LanguageModel(config, length, objective, self.bert, weights, any_length)


@dataclasses.dataclass(frozen=True)
class TowerOptions:
    """The embedding table and the dense tower above it."""

    tower: Literal["dlrm", "deepfm"] = "dlrm"
    """how to combine embedding vectors: dot products of pairs, or a factorization machine"""
    rows: Annotated[int, within(1, 2**40)] = 100_000
    """number of rows of the embedding table, over all ranks; each value is hashed to a row"""
    width: Annotated[int, within(at_least=1)] = 16
    """embedding size: numbers per row of the table"""
    hidden: Annotated[int, within(at_least=1)] = 128
    """width of the first dense layer; each layer after it has half the width of the one before"""
    layers: Annotated[int, within(1, 32)] = 2
    """number of dense layers above the embedding table"""

    @property
    def table_width(self) -> int:
        """Numbers per row of the table; DeepFM needs one more, the first-order weight."""
        return self.width + (self.tower == "deepfm")
