"""Turns text files and corpora into labelled texts, labels and token ids."""
