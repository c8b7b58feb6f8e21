// Which algorithm computes which matrix product, as text: recorded with a training, so that one
// that is resumed computes every product as before.
//
// An algorithm is kept as cuBLASLt's own structure, byte for byte. cublasLt.h promises that it can
// be "trivially serialized and later restored for use with the same version of cuBLAS library";
// rebuilding one from its attributes (tile, stages, split-K) promises nothing of the kind.
#pragma once

#include <cublasLt.h>

#include <map>
#include <string>

namespace spillway::cuda {

struct MatmulChoices {
  // What they hold for: cuBLASLt's version and what of a GPU kernels are made for.
  std::string made_by;
  std::map<std::string, cublasLtMatmulAlgo_t> algorithms;  // by key_of(MatmulShape)

  // A line of `made_by`, then a line for each shape.
  std::string to_text() const;
  // Throws InputError when the text is not what to_text() writes.
  static MatmulChoices parse(const std::string& text);
};

// MatmulChoices::made_by of the current device and the cuBLASLt that is loaded.
std::string matmul_maker();

}  // namespace spillway::cuda
