"""Small compiled bert4keras models, one per kind of head, and a batch for each."""

from typing import Any, List, NamedTuple

import numpy as np

from amp_xla import backend
from amp_xla.backend import K, keras, tf

BATCH, LENGTH, VOCABULARY, LABELS = 4, 24, 120, 5


class Head(NamedTuple):
    """A compiled model, and arrays for its placeholders in their order."""

    model: Any
    arrays: List[Any]

    @property
    def batch(self):
        """The arrays as for ``fit``."""
        return self.arrays[:2], self.arrays[2]


def encoder(application="encoder", **options):
    build = backend.bert4keras("models").build_transformer_model
    sizes = dict(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=64, max_position=32, hidden_act="gelu",
    )  # fmt: skip
    return build(model="bert", application=application, **{**sizes, **options})


def tokens():
    """Return token and segment ids; half of the rows end in padding."""
    random = np.random.RandomState(0)
    ids = random.randint(5, VOCABULARY, (BATCH, LENGTH))
    ids[1, 18:] = ids[3, 9:] = 0
    segments = np.zeros((BATCH, LENGTH), int)
    segments[:, 6:] = 1
    return [ids, np.where(ids > 0, segments, 0)]


def compiled(model, loss, *targets):
    # bert4keras' Adam is a thousand small operations, which take seconds to build.
    model.compile(loss=loss, optimizer=keras.optimizers.SGD(0.01))
    return Head(model, [*tokens(), *targets])


def _labels(*shape):
    return np.random.RandomState(1).randint(0, LABELS, shape)


def classifier(**options):
    base = encoder(**options)
    first = keras.layers.Lambda(lambda x: x[:, 0], name="First")(base.output)
    output = keras.layers.Dense(LABELS, activation="softmax", name="Classes")(first)
    model = keras.models.Model(base.inputs, output)
    return compiled(model, "sparse_categorical_crossentropy", _labels(BATCH, 1))


def _language_model(application, shift):
    """Return a model as in bert4keras' examples, with a Loss layer for ids and predictions."""
    base = encoder(application, with_mlm=True)

    class CrossEntropy(backend.bert4keras("layers").Loss):
        def compute_loss(self, inputs, mask=None):
            ids, segments, predicted = inputs
            ids, predicted = ids[:, shift:], predicted[:, : LENGTH - shift]
            weights = K.cast(segments[:, shift:], K.floatx())
            loss = K.sparse_categorical_crossentropy(ids, predicted)
            return K.sum(loss * weights) / K.sum(weights)

    output = CrossEntropy(2, name="Loss")([*base.inputs, base.output])
    return compiled(keras.models.Model(base.inputs, output), None)


def crf():
    base = encoder()
    layer = backend.bert4keras("layers").ConditionalRandomField(name="CRF")
    output = layer(keras.layers.Dense(LABELS, name="Tags")(base.output))
    model = keras.models.Model(base.inputs, output)
    return compiled(model, layer.sparse_loss, _labels(BATCH, LENGTH, 1))


def global_pointer():
    base = encoder()
    layers, losses = backend.bert4keras("layers"), backend.bert4keras("backend")
    output = layers.GlobalPointer(heads=3, head_size=16, name="Spans")(base.output)
    model = keras.models.Model(base.inputs, output)

    def loss(y_true, y_pred):
        flat = tf.shape(y_pred)[0] * 3
        pair = [tf.reshape(y, [flat, -1]) for y in (y_true, y_pred)]
        return tf.reduce_mean(losses.multilabel_categorical_crossentropy(*pair))

    spans = np.zeros((BATCH, 3, LENGTH, LENGTH))
    spans[:, 0, 1, 3] = spans[:, 2, 4, 4] = 1
    return compiled(model, loss, spans)


HEADS = {
    "classifier": classifier,
    "MLM": lambda: _language_model("encoder", 0),
    "LM": lambda: _language_model("lm", 1),
    "UniLM": lambda: _language_model("unilm", 1),
    # The second layer adds the masked scores of the first.
    "RealFormer": lambda: classifier(num_hidden_layers=2, residual_attention_scores=True),
    "CRF": crf,
    "GlobalPointer": global_pointer,
}


def build(name):
    """Build one head in a new graph."""
    K.clear_session()
    tf.set_random_seed(1)
    head = HEADS[name]()
    backend.session()
    return head
