"""Pretrained weights, read and checked before training starts. Imports no TensorFlow.

``DataError`` is raised if they are missing, damaged, or do not fit the model; it names file and
tensor.
"""
