#!/bin/sh
# build.sh TENSORFLOW OUT: builds gpu_kernels against the library and headers in TensorFlow's folder.
set -e
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
g++ -std=c++17 -O1 -w -DNDEBUG -DGOOGLE_CUDA=1 \
    "-I$here" "-I$1/include" "-I$1/include/external/com_google_absl" \
    "$here/gpu_kernels.cc" -o "$2" "-L$1" -l:libtensorflow_cc.so.2 \
    -l:libtensorflow_framework.so.2 "-Wl,-rpath,$1" -Wl,--allow-shlib-undefined
