"""Reading and optimizing GraphDefs: nodes, shapes, FLOPs, grappler passes, what was executed."""
