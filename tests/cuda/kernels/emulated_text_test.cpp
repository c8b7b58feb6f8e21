// The compute stream and the copies of layers: what a text has to wait for.
#ifdef SPILLWAY_EMULATED_GPU
#include <catch2/catch.hpp>
#include <optional>

#include "exec/cuda/device/cuda_device.hpp"
#include "policies/model/scratch.hpp"
#include "tests/cuda/device_memory.hpp"
#include "tests/emulator/emulator.hpp"
#include "tests/exec/cpu/model_fixture.hpp"

namespace spillway::cuda {
namespace {

// Tokens and embedding tables, and where the tasks that take a text read and write.
class TextTasks {
 public:
  TextTasks()
      : problem_(gpt_problem(61, 1, 32, 4, 9, 2, 2)),
        unit_bytes_(static_cast<std::uint64_t>(unit_elements(problem_.model, 1)) * sizeof(float)),
        rows_(problem_.workload.tokens_per_step()),
        device_(problem_, most_bytes, most_bytes, {}),
        streams_(static_cast<CudaStreams&>(*device_.streams())) {
    std::byte* at = device_.gpu_memory().data();
    const auto take = [&](std::uint64_t bytes) {
      return std::exchange(at, at + (bytes + 255) / 256 * 256);
    };
    const auto activation =
        static_cast<std::uint64_t>(rows_ * problem_.model.hidden) * sizeof(float);
    parameters_ = take(unit_bytes_);
    output_ = take(activation);
    gradient_ = take(unit_bytes_);
    head_gradient_ = take(unit_bytes_);
    results_end_ = at;
    scratch_ = take(head_scratch_bytes(problem_));
    layer_ = take(layer_bytes);
    REQUIRE(at <= device_.gpu_memory().data() + most_bytes);
    std::byte* const host = device_.host_memory().data();
    text_ = host;
    host_layer_ = host + (1 << 20);
    losses_ = reinterpret_cast<double*>(host + (3 << 20));
    const Units units = random_parameters(problem_.model, 3);
    device_.upload(offset(parameters_), std::as_bytes(std::span(units[1])));
  }

  // A copy of a layer's size, on the lane of its own.
  void copy_layer() { device_.copy(Lane::pcie_h2d, layer_, host_layer_, layer_bytes); }

  // Issues all kinds of tasks that take a text: this one's.
  void issue(std::uint64_t seed) {
    const auto tokens = random_tokens(problem_, seed), targets = random_tokens(problem_, seed + 1);
    const Workload& workload = problem_.workload;
    streams_.stage_text({tokens.data(), targets.data(), nullptr, workload.micro_batch,
                         workload.sequence, workload.tokens_per_step()},
                        text_);
    for (const TaskKind kind :
         {TaskKind::embed_forward, TaskKind::head, TaskKind::embed_backward}) {
      Task task;
      task.kind = kind;
      task.lane = Lane::gpu_compute;
      task.micro_batch = 0;
      task.first_micro_batch = true;
      Operands o;
      o.parameters = parameters_;
      o.output = o.activation_gradient = output_;
      o.gradient = gradient_;
      o.head_gradient = head_gradient_;
      o.scratch = scratch_;
      o.text = text_;
      o.losses = losses_;
      device_.compute(task, o);
    }
  }

  // What they made, once they are done.
  std::vector<std::byte> results() {
    REQUIRE(cudaStreamSynchronize(stream()) == cudaSuccess);
    std::vector<std::byte> bytes(static_cast<std::size_t>(results_end_ - parameters_));
    device_.download(offset(parameters_), bytes);
    const auto losses = std::as_bytes(std::span(losses_, 2));
    bytes.insert(bytes.end(), losses.begin(), losses.end());
    return bytes;
  }

  cudaStream_t stream(Lane lane = Lane::gpu_compute) const { return streams_.stream(lane); }

 private:
  static constexpr std::uint64_t most_bytes = 8 << 20, layer_bytes = 1 << 20;
  std::uint64_t offset(const std::byte* at) {
    return static_cast<std::uint64_t>(at - device_.gpu_memory().data());
  }
  Problem problem_;
  std::uint64_t unit_bytes_;
  std::int64_t rows_;
  CudaDevice device_;
  CudaStreams& streams_;
  std::byte *parameters_, *output_, *gradient_, *head_gradient_, *results_end_, *scratch_, *layer_;
  std::byte *text_, *host_layer_;
  double* losses_;
};

TEST_CASE("CUDA emulated: no task that takes a text waits behind the copy of a layer") {
  emulator::reset();
  TextTasks tasks;
  tasks.issue(20);
  const auto expected = tasks.results();
  tasks.issue(10);
  const auto other = tasks.results();
  REQUIRE(other != expected);
  std::optional<emulator::HoldCopies> busy(emulator::CopyDirection::to_device);
  tasks.copy_layer();
  REQUIRE(emulator::waits_for_copies(tasks.stream(Lane::pcie_h2d)));
  // The layer is on its way all the time; embed_forward, head and embed_backward are done, with the
  // numbers of their own text.
  tasks.issue(20);
  CHECK_FALSE(emulator::waits_for_copies(tasks.stream()));
  CHECK(cudaStreamQuery(tasks.stream(Lane::pcie_h2d)) == cudaErrorNotReady);
  busy.reset();
  CHECK(tasks.results() == expected);
}

}  // namespace
}  // namespace spillway::cuda
#endif
