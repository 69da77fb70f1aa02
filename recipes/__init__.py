"""One file, one training job."""
