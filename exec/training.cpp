#include "exec/training.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/errors.hpp"
#include "exec/model_access.hpp"
#include "exec/safetensors.hpp"
#include "policies/run_record.hpp"

namespace spillway {

Training::Training(TrainingOptions options) : options_(std::move(options)) {
  const Problem& problem = options_.problem;
  if (options_.steps < 1) throw InputError("--steps must be at least 1");
  const int whole = static_cast<int>(std::min<std::int64_t>(steps_per_run, options_.steps));
  schedule_ = std::make_unique<Schedule>(build_schedule(problem, options_.policy, whole));
  schedule_->require_fit();
  if (const int left = static_cast<int>(options_.steps % whole); left > 0) {
    // The settled policy, so that the state rests where the first schedule leaves it.
    remainder_ = std::make_unique<Schedule>(build_schedule(problem, schedule_->policy(), left));
    remainder_->require_fit();
  }
  dataset_ = std::make_unique<Dataset>(options_.data, options_.seed);
  dataset_->require(problem.workload.sequence, problem.model.vocabulary);
  const auto most = [&](Tier tier) {
    return std::max(schedule_->use(tier).peak_bytes,
                    remainder_ ? remainder_->use(tier).peak_bytes : 0);
  };
  if (most(Tier::ssd) > 0) {
    if (options_.ssd.empty()) {
      throw InputError(fmt::format("policy {} uses the ssd tier, but no directory is given for it",
                                   schedule_->policy()),
                       "--ssd DIR[,DIR]: directories on the drives to use");
    }
    store_ = std::make_unique<SsdStore>(options_.ssd, most(Tier::ssd));
  }
  device_ = std::make_unique<CpuDevice>(problem, most(Tier::gpu) + options_.guard_bytes,
                                        most(Tier::host) + options_.guard_bytes);
  executor_ = std::make_unique<Executor>(*device_, store_.get(), *dataset_, options_.optimizer);
  ModelAccess(*schedule_, *device_, store_.get()).initialise(options_.seed);
}

std::vector<std::string> Training::warnings() const {
  std::vector<std::string> all = executor_->warnings();
  if (store_) all.insert(all.begin(), store_->warnings().begin(), store_->warnings().end());
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

TrainingResult Training::run(const std::function<void(const StepResult&)>& report, Trace* trace,
                             const std::function<bool()>& stop) {
  if (trace) {
    *trace = make_trace(*schedule_, "executor");
    trace->set_metadata("seed", std::to_string(options_.seed));
    trace->spans.reserve(
        std::min(most_spans, static_cast<std::size_t>(options_.steps) * schedule_->tasks().size()));
  }
  TrainingResult result;
  const auto take = [&](const StepResult& step) {
    if (!std::isfinite(step.loss)) {
      throw MachineError(
          fmt::format("the loss is {} at step {}", step.loss, step.step),
          "training has diverged: use a smaller --learning-rate or a longer --warmup");
    }
    if (step.step == 0) result.first_loss = step.loss;
    result.final_loss = step.loss;
    report(step);
  };
  int segment = 0;
  while (result.steps < options_.steps) {
    const bool whole = options_.steps - result.steps >= schedule_->steps();
    const Schedule& schedule = whole ? *schedule_ : *remainder_;
    const bool record =
        trace && whole && trace->spans.size() + schedule.tasks().size() <= most_spans;
    executor_->run(schedule, result.steps, take, record ? trace : nullptr, segment++);
    result.steps += schedule.steps();
    if (stop && stop()) break;
  }
  result.weights_hash = ModelAccess(*schedule_, *device_, store_.get()).weights_hash();
  return result;
}

std::uint64_t Training::highest_written(Tier tier) const {
  SPILLWAY_ASSERT(tier != Tier::ssd);
  return tier == Tier::gpu ? device_->gpu_arena().highest_written()
                           : device_->host_arena().highest_written();
}

void Training::export_model(const std::filesystem::path& path) {
  const ModelSpec& model = options_.problem.model;
  struct Place {
    std::int64_t unit;
    TensorLayout tensor;
  };
  std::vector<Place> places;
  std::vector<SafetensorsTensor> tensors;
  const auto add = [&](std::int64_t unit, const std::string& prefix, const TensorLayout& tensor) {
    places.push_back({unit, tensor});
    const bool is_vector = tensor.rows == 1;
    // Conv1D weights of Hugging Face's GPT-2 are [in, out]: transposed on the way out.
    const bool is_conv = unit < model.layers && !is_vector;
    tensors.push_back(
        {prefix + tensor.name, is_vector ? std::vector<std::int64_t>{tensor.columns}
                               : is_conv ? std::vector<std::int64_t>{tensor.columns, tensor.rows}
                                         : std::vector<std::int64_t>{tensor.rows, tensor.columns}});
  };
  for (const TensorLayout& tensor : embedding_layout(model))
    add(model.layers, "transformer.", tensor);
  for (std::int64_t l = 0; l < model.layers; ++l) {
    for (const TensorLayout& tensor : block_layout(model))
      add(l, fmt::format("transformer.h.{}.", l), tensor);
  }
  ModelAccess access(*schedule_, *device_, store_.get());
  std::vector<float> unit_values, tensor_values;
  std::int64_t loaded = -1;
  write_safetensors(
      path, tensors,
      [&](std::size_t index, std::uint64_t offset, std::span<std::byte> piece) {
        const auto& [unit, tensor] = places[index];
        if (unit != loaded) {
          unit_values.resize(static_cast<std::size_t>(unit_elements(model, unit)));
          access.read_master(unit, [&](std::uint64_t first, std::span<const float> values) {
            std::copy(values.begin(), values.end(),
                      unit_values.begin() + static_cast<std::ptrdiff_t>(first));
          });
          loaded = unit;
        }
        if (offset == 0) {
          const auto first = unit_values.begin() + tensor.offset;
          tensor_values.assign(first, first + tensor.rows * tensor.columns);
          if (unit < model.layers && tensor.rows > 1) {
            for (std::int64_t r = 0; r < tensor.rows; ++r) {
              for (std::int64_t c = 0; c < tensor.columns; ++c) {
                tensor_values[static_cast<std::size_t>(c * tensor.rows + r)] =
                    first[r * tensor.columns + c];
              }
            }
          }
        }
        std::memcpy(piece.data(), reinterpret_cast<const std::byte*>(tensor_values.data()) + offset,
                    piece.size());
      },
      {{"format", "pt"}});
}

}  // namespace spillway
