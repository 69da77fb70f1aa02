"""Mixed precision and XLA for bert4keras, done right on every TensorFlow.

Importing this package does nothing to TensorFlow; ``import amp_xla.setup`` does.
"""

from amp_xla import renamed

renamed.install()

__version__ = "0.1.0"
