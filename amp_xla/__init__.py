"""Mixed precision and XLA for bert4keras, on TensorFlow 1.15 and 2.x.

Importing this package does nothing to TensorFlow; ``import amp_xla.setup`` does.
"""

__version__ = "0.1.0"
