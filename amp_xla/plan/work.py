"""The work of a training step: matrix products, bytes of other operations, parameters."""

from __future__ import annotations

from typing import NamedTuple, Sequence


class Product(NamedTuple):
    """Matrix products of one shape; ``elements`` are read and written."""

    flops: float
    elements: float
    half: bool


class Traffic(NamedTuple):
    """Bytes after the mixed-precision pass, and in float32."""

    amp: float
    full: float


class Work(NamedTuple):
    """The work of a micro-batch.

    Attributes:
      samples: rows of the batch.
      products: matrix products of the forward and backward pass.
      unfused: bytes that other operations read and write if each is a kernel.
      fused: the same if elementwise operations between products are one kernel.
      kept: bytes of activations kept from the forward to the backward pass, in float32.
      parameters: trained elements; ``variables``: trained tensors.
    """

    samples: int
    products: Sequence[Product]
    unfused: Traffic
    fused: Traffic
    kept: float
    parameters: float
    variables: int

    def scaled(self, factor: float) -> Work:
        """Return the work of a batch that is ``factor`` times as large."""
        products = [Product(p.flops * factor, p.elements * factor, p.half) for p in self.products]
        unfused, fused = (Traffic(t.amp * factor, t.full * factor) for t in self[2:4])
        samples = round(self.samples * factor)
        kept = self.kept * factor
        return Work(samples, products, unfused, fused, kept, self.parameters, self.variables)
