"""A callback that makes Keras' ``model.fit`` a run: run folder, checkpoints, exact resume.

    model.fit(..., callbacks=[amp_xla.callbacks.Run("runs/ner", resume=True)])

Forward, backward and update are Keras'. Import this module above the code that builds the model:
then the masks of Keras' ``Dropout`` depend on the step, so that a resumed run repeats them.
"""

from amp_xla.callbacks import keras_fit
from amp_xla.callbacks.run import Run

__all__ = ("Run",)

keras_fit.install()
