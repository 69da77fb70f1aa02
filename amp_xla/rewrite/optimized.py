"""Runs TensorFlow's graph optimizers on a graph, outside any session, and returns the result."""

from __future__ import annotations

from typing import Any, Sequence

from amp_xla.backend import tf


def named_device(name: str, kind: str, **properties: Any) -> Any:
    """A grappler NamedDevice; ``kind`` is CPU or GPU, ``properties`` as in DeviceProperties."""
    from tensorflow.core.protobuf import device_properties_pb2

    environment = properties.pop("environment", {})
    device = device_properties_pb2.DeviceProperties(type=kind, **properties)
    device.environment.update(environment)
    return device_properties_pb2.NamedDevice(name=name, properties=device)


def optimize(graph: Any, config: Any, fetches: Sequence[str], devices: Sequence[Any]) -> Any:
    """The GraphDef after grappler.

    Args:
      graph: tf.Graph.
      config: ConfigProto whose ``rewrite_options`` say which passes run.
      fetches: names of the operations that must survive.
      devices: NamedDevices; nodes without a device are placed on the last one.

    Source: ``tensorflow/python/grappler/tf_optimizer.py``.
    """
    from tensorflow.python.grappler import cluster as grappler_cluster
    from tensorflow.python.grappler import tf_optimizer

    meta_graph = tf.train.export_meta_graph(graph=graph)
    for node in meta_graph.graph_def.node:
        node.device = node.device or devices[-1].name
    # Grappler keeps what the train_op collection names.
    del meta_graph.collection_def["train_op"].node_list.value[:]
    meta_graph.collection_def["train_op"].node_list.value.extend(fetches)
    cluster = grappler_cluster.Cluster(devices=list(devices))
    return tf_optimizer.OptimizeGraph(config, meta_graph, cluster=cluster)
