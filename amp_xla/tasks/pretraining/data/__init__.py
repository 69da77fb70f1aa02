"""Raw text to packed sequences on disk, and masked batches from them."""
