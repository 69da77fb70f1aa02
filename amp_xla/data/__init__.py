"""Text to batches: corpora and readers, labels, tokenizer, order, batching. No TensorFlow here.

Bad input, such as a damaged file, is a ``DataError``; docstrings do not repeat this.
"""
