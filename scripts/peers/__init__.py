"""This project beside plain bert4keras and Hugging Face on PyTorch: same model, text and batch."""
