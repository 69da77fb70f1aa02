"""Tensors between the session and disk, in ``tf.train.Saver``'s format.

``Saver.save`` reads variables and writes them in one call that holds training up. Here the two
are apart: ``snapshot`` copies to host memory between two steps, ``write`` puts that copy on disk
from another thread, through a graph and session of its own. ``tf.train.Saver`` restores it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence

import numpy as np

from amp_xla import backend
from amp_xla.backend import tf

PREFIX = "tensors"


class Bundle:
    """Variables as one set of tensors, named as ``tf.train.Saver`` names them.

    Args:
      variables: what to save; two with one name are an error.

    Attributes:
      names: name of each, in order.
    """

    def __init__(self, variables: Sequence[Any]) -> None:
        self.variables = list(variables)
        self.names: List[str] = [v.op.name for v in self.variables]
        twice = {name for name in self.names if self.names.count(name) > 1}
        if twice:
            raise ValueError(f"variables share a name: {', '.join(sorted(twice))}")
        self._reads = [v.value() for v in self.variables]
        self._read: Optional[Callable[[], List[Any]]] = None
        self._saver: Optional[Any] = None
        self._writer: Optional[Callable[[str, Sequence[Any]], None]] = None

    def shapes(self) -> Dict[str, str]:
        """Name -> ``float32[21128,768]``, sorted by name."""
        return {
            name: _described(v.dtype, v.shape.as_list())
            for name, v in sorted(zip(self.names, self.variables))
        }

    def differences(self, folder: Path, everything: bool = True) -> List[str]:
        """What a checkpoint's tensors have otherwise than the variables, one line each.

        TensorFlow's own check of shapes is off in places (2.x, restoring into resource variables),
        and stops at the first where it is on.

        Args:
          folder: the checkpoint.
          everything: tensors that belong to no variable count, too.
        """
        reader = tf.train.load_checkpoint(str(folder / PREFIX))
        dtypes = reader.get_variable_to_dtype_map()
        found = {
            name: _described(dtypes[name], shape)
            for name, shape in reader.get_variable_to_shape_map().items()
        }
        wanted = self.shapes()
        names = sorted(set(wanted) | set(found)) if everything else sorted(wanted)
        return [
            f"tensor {name}: found {found.get(name, 'none')}, wanted {wanted.get(name, 'none')}"
            for name in names
            if found.get(name) != wanted.get(name)
        ]

    def snapshot(self) -> List[Any]:
        """The values between two steps as numpy arrays in host memory.

        On a CPU they may share memory with the variables: TensorFlow never writes to a tensor
        that somebody else still holds, it writes to a copy. That is not so for the old reference
        variables, which are copied here.
        """
        if self._read is None:
            self._read = backend.session().make_callable(self._reads)
        values = self._read()
        return [
            np.array(value) if v.dtype._is_ref_dtype else value
            for v, value in zip(self.variables, values)
        ]

    def write(self, folder: Path, arrays: Sequence[Any]) -> None:
        """Writes a snapshot into ``folder``; may run in any thread, one at a time.

        Raises:
          tf.errors.OpError: the disk refused.
        """
        if self._writer is None:
            self._writer = self._build_writer()
        self._writer(str(folder / PREFIX), arrays)

    def _build_writer(self) -> Callable[[str, Sequence[Any]], None]:
        graph = tf.Graph()
        with graph.as_default(), tf.device("/cpu:0"):
            prefix = tf.placeholder(tf.string, [])
            feeds = [tf.placeholder(v.dtype.base_dtype) for v in self.variables]
            slices = [""] * len(feeds)
            save = tf.raw_ops.SaveV2(
                prefix=prefix, tensor_names=self.names, shape_and_slices=slices, tensors=feeds
            )
        # One thread of its own: it must neither touch the GPU nor queue before the training step.
        config = tf.ConfigProto(
            device_count={"GPU": 0},
            intra_op_parallelism_threads=1,
            inter_op_parallelism_threads=1,
            use_per_session_threads=True,
        )
        session = tf.Session(graph=graph, config=config)

        def write(path: str, arrays: Sequence[Any]) -> None:
            session.run(save, {prefix: path, **dict(zip(feeds, arrays))})

        return write

    def restore(self, folder: Path) -> None:
        """Loads the variables from a checkpoint folder into Keras' session."""
        session = backend.session()
        if self._saver is None:
            with session.graph.as_default():
                self._saver = tf.train.Saver(dict(zip(self.names, self.variables)))
        self._saver.restore(session, str(folder / PREFIX))


def _described(dtype: Any, shape: Sequence[int]) -> str:
    return f"{dtype.base_dtype.name}{str(list(shape)).replace(' ', '')}"


def first_not_finite(names: Sequence[str], arrays: Sequence[Any]) -> Optional[str]:
    """The name of the first array with a NaN or an infinity in it, or None."""
    for name, array in zip(names, arrays):
        floating = array.dtype.kind == "f" or array.dtype.name == "bfloat16"
        if not floating or not array.size:
            continue
        values = array if array.dtype.kind == "f" else array.astype(np.float32)
        # Minimum and maximum carry NaN along and need no array of booleans.
        if not (np.isfinite(values.min()) and np.isfinite(values.max())):
            return name
    return None
