"""Text files and corpora to labelled texts, labels and token ids."""
