"""Turns text into batches: corpora and readers, labels, tokenizer, order, batching.

Nothing here imports TensorFlow. Bad input, such as a damaged file, is a ``DataError``; docstrings
do not repeat this.
"""
