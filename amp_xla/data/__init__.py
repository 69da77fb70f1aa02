"""Text to batches: corpora and readers, labels, tokenizer, order, batching. No TensorFlow here."""
