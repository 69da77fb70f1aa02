"""Embedding tables whose rows are spread over ranks, with SparseOperationKit 1.x's names.

    import amp_xla.sok as sok

    sok.Init(global_batch_size=65536)
    embedding = sok.DistributedEmbedding("mean", 1024, 4, slot_num=10, max_nnz=4)

Row r of a table is only on global rank r % ranks. docs/tasks/recommendation.md lists the
differences from SparseOperationKit.
"""

from __future__ import annotations

from amp_xla.precision.compat.sok import LossScaleOptimizer, tf
from amp_xla.sok import optimizers
from amp_xla.sok.layers import All2AllDenseEmbedding, DistributedEmbedding
from amp_xla.sok.optimizers import OptimizerScope
from amp_xla.sok.ranks import Init
from amp_xla.sok.saver import Saver
from amp_xla.sok.table import split_embedding_variable_from_others

__all__ = (
    "All2AllDenseEmbedding",
    "DistributedEmbedding",
    "Init",
    "LossScaleOptimizer",
    "OptimizerScope",
    "Saver",
    "optimizers",
    "split_embedding_variable_from_others",
    "tf",
)
