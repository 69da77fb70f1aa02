# Print the Makefile's commands: `##@ Group` lines and `target: ... ## text` lines, in their order.
BEGIN {
    print "Usage: make <command> [RUNTIME=auto|tf1|tf2] [RECIPE=classification] [ARGS=\"...\"]"
    print "       PYTHON=<path> takes that Python, with its own TensorFlow, as it is"
}
/^##@ / { print "\n" substr($0, 5) }
/^[a-z][a-z-]*:.*## / {
    name = $0; sub(/:.*/, "", name)
    text = $0; sub(/.*## /, "", text)
    printf "  %-15s %s\n", name, text
}
