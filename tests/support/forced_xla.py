"""Trains the recipe classification as on a GPU where ``auto`` turns XLA on.

The first argument says where XLA fails: ``compile`` (TensorFlow 2: an operation that XLA cannot
compile), or the number of a step (an error there, if the session compiles).
"""

import sys

from amp_xla.process.exits import exit_code
from amp_xla.settings import auto
from amp_xla.training import context
from recipes import classification

FAILS = sys.argv.pop(1)


def fails(self, loss, weights):
    """Return 0."""
    from amp_xla import backend
    from amp_xla.backend import tf

    def check(number):
        options = backend.session()._config.graph_options.optimizer_options
        if options.global_jit_level > 0 and number >= int(FAILS):
            raise MemoryError("out of memory")
        return number

    if FAILS != "compile":
        return 0.0 * tf.cast(tf.py_func(check, [self.step_input], tf.int64), tf.float32)
    place = tf.where(self.step_input >= 0, tf.cast(tf.minimum(loss, 0.0), tf.int32), 0)
    return 0.0 * tf.reduce_sum(tf.slice(weights, [place], [-1]))


def text_step(self, model, inputs, objective, batches, **how):
    def failing(logits):
        loss, metrics = objective(logits)
        return loss + fails(self, loss, inputs["weights"]), metrics

    return original(self, model, inputs, failing, batches, **how)


auto.choose = lambda *_: auto.Choice(True, "forced", auto.LENGTHS)
original, context.RunContext.text_step = context.RunContext.text_step, text_step

if __name__ == "__main__":
    sys.exit(exit_code(classification.main))
