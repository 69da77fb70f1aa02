"""Encoders, language models, packed rows, attention, dropout, losses, pretrained weights."""
