// Headers of XLA include this file; TensorFlow's wheel lacks it, and gpu_kernels.cc does not use it.
#pragma once
class RE2;
namespace re2 {
class StringPiece;
}
