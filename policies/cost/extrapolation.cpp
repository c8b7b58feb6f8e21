#include "policies/cost/extrapolation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/units.hpp"
#include "policies/cost/shape_times.hpp"

namespace spillway {

namespace {

std::string bytes_text(std::uint64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

// Below the first row a share is in proportion; beyond the last it stays, which is known where the
// row says that the drives are as fast as they get.
bool is_outside(const std::map<double, Machine::Ssd::Row>& by_queue_depth, double depth) {
  if (depth < by_queue_depth.begin()->first) return true;
  const auto& [last, shares] = *by_queue_depth.rbegin();
  return depth > last && (shares.read < 1 || shares.write < 1);
}

}  // namespace

void Extrapolation::add_collective(const Task& task, const RankGroup& group) {
  if (problem_.machine.cluster.collectives.empty()) return;
  const std::uint64_t bytes = task.bytes / std::max<std::uint64_t>(task.available, 1);
  const auto [entry, is_new] = collectives_.try_emplace(
      {task.kind, group.mesh.inside, group.mesh.across}, Bytes{bytes, bytes});
  Bytes& known = entry->second;
  known = {std::min(known.least, bytes), std::max(known.most, bytes)};
}

std::string drives_beyond_rows(const Machine::Ssd& ssd) {
  return fmt::format("{} drives: ssd.by_count has rows for {} to {}", ssd.count,
                     ssd.by_count.begin()->first, ssd.by_count.rbegin()->first);
}

void Extrapolation::tell_drives(int set, std::vector<std::string>& texts) const {
  const bool reads = uses(read_of(set)), writes = uses(write_of(set));
  if (!reads && !writes) return;
  const Machine::Ssd& ssd = problem_.machine.drives(set);
  if (ssd.extrapolated()) texts.push_back(drives_beyond_rows(ssd));
  const auto depth = static_cast<double>(ssd.queue_depth);
  if (!ssd.by_queue_depth.empty() && is_outside(ssd.by_queue_depth, depth)) {
    texts.push_back(fmt::format("queue depth {}: {} has rows for {:g} to {:g}", ssd.queue_depth,
                                drive_set_key(set, "by_queue_depth"),
                                ssd.by_queue_depth.begin()->first,
                                ssd.by_queue_depth.rbegin()->first));
  }
  const auto& mixes = ssd.read_share_by_depth;
  const bool mixes_matter = ssd.law == SsdLaw::mixed && reads && writes;
  if (mixes_matter && !mixes.empty() &&
      (depth < mixes.begin()->first || depth > mixes.rbegin()->first)) {
    texts.push_back(fmt::format("queue depth {}: {} has rows for {:g} to {:g}", ssd.queue_depth,
                                drive_set_key(set, "by_read_share"), mixes.begin()->first,
                                mixes.rbegin()->first));
  }
}

void Extrapolation::tell_kernels(std::vector<std::string>& texts) const {
  if (kinds_ == 0) return;
  std::string names;
  for (int kind = 0; kind < task_kind_count; ++kind) {
    if ((kinds_ >> static_cast<unsigned>(kind) & std::uint64_t{1}) == 0) continue;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", to_string(static_cast<TaskKind>(kind)));
  }
  const Workload& workload = problem_.workload;
  texts.push_back(fmt::format(
      "kernels of {} in micro-batches of {} x {} tokens: {}", names, workload.micro_batch,
      workload.sequence,
      problem_.machine.kernels.empty() ? "none is measured" : "not measured at this shape"));
}

void Extrapolation::tell_shapes(std::vector<std::string>& texts) const {
  const Machine::Gpu& gpu = problem_.machine.gpu;
  // Kernels that were measured at the very shape ask no table.
  const bool asked = uses(Work::compute) && (problem_.machine.kernels.empty() || kinds_ != 0);
  if (gpu.by_shape.empty() || gpu.is_cpu || !asked) return;
  std::map<std::int64_t, std::pair<std::int64_t, std::int64_t>> tokens_by_hidden;  // least, most
  for (const Machine::Gpu::ShapeRate& row : gpu.by_shape) {
    const auto [entry, is_new] = tokens_by_hidden.try_emplace(row.hidden, row.tokens, row.tokens);
    auto& [least, most] = entry->second;
    least = std::min(least, row.tokens);
    most = std::max(most, row.tokens);
  }
  const std::int64_t hidden = problem_.model.hidden;
  const std::int64_t first = tokens_by_hidden.begin()->first,
                     last = tokens_by_hidden.rbegin()->first;
  if (hidden < first || hidden > last) {
    texts.push_back(fmt::format("layers of {} columns: gpu.by_shape has rows for {} to {}", hidden,
                                first, last));
  }
  // Of the sizes next to the model's: the tokens that all of them have rows for.
  auto above = tokens_by_hidden.lower_bound(hidden);
  if (above == tokens_by_hidden.end()) above = std::prev(above);
  auto [least, most] = above->second;
  if (above->first > hidden && above != tokens_by_hidden.begin()) {
    const auto& below = std::prev(above)->second;
    least = std::max(least, below.first);
    most = std::min(most, below.second);
  }
  const std::int64_t tokens = sequences_of_kernel(problem_) * problem_.workload.sequence;
  if (tokens < least || tokens > most) {
    texts.push_back(fmt::format("products of {} tokens: gpu.by_shape has rows for {} to {}", tokens,
                                least, most));
  }
}

void Extrapolation::tell_collectives(std::vector<std::string>& texts) const {
  for (const auto& [collective, bytes] : collectives_) {
    std::uint64_t least = 0, most = 0;  // of the rows of this kind over so many GPUs
    for (const Machine::Cluster::Collective& row : problem_.machine.cluster.collectives) {
      if (row.kind != to_string(collective.kind) || row.gpus != collective.inside ||
          row.nodes != collective.across)
        continue;
      least = least == 0 ? row.bytes : std::min(least, row.bytes);
      most = std::max(most, row.bytes);
    }
    // Without rows the links tell the time, which is no row's extension.
    if (most == 0 || (bytes.least >= least && bytes.most <= most)) continue;
    const std::string asked = bytes.least == bytes.most
                                  ? bytes_text(bytes.most)
                                  : bytes_text(bytes.least) + " to " + bytes_text(bytes.most);
    texts.push_back(
        fmt::format("{} of {} over {} x {} GPUs: cluster.collectives has rows for {} to {}",
                    to_string(collective.kind), asked, collective.across, collective.inside,
                    bytes_text(least), bytes_text(most)));
  }
}

std::vector<std::string> Extrapolation::texts() const {
  std::vector<std::string> texts;
  for (int set = 0; set < most_drive_sets; ++set) tell_drives(set, texts);
  tell_kernels(texts);
  tell_shapes(texts);
  tell_collectives(texts);
  return texts;
}

}  // namespace spillway
