"""Encoders and heads, language models, packed rows, dropout and losses."""
