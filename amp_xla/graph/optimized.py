"""Runs TensorFlow's graph optimizers on a graph, outside any session."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence

from amp_xla.backend import tf

CPU = "/job:localhost/replica:0/task:0/device:CPU:0"


def named_device(name: str, environment: Optional[Mapping[str, str]] = None) -> Any:
    """Build a grappler NamedDevice: a GPU if it has an ``environment``, else a CPU."""
    from tensorflow.core.protobuf import device_properties_pb2

    kind, frequency = ("CPU", 2000) if environment is None else ("GPU", 1400)
    device = device_properties_pb2.DeviceProperties(type=kind, frequency=frequency)
    device.environment.update(environment or {})
    return device_properties_pb2.NamedDevice(name=name, properties=device)


def optimize(graph: Any, config: Any, fetches: Sequence[str], devices: Sequence[Any]) -> Any:
    """Return the GraphDef after the passes that the ``rewrite_options`` of ``config`` choose.

    The operations ``fetches`` survive; nodes without a device are placed on the last device.
    Source: ``tensorflow/python/grappler/tf_optimizer.py``.
    """
    from tensorflow.python.grappler import cluster as grappler_cluster
    from tensorflow.python.grappler import tf_optimizer

    meta_graph = item(graph, fetches)
    for node in meta_graph.graph_def.node:
        node.device = node.device or devices[-1].name
    cluster = grappler_cluster.Cluster(devices=list(devices))
    return tf_optimizer.OptimizeGraph(config, meta_graph, cluster=cluster)


def passed(
    graph: Any,
    passes: Sequence[str],
    fetches: Sequence[str],
    gpu: Optional[Mapping[str, str]] = None,
) -> Any:
    """Return the GraphDef after grappler's ``passes`` for a CPU; with ``gpu``, for that GPU.

    For a GPU, grappler runs the passes in a single iteration.
    """
    config = tf.ConfigProto()
    options = config.graph_options.rewrite_options
    options.optimizers.extend(passes)
    options.min_graph_nodes = -1
    devices = [named_device(CPU)]
    if gpu is not None:
        options.meta_optimizer_iterations = options.ONE
        devices.append(named_device(CPU.replace("CPU", "GPU"), gpu))
    return optimize(graph, config, fetches, devices)


def item(graph: Any, fetches: Sequence[str]) -> Any:
    """Build grappler's input, a MetaGraphDef, from a graph and its fetches."""
    meta_graph = tf.MetaGraphDef()
    meta_graph.graph_def.CopyFrom(graph.as_graph_def() if hasattr(graph, "as_graph_def") else graph)
    # Grappler keeps the operations in the train_op collection.
    meta_graph.collection_def["train_op"].node_list.value.extend(fetches)
    return meta_graph
