#include "policies/workload/problem.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "policies/model/stages.hpp"

namespace spillway {

namespace {

// A sequence count or length beyond this is a slip of the keyboard; products stay far below 2^63.
constexpr std::int64_t largest_count = 100'000'000;

void require_count(const char* name, std::int64_t value) {
  if (value >= 1 && value <= largest_count) return;
  throw InputError(fmt::format("{} = {} is outside 1 .. {}", name, value, largest_count),
                   value < 1 ? fmt::format("give {} as a whole number of at least 1", name)
                             : fmt::format("give {} as {} at the most", name, largest_count));
}

// The divisors of `whole` on both sides of the part of it that was asked for with `setting`.
Message nearest_parts(const char* setting, std::int64_t whole, std::int64_t part) {
  std::int64_t below = std::min(whole, part);
  while (whole % below != 0) --below;
  if (part >= whole) return Setting{setting, std::to_string(below)};
  std::int64_t above = part;
  while (whole % above != 0) ++above;
  return Setting{setting, std::to_string(below)} + " or " + Setting{setting, std::to_string(above)};
}

// The largest divisor of `whole` that is at most `most`, which is at least 1.
std::int64_t largest_divisor(std::int64_t whole, std::int64_t most) {
  std::int64_t best = 1;
  for (std::int64_t one = 1; one * one <= whole; ++one) {
    if (whole % one != 0) continue;
    for (const std::int64_t divisor : {one, whole / one}) {
      if (divisor <= most) best = std::max(best, divisor);
    }
  }
  return best;
}

// Bytes of all activations of a step, were all kept at once, and of the scratch of its largest
// task: above what any policy keeps. As doubles, which do not overflow.
double most_activation_bytes(const Problem& problem) {
  const ModelSpec& model = problem.model;
  const Workload& workload = problem.workload;
  const auto real = [](std::int64_t count) { return static_cast<double>(count); };
  const double tokens = real(workload.batch) * real(workload.sequence);
  const double rows = real(std::min<std::int64_t>(workload.sequence, 4096));
  const double of_token = 4 * real(model.hidden) + 4 * real(model.qkv_width()) +
                          6 * real(model.ffn) + 2 * real(model.heads) + 8;
  const double head = tokens * real(model.vocabulary) +
                      8 * 4096 * (real(model.vocabulary) + 2 * real(model.hidden) + 2);
  return 8 * (tokens * (real(model.layers) + 2) * of_token + tokens * rows + head);
}

// Above this sums of sizes would leave 64 bits; nothing that can be built comes near.
void require_countable(const Problem& problem) {
  constexpr double most_bytes = 1e18;
  const double bytes = most_activation_bytes(problem);
  if (bytes <= most_bytes) return;
  const Workload& workload = problem.workload;
  throw InputError(
      fmt::format("{} sequences of {} tokens through {} layers of hidden size {} make up to {} of "
                  "activations, more than the {} that sizes are held to",
                  workload.batch, workload.sequence, problem.model.layers, problem.model.hidden,
                  format_bytes(bytes), format_bytes(most_bytes)),
      "a smaller batch, shorter sequences, or a smaller model");
}

// Whose meshes divide each other, as those of ranks do (policies/movement/shards.hpp).
void check_group_meshes(const Workload& workload) {
  const GradientMeshes& meshes = workload.group_meshes;
  if (meshes == GradientMeshes{}) return;
  if (workload.ranks > 1)
    throw InputError(Setting{"gradient_meshes"} + ": several ranks have those of their policy",
                     "leave it out: it gives one process the bits of several ranks");
  const auto refuse = [](const std::string& what) {
    throw InputError(Setting{"gradient_meshes"} + Message(": " + what),
                     "leave it out, or give it with as many " + Setting{"gradient_groups"} +
                         " as the ranks have whose bits it is for");
  };
  if (workload.gradient_groups == 1) refuse("gradients are not summed in groups");
  const auto divides = [&](const char* what, int inner, const char* of, std::int64_t outer) {
    if (inner < 1 || outer % inner != 0)
      refuse(fmt::format("{} {} do not divide {} {}", inner, what, outer, of));
  };
  const int state = workload.state_shards();
  divides("shards of optimizer state", state, "groups", workload.gradient_groups);
  divides("shards of gradients", meshes.gradients, "of optimizer state", state);
  divides("shards of parameters", meshes.parameters,
          meshes.gradients > 1 ? "of gradients" : "of optimizer state",
          meshes.gradients > 1 ? meshes.gradients : state);
}

// Each rank sums a group of its own.
void check_gradient_groups(const Problem& problem) {
  const Workload& workload = problem.workload;
  require_count("gradient groups", workload.gradient_groups);
  check_group_meshes(workload);
  if (workload.gradient_groups == 1) return;
  if (workload.ranks > 1 && workload.gradient_groups != workload.ranks) {
    throw InputError(fmt::format("{} ranks sum gradients in {} groups of micro-batches, one each, "
                                 "not in {}",
                                 workload.ranks, workload.ranks, workload.gradient_groups),
                     "leave " + Setting{"gradient_groups"} + " out");
  }
  if (workload.ranks == 1 && workload.micro_batches() % workload.gradient_groups != 0) {
    throw InputError(fmt::format("{} micro-batches are not {} groups of equal size",
                                 workload.micro_batches(), workload.gradient_groups),
                     "use " + nearest_parts("gradient_groups", workload.micro_batches(),
                                            workload.gradient_groups));
  }
}

void check_gradient_width(const Workload& workload) {
  if (workload.gradient != GradientWidth::bits16) return;
  if (workload.precision == Precision::fp32) {
    throw InputError("16-bit gradients do not go with fp32 training",
                     "use 32-bit gradients, or bf16 precision");
  }
  if (workload.micro_batches() > 1) {
    throw InputError(
        fmt::format("16-bit gradients do not go with {} micro-batches: their sum is kept in fp32",
                    workload.micro_batches()),
        "use 32-bit gradients, or " + Setting{"micro_batch", std::to_string(workload.batch)});
  }
}

}  // namespace

GradientMeshes canonical(GradientMeshes meshes, std::int64_t ranks, std::int64_t micro_batches) {
  if (meshes.state == 0) meshes.state = static_cast<int>(ranks);
  if (meshes.parameters == meshes.gradients || meshes.parameters == meshes.state)
    meshes.parameters = 1;
  if (meshes.state == ranks) meshes.at_once = false;
  // Of one micro-batch each, what is summed after every micro-batch is complete.
  if (micro_batches == 1 && meshes.gradients == meshes.state && !meshes.at_once)
    meshes.gradients = 1;
  return meshes;
}

Ranks Problem::ranks() const {
  const std::int64_t inside = std::min(workload.ranks, machine.cluster.gpus);
  return {static_cast<int>(inside), static_cast<int>(workload.ranks / inside)};
}

Ranks Problem::stages() const {
  const std::int64_t inside = std::min(workload.pipeline, machine.cluster.gpus);
  return {static_cast<int>(inside), static_cast<int>((workload.pipeline + inside - 1) / inside)};
}

std::int64_t Problem::gpus_of_node() const {
  return std::min(workload.processes(), machine.cluster.gpus);
}

Problem Problem::of_stage(int chunks) const {
  Problem problem = *this;
  if (workload.pipeline > 1)
    problem.model = stage_of(whole_model(model), static_cast<int>(workload.pipeline), rank, chunks);
  return problem;
}

std::uint64_t Problem::gradient_bytes() const {
  switch (workload.gradient) {
    case GradientWidth::bits16:
      return 2;
    case GradientWidth::bits32:
      return 4;
    case GradientWidth::automatic:
      break;
  }
  const bool sums_up = workload.micro_batches() > 1 || workload.gradient_groups > 1;
  return workload.precision == Precision::bf16 && !sums_up ? 2 : 4;
}

double Problem::adam_share_of_fp32() const {
  const std::uint64_t fp32 = 2 * spillway::state_bytes(MomentWidth::fp32);
  return static_cast<double>(adam_bytes()) /
         static_cast<double>(fp32 + gradient_bytes() + parameter_bytes());
}

void Problem::use_gpu_sequences_at_once(std::int64_t given) {
  constexpr std::int64_t most_elements = std::int64_t{1} << 25;
  const std::int64_t of_one = workload.sequence * model.hidden;
  std::int64_t sequences =
      largest_divisor(workload.micro_batch,
                      std::clamp<std::int64_t>(most_elements / std::max<std::int64_t>(of_one, 1), 1,
                                               workload.micro_batch));
  if (given > 0) sequences = given;
  workload.sequences_at_once = sequences;
  const bool sums_up = sequences < workload.micro_batch;
  if (sums_up && workload.gradient == GradientWidth::automatic && gradient_bytes() == 2)
    workload.gradient = GradientWidth::bits32;
}

void Problem::validate() const {
  model.validate();
  require_count("batch", workload.batch);
  require_count("micro-batch", workload.micro_batch);
  require_count("sequence", workload.sequence);
  require_count("ranks", workload.ranks);
  if (workload.batch % workload.ranks != 0) {
    throw InputError(
        fmt::format("{} ranks do not share a batch of {} alike", workload.ranks, workload.batch),
        "use " + nearest_parts("ranks", workload.batch, workload.ranks) +
            ", or a batch that is a multiple of the ranks");
  }
  if (workload.ranks > 1 && workload.rank_batch() % workload.micro_batch != 0) {
    throw InputError(
        fmt::format("micro-batch {} does not divide the {} sequences of a rank: {} ranks share a "
                    "batch of {}",
                    workload.micro_batch, workload.rank_batch(), workload.ranks, workload.batch),
        "use " + nearest_parts("micro_batch", workload.rank_batch(), workload.micro_batch));
  }
  require_count("stages of a pipeline", workload.pipeline);
  if (workload.pipeline > 1 && workload.ranks > 1) {
    throw InputError(
        fmt::format("{} ranks and {} stages: the pipelines of several ranks are not trained beside "
                    "each other",
                    workload.ranks, workload.pipeline),
        "leave " + Setting{"ranks"} + " out, or " + Setting{"pipeline"} +
            "; `spillway pipeline` simulates replicas of whole stages");
  }
  if (workload.pipeline > 1 && workload.gradient_groups > 1) {
    throw InputError(
        "gradients in groups are those of several ranks: a pipeline adds up "
        "micro-batch by micro-batch",
        "leave " + Setting{"gradient_groups"} + " out");
  }
  constexpr std::int64_t most_stages = 256;  // Task::group names them in a byte
  if (workload.pipeline > most_stages) {
    throw InputError(
        fmt::format("{} stages: a pipeline has {} at most", workload.pipeline, most_stages),
        "`spillway pipeline` simulates more of them, as whole stages");
  }
  if (workload.pipeline > machine.cluster.count()) {
    throw InputError(fmt::format("{} stages do not go on {} GPU{}", workload.pipeline,
                                 machine.cluster.count(), machine.cluster.count() == 1 ? "" : "s"),
                     "a stage is a GPU: fewer stages, or a machine with more (" +
                         Setting{"cluster.gpus", std::to_string(workload.pipeline)} + ")");
  }
  const std::int64_t gpus = machine.cluster.gpus;
  if (workload.ranks > gpus * machine.cluster.nodes ||
      (workload.ranks > gpus && workload.ranks % gpus != 0)) {
    throw InputError(fmt::format("{} ranks do not go on {} node{} of {} GPU{}", workload.ranks,
                                 machine.cluster.nodes, machine.cluster.nodes == 1 ? "" : "s", gpus,
                                 gpus == 1 ? "" : "s"),
                     "a rank is a GPU: fewer ranks, whole nodes of them, or a machine with more (" +
                         Setting{"cluster.gpus", std::to_string(workload.ranks)} + " or " +
                         Setting{"cluster.nodes", "..."} + ")");
  }
  if (workload.batch % workload.micro_batch != 0) {
    throw InputError(fmt::format("micro-batch {} does not divide batch {}", workload.micro_batch,
                                 workload.batch),
                     "use " + nearest_parts("micro_batch", workload.batch, workload.micro_batch));
  }
  require_count("sequences-at-once", workload.sequences_at_once);
  if (workload.micro_batch % workload.sequences_at_once != 0) {
    throw InputError(fmt::format("{} sequences at once do not divide a micro-batch of {}",
                                 workload.sequences_at_once, workload.micro_batch),
                     "use " + nearest_parts("sequences_at_once", workload.micro_batch,
                                            workload.sequences_at_once));
  }
  if (workload.sequence > model.positions) {
    throw InputError(fmt::format("sequence {} is longer than the {} positions of model {}",
                                 workload.sequence, model.positions, model.name),
                     "use " + Setting{"sequence", std::to_string(model.positions)} +
                         " or less, or " +
                         Setting{"model.positions", std::to_string(workload.sequence)});
  }
  require_countable(*this);
  check_gradient_groups(*this);
  check_gradient_width(workload);
  const GradientClip& clip = workload.clip;
  if (clip.scope != ClipScope::off && !(clip.limit > 0 && std::isfinite(clip.limit))) {
    throw InputError(
        fmt::format("gradient clipping {}: the limit is not a number above 0", to_string(clip)),
        "give a limit such as global=1.0, or off");
  }
}

}  // namespace spillway
