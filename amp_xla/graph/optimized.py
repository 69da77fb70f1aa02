"""Runs TensorFlow's graph optimizers on a graph, outside any session."""

from __future__ import annotations

from typing import Any, Sequence

from amp_xla.backend import tf


def named_device(name: str, kind: str, **properties: Any) -> Any:
    """Build a grappler NamedDevice, ``CPU`` or ``GPU``; ``environment`` is a dictionary."""
    from tensorflow.core.protobuf import device_properties_pb2

    environment = properties.pop("environment", {})
    device = device_properties_pb2.DeviceProperties(type=kind, **properties)
    device.environment.update(environment)
    return device_properties_pb2.NamedDevice(name=name, properties=device)


def optimize(graph: Any, config: Any, fetches: Sequence[str], devices: Sequence[Any]) -> Any:
    """Return the GraphDef after grappler.

    Args:
      config: ConfigProto whose ``rewrite_options`` choose the passes.
      fetches: names of the operations that must survive.
      devices: NamedDevices; nodes without a device are placed on the last one.

    Source: ``tensorflow/python/grappler/tf_optimizer.py``.
    """
    from tensorflow.python.grappler import cluster as grappler_cluster
    from tensorflow.python.grappler import tf_optimizer

    meta_graph = item(graph, fetches)
    for node in meta_graph.graph_def.node:
        node.device = node.device or devices[-1].name
    cluster = grappler_cluster.Cluster(devices=list(devices))
    return tf_optimizer.OptimizeGraph(config, meta_graph, cluster=cluster)


def item(graph: Any, fetches: Sequence[str]) -> Any:
    """Build grappler's input, a MetaGraphDef, from a graph and its fetches."""
    meta_graph = tf.MetaGraphDef()
    meta_graph.graph_def.CopyFrom(graph.as_graph_def() if hasattr(graph, "as_graph_def") else graph)
    # Grappler keeps the operations in the train_op collection.
    meta_graph.collection_def["train_op"].node_list.value.extend(fetches)
    return meta_graph
