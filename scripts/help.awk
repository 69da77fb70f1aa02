# Print the Makefile's `##@ Group` lines and `target: ... ## text` lines, in their order.
BEGIN {
    print "Usage: make <target> [RUNTIME=auto|tf1|tf2|nvtf1|jax] [RECIPE=classification] [ARGS=\"...\"]"
    print "       PYTHON=<path> uses a Python that has TensorFlow, unchanged"
    print "       ./amp-xla lists the commands: predict, inspect, doctor and others\n"
}
/^##@ / { print "\n" substr($0, 5) }
/^[a-z][a-z-]*:.*## / {
    name = $0; sub(/:.*/, "", name)
    text = $0; sub(/.*## /, "", text)
    printf "  %-14s %s\n", name, text
}
