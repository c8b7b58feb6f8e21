// By which algorithms the device computes matrix products: settled before the first step, once it
// has all its memory and none of it is used yet.
//
// Not during the first steps, with the operands of training: there the copies of other lanes would
// disturb the measurements, a product that adds to its result would have to be made good, and the
// record that a commit of step 1 carries would not be complete.
#include "exec/cuda/device/cuda_device.hpp"
#include "exec/cuda/device/launch.hpp"

namespace spillway::cuda {

std::string CudaDevice::settle_algorithms() {
  const std::optional<std::string>& recorded = options_.recorded_algorithms;
  if (recorded && recorded->empty()) return "";
  const auto settle = [&](const auto& model) {
    const std::uint64_t bytes = model->rehearsal_bytes() + MatmulTuning::memory_bytes;
    // A schedule's arena, with what lies behind it, has room for it. What is made for the
    // measurement of one kernel may have less, and so may a stage of a single layer whose backward
    // is in two passes: then it is taken beside it, for a moment.
    const Memory beside = bytes > arena_bytes_ + rehearsal_bytes(problem_)
                              ? take(bytes, "choosing how to compute matrix products")
                              : Memory();
    std::byte* const memory = beside ? beside.get() : arena_.get();
    std::byte* const workspace =
        ModelWorkspace::carve(problem_, reserved_.get() + parts_.model).matmul;
    MatmulTuning tuning(memory, workspace, streams_.stream(Lane::gpu_compute));
    const MatmulChoices choices = recorded ? MatmulChoices::parse(*recorded) : MatmulChoices();
    if (recorded) model->matmul().use(&choices);
    if (!recorded && options_.tunes_products) model->matmul().tune(&tuning);
    model->rehearse(memory + MatmulTuning::memory_bytes);
    model->matmul().use(nullptr);
    model->matmul().tune(nullptr);
    SPILLWAY_CUDA(cudaMemset(memory, poison, bytes));
    SPILLWAY_CUDA(cudaDeviceSynchronize());
    return recorded ? *recorded : model->matmul().choices().to_text();
  };
  return std::visit(settle, model_);
}

}  // namespace spillway::cuda
