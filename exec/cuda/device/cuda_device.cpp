#include "exec/cuda/device/cuda_device.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "exec/cuda/device/launch.hpp"
#include "exec/cuda/device/pinned_memory.hpp"
#include "policies/machine/gpu_workspaces.hpp"

namespace spillway::cuda {

namespace {

constexpr std::uint64_t staging_bytes = std::uint64_t{16} << 20;

static_assert(sizeof(AdamConstants) == offsetof(AdamNumbers, skip),
              "the host stages the one, kernels read the other");

std::size_t aligned(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

UnitRanges ranges_of(const std::vector<TensorLayout>& layout) {
  UnitRanges ranges;
  for (const TensorLayout& tensor : layout) {
    if (!tensor.trained) continue;
    SPILLWAY_ASSERT(ranges.count < UnitRanges::most);
    ranges.range[ranges.count++] = {tensor.offset, tensor.offset + tensor.rows * tensor.columns,
                                    tensor.decay};
  }
  return ranges;
}

ClipRule rule_of(const Workload& workload) {
  ClipRule rule;
  rule.limit = workload.clip.limit;
  rule.skips_nonfinite = workload.on_nonfinite == OnNonFinite::skip;
  switch (workload.clip.scope) {
    case ClipScope::off:
      rule.kind = ClipKind::off;
      break;
    case ClipScope::global:
      rule.kind = ClipKind::global;
      break;
    case ClipScope::layer:
      rule.kind = ClipKind::layer;
      break;
  }
  return rule;
}

// Makes `device` this thread's, before the first allocation.
std::string open_device(int device) {
  int count = 0;  // left unwritten on error
  SPILLWAY_CUDA(cudaGetDeviceCount(&count));
  if (device < 0 || device >= count) {
    throw InputError(Setting{"gpu", std::to_string(device)} +
                         fmt::format(": there are {} CUDA devices, numbered from 0", count),
                     "choose one of those that nvidia-smi lists");
  }
  SPILLWAY_CUDA(cudaSetDevice(device));
  cudaDeviceProp properties;
  SPILLWAY_CUDA(cudaGetDeviceProperties(&properties, device));
  if (properties.major < 8) {
    throw InputError(fmt::format("{} has compute capability {}.{}; bf16 needs 8.0 or later",
                                 properties.name, properties.major, properties.minor),
                     "use a GPU of the Ampere generation or later, or " + Setting{"device", "cpu"});
  }
  return fmt::format("cuda ({})", properties.name);
}

AttentionKernels attention_for(const Problem& problem, const std::string& wanted) {
  const ModelSpec& model = problem.model;
  if (wanted == "wgmma" && problem.workload.precision == Precision::fp32)
    throw InputError("SPILLWAY_CUDA_ATTENTION=wgmma: these kernels compute in bf16, not in fp32",
                     "unset it");
  if (model.heads < 1) return AttentionKernels::mma_sync;  // which the model's check refuses
  return choose_attention(wanted, {model.width_of_head()}, model.window);
}

AnyModel make_model(const Problem& problem, std::byte* workspace, cudaStream_t stream,
                    AttentionKernels attention, GeluBackward gelu_backward) {
  const ModelWorkspace carved = ModelWorkspace::carve(problem, workspace);
  if (problem.workload.precision == Precision::fp32) {
    return make_model_cuda<float>(problem, carved, stream, AttentionKernels::mma_sync,
                                  gelu_backward);
  }
  return make_model_cuda<bf16>(problem, carved, stream, attention, gelu_backward);
}

// The result of `work`, whose time is added to `seconds`.
template <class Work>
auto timed(double& seconds, const Work& work) {
  const auto began = std::chrono::steady_clock::now();
  auto result = work();
  seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  return result;
}

// Says "WHAT: 12 of 96 GB, 9 s left", the time by the pace so far.
MemoryProgress progress_of(const std::function<void(const std::string&)>& say, const char* what) {
  if (!say) return {};
  return [say, what, began = std::chrono::steady_clock::now()](std::uint64_t done,
                                                               std::uint64_t total) {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - began;
    const double left = passed.count() * static_cast<double>(total - done) /
                        std::max(1.0, static_cast<double>(done));
    say(fmt::format("{}: {} of {}, {:.0f} s left", what, format_bytes(static_cast<double>(done)),
                    format_bytes(static_cast<double>(total)), left));
  };
}

}  // namespace

CudaDevice::Reserved CudaDevice::layout(const Problem& problem) {
  const std::int64_t rows = problem.workload.micro_batch * problem.workload.sequence;
  Reserved parts{};
  parts.model = 0;
  parts.text = aligned(model_workspace_bytes(problem));
  parts.numbers = parts.text +
                  aligned(static_cast<std::size_t>(TextLayout{rows}.size()) * sizeof(std::int32_t));
  parts.bytes = parts.numbers + aligned(sizeof(AdamNumbers));
  return parts;
}

// Of the workspaces, what lies behind the arena, for when algorithms are tried in it: a task's
// operands are in any schedule's plan, but not the tuning's own memory, the targets and what
// alignment adds.
std::uint64_t CudaDevice::rehearsal_bytes(const Problem& problem) {
  constexpr std::uint64_t for_alignment = std::uint64_t{64} << 10;
  const auto tokens =
      static_cast<std::uint64_t>(problem.workload.micro_batch * problem.workload.sequence);
  return aligned(MatmulTuning::memory_bytes + for_alignment + sizeof(std::int32_t) * tokens);
}

std::uint64_t CudaDevice::reserved_bytes(const Problem& problem) {
  const std::uint64_t planned = gpu_workspace_bytes(problem);
  SPILLWAY_ASSERT(layout(problem).bytes + rehearsal_bytes(problem) <= planned,
                  fmt::format("{}", layout(problem).bytes));
  return planned;
}

CudaDevice::Memory CudaDevice::take(std::uint64_t bytes, const char* what) {
  void* memory = nullptr;
  const cudaError_t result = cudaMalloc(&memory, std::max<std::uint64_t>(bytes, 256));
  if (result != cudaSuccess) {
    cudaGetLastError();
    std::size_t free = 0, total = 0;
    static_cast<void>(cudaMemGetInfo(&free, &total));
    throw MachineError(
        fmt::format("cannot take {} of GPU memory for {}: {} of {} are free ({} in cudaMalloc)",
                    format_bytes(static_cast<double>(bytes)), what,
                    format_bytes(static_cast<double>(free)),
                    format_bytes(static_cast<double>(total)), cudaGetErrorName(result)),
        "lower " + Setting{"gpu.memory"} +
            ", or end other programs on the GPU (nvidia-smi lists them)");
  }
  Memory taken(static_cast<std::byte*>(memory));
  SPILLWAY_CUDA(cudaMemset(memory, poison, bytes));
  // The lanes' streams do not wait for the default one, which fills it.
  SPILLWAY_CUDA(cudaDeviceSynchronize());
  return taken;
}

CudaDevice::CudaDevice(const Problem& problem, std::uint64_t gpu_bytes, std::uint64_t host_bytes,
                       const CudaDeviceOptions& options)
    : problem_(problem),
      options_(options),
      name_(open_device(options.device)),
      attention_(attention_for(problem, options.attention)),
      host_(timed(host_setup_.take_seconds,
                  [&] {
                    return Arena(host_bytes, "host memory",
                                 progress_of(options.say, "taking host memory"));
                  })),
      host_registration_(timed(host_setup_.pin_seconds,
                               [&] {
                                 return pin_memory(host_.span(),
                                                   progress_of(options.say, "pinning host memory"));
                               })),
      arena_(take(gpu_bytes + rehearsal_bytes(problem), "the schedule")),
      reserved_(take(reserved_bytes(problem) - rehearsal_bytes(problem), "workspaces")),
      arena_bytes_(gpu_bytes),
      parts_(layout(problem)),
      streams_(options.device),
      model_(make_model(problem, reserved_.get() + parts_.model, streams_.stream(Lane::gpu_compute),
                        attention_, gelu_backward_of(options.gelu_backward))),
      host_optimizer_(problem, options.threads),
      layer_ranges_(ranges_of(unit_layout(problem.model, problem.model.layers - 1))),
      embedding_ranges_(ranges_of(unit_layout(problem.model, embedding_unit(problem.model)))),
      head_ranges_(ranges_of(unit_layout(problem.model, head_unit(problem.model)))),
      clip_(rule_of(problem.workload)),
      trained_norms_(trained_norms(problem.model, clip_)),
      workspace_(ModelWorkspace::carve(problem, reserved_.get() + parts_.model).kernels),
      staging_(staging_bytes, "staging for the GPU"),
      staging_registration_(pin_memory(staging_.span()).registration) {
  host_setup_.bytes = host_.size();
  host_setup_.pinned_pieces = host_registration_.pieces;
  cudaStream_t transfers = nullptr;
  SPILLWAY_CUDA(cudaStreamCreateWithFlags(&transfers, cudaStreamNonBlocking));
  transfers_.reset(transfers);
  algorithms_ = settle_algorithms();
}

CudaDevice::~CudaDevice() {
  static_cast<void>(cudaSetDevice(options_.device));
  static_cast<void>(cudaDeviceSynchronize());
}

std::string CudaDevice::name() const { return name_; }

std::span<std::byte> CudaDevice::gpu_memory() { return {arena_.get(), arena_bytes_}; }

// -- upload and download, beside the lanes --

void CudaDevice::transfer(std::byte* device, std::byte* host, std::uint64_t bytes, bool down) {
  const std::lock_guard lock(transfer_mutex_);
  SPILLWAY_CUDA(cudaSetDevice(options_.device));
  for (std::uint64_t done = 0; done < bytes;) {
    const std::uint64_t piece = std::min<std::uint64_t>(bytes - done, staging_.size());
    std::byte* const from_or_to = device + done;
    if (!down) std::memcpy(staging_.data(), host + done, piece);
    SPILLWAY_CUDA(down ? cudaMemcpyAsync(staging_.data(), from_or_to, piece, cudaMemcpyDeviceToHost,
                                         transfers_.get())
                       : cudaMemcpyAsync(from_or_to, staging_.data(), piece, cudaMemcpyHostToDevice,
                                         transfers_.get()));
    SPILLWAY_CUDA(cudaStreamSynchronize(transfers_.get()));
    if (down) std::memcpy(host + done, staging_.data(), piece);
    done += piece;
  }
}

void CudaDevice::upload(std::uint64_t offset, std::span<const std::byte> from) {
  SPILLWAY_ASSERT(offset + from.size() <= arena_bytes_);
  transfer(arena_.get() + offset, const_cast<std::byte*>(from.data()), from.size(), false);
}

void CudaDevice::download(std::uint64_t offset, std::span<std::byte> to) {
  SPILLWAY_ASSERT(offset + to.size() <= arena_bytes_);
  transfer(arena_.get() + offset, to.data(), to.size(), true);
}

std::uint64_t CudaDevice::highest_written(Tier tier) const {
  return tier == Tier::host ? host_.highest_written() : 0;
}

// -- tasks --

void CudaDevice::copy(Lane lane, std::byte* to, const std::byte* from, std::uint64_t bytes) {
  SPILLWAY_CUDA(cudaMemcpyAsync(
      to, from, bytes, lane == Lane::pcie_h2d ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost,
      streams_.stream(lane)));
}

// Brings what the task needs of the text to the GPU, before it on the same stream, and not by a
// copy, which would wait for those of layers (text.cu). Elements [first, end) of the text's layout
// come to lie at `to` in the device's memory for text, of TextLayout::size(). What lay there was
// for tasks before.
std::int32_t* CudaDevice::fetch(const Operands& o, std::int64_t first, std::int64_t end,
                                std::int64_t to) {
  const auto* const host = reinterpret_cast<const std::int32_t*>(o.text);
  auto* const device = reinterpret_cast<std::int32_t*>(reserved_.get() + parts_.text) + to;
  fetch_text(host + first, device, end - first, streams_.stream(Lane::gpu_compute));
  return device;
}

Text CudaDevice::stage(const Task& task, const Operands& o) {
  const TextLayout at{problem_.workload.micro_batch * problem_.workload.sequence};
  Text text;
  if (task.kind == TaskKind::head) {
    text.targets = fetch(o, at.targets(), at.size(), at.targets());
    text.scale = reinterpret_cast<const float*>(text.targets + (at.scale() - at.targets()));
    return text;
  }
  const bool ordered = task.kind == TaskKind::embed_backward;
  const std::int32_t* const tokens =
      fetch(o, at.tokens(), ordered ? at.targets() : at.order_rows(), at.tokens());
  text.tokens = tokens;
  text.order = {tokens + at.order_rows(), tokens + at.order_begins(), tokens + at.order_runs()};
  if (o.has_borders) text.starts = fetch(o, at.starts(), at.ends(), at.targets());
  return text;
}

// In place of the tokens and their order.
Text CudaDevice::stage_positions(const Operands& o) {
  const TextLayout at{problem_.workload.micro_batch * problem_.workload.sequence};
  Text text;
  const std::int32_t* const positions = fetch(o, at.positions(), at.size_with_borders(), 0);
  text.tokens = positions;
  text.order = {positions + at.order_rows(), positions + at.order_begins(),
                positions + at.order_runs()};
  return text;
}

AttentionBorders CudaDevice::stage_borders(const Operands& o) {
  if (!o.has_borders) return {};
  const TextLayout at{problem_.workload.micro_batch * problem_.workload.sequence};
  const std::int32_t* const starts = fetch(o, at.starts(), at.positions(), 0);
  return {starts, starts + (at.ends() - at.starts())};
}

template <class Element>
void CudaDevice::compute_with(ModelCuda<Element>& model, const Task& task, const Operands& o) {
  StepPlace place{o.step_noise, task.layer,
                  problem_.first_sequence() + task.micro_batch * problem_.workload.micro_batch};
  const auto elements = [](std::byte* bytes) { return reinterpret_cast<Element*>(bytes); };
  switch (task.kind) {
    case TaskKind::embed_forward:
      return model.embed_forward(elements(o.parameters), stage(task, o), elements(o.output));
    case TaskKind::forward:
      place.borders = stage_borders(o);
      return model.layer_forward(elements(o.parameters), elements(o.input), elements(o.output),
                                 o.saved, task.saves, o.scratch, place);
    case TaskKind::head:
      return model.head(elements(o.parameters), stage(task, o), elements(o.activation_gradient),
                        o.head_gradient, task.first_micro_batch, o.losses, o.scratch,
                        task.loss_only);
    case TaskKind::backward:
      place.borders = stage_borders(o);
      return model.layer_backward(elements(o.parameters), elements(o.input), o.saved,
                                  task.available, task.recomputes_output,
                                  elements(o.activation_gradient), o.gradient,
                                  task.first_micro_batch, o.scratch, place);
    case TaskKind::input_gradient:
      place.borders = stage_borders(o);
      return model.layer_input_gradient(elements(o.parameters), elements(o.input), o.saved,
                                        task.available, task.recomputes_output,
                                        elements(o.activation_gradient), o.weight_operands,
                                        o.scratch, place);
    case TaskKind::weight_gradient:
      return model.layer_weight_gradient(o.saved, task.available, o.weight_operands, o.gradient,
                                         task.first_micro_batch);
    case TaskKind::embed_backward:
      model.embed_backward(stage(task, o), elements(o.activation_gradient), o.gradient,
                           task.first_micro_batch);
      if (o.has_borders && model.has_position_table())
        model.embed_backward_positions(stage_positions(o), elements(o.activation_gradient),
                                       o.gradient);
      return;
    default:
      bug("a compute task", __FILE__, __LINE__, to_string(task.kind));
  }
}

void CudaDevice::compute(const Task& task, const Operands& o) {
  const bool narrow = problem_.gradient_bytes() == 2;
  if (task.lane == Lane::cpu_optimizer) {
    return task.kind == TaskKind::optimizer ? host_optimizer_.update(task, o)
                                            : host_optimizer_.gradient_norm(task, o);
  }
  if (task.kind == TaskKind::optimizer)
    return narrow ? optimizer<bf16>(task, o) : optimizer<float>(task, o);
  if (task.kind == TaskKind::gradient_norm)
    return narrow ? gradient_norm<bf16>(task, o) : gradient_norm<float>(task, o);
  std::visit([&](auto& model) { compute_with(*model, task, o); }, model_);
}

const UnitRanges& CudaDevice::ranges(std::int64_t unit) const {
  if (unit < problem_.model.layers) return layer_ranges_;
  return unit == embedding_unit(problem_.model) ? embedding_ranges_ : head_ranges_;
}

// Frozen are the first layers, the embedding after the layers, and the head behind it: so what is
// trained lies in a row, but for an embedding before a head that is trained.
CudaDevice::TrainedNorms CudaDevice::trained_norms(const ModelSpec& model, ClipRule& rule) {
  const auto trained = [&](std::int64_t unit) { return trained_elements(model, unit) > 0; };
  std::int64_t first = 0, end = unit_count(model);
  while (!trained(first)) ++first;
  while (!trained(end - 1)) --end;
  const std::int64_t embedding = embedding_unit(model);
  if (embedding < end && !trained(embedding)) rule.left_out = embedding - first;
  return {first, end - first};
}

template <class Gradient>
void CudaDevice::optimizer(const Task& task, const Operands& o) {
  const cudaStream_t stream = streams_.stream(task.lane);
  const bool of_all = o.norms.size() > 1;
  const double* const norms = o.norms.data() + (of_all ? trained_norms_.first : 0);
  auto* const numbers = reinterpret_cast<AdamNumbers*>(reserved_.get() + parts_.numbers);
  prepare_update(reinterpret_cast<const AdamNumbers*>(o.adam_constants), clip_,
                 o.norms.empty() ? nullptr : norms, of_all ? trained_norms_.count : 1,
                 of_all ? task.layer - trained_norms_.first : 0, numbers, stream);
  const auto elements = static_cast<std::int64_t>(task.params);
  auto* const master = reinterpret_cast<float*>(o.optimizer_state);
  const auto run = [&](auto* parameters, auto* moments) {
    adamw(master, moments, moments + elements, reinterpret_cast<const Gradient*>(o.gradient),
          reinterpret_cast<const Gradient*>(o.head_gradient), parameters, task.layer,
          static_cast<std::int64_t>(task.first_element), elements, ranges(task.layer), numbers,
          o.gradient_square_sum, workspace_, stream);
  };
  const auto run_with = [&](auto* parameters) {
    if (problem_.workload.moments == MomentWidth::bf16) {
      run(parameters, reinterpret_cast<bf16*>(master + elements));
    } else {
      run(parameters, master + elements);
    }
  };
  if (problem_.parameter_bytes() == 2) {
    run_with(reinterpret_cast<bf16*>(o.parameters));
  } else {
    run_with(reinterpret_cast<float*>(o.parameters));
  }
}

template <class Gradient>
void CudaDevice::gradient_norm(const Task& task, const Operands& o) {
  // All that is trained of the unit, or this rank's shard of it.
  const std::uint64_t parts = o.head_gradient != nullptr ? 2 : 1;
  const auto elements = static_cast<std::int64_t>(task.bytes / sizeof(Gradient) / parts);
  sum_of_squares(reinterpret_cast<const Gradient*>(o.gradient),
                 reinterpret_cast<const Gradient*>(o.head_gradient), elements, o.norms.data(),
                 o.gradient_square_sum, workspace_, streams_.stream(task.lane));
}

}  // namespace spillway::cuda
