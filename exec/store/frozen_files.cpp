#include "exec/store/frozen_files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>

#include "base/direct_io.hpp"
#include "base/errors.hpp"
#include "base/rounding.hpp"
#include "policies/machine/memory_beside.hpp"
#include "policies/model/units.hpp"

namespace spillway {

namespace {

static_assert(frozen_read_bytes == IoTransfer::piece_memory);

ElementType computed_with(const Problem& problem) {
  return problem.parameter_bytes() == sizeof(float) ? ElementType::f32 : ElementType::bf16;
}

bool rests_on_ssd(const Schedule& schedule, const HomePart& home) {
  return home.frozen && schedule.buffers()[home.where.buffer.id].tier == Tier::ssd;
}

}  // namespace

std::string FrozenFiles::why_not(const Problem& problem, const Checkpoint& weights) {
  const ModelSpec& model = problem.model;
  for (std::int64_t unit = 0; unit < unit_count(model); ++unit) {
    if (trained_elements(model, unit) == unit_elements(model, unit)) continue;
    const std::string why = weights.why_otherwise(unit, computed_with(problem));
    if (!why.empty()) return why;
  }
  return "";
}

std::unique_ptr<FrozenFiles> FrozenFiles::open(const Schedule& schedule,
                                               const Checkpoint& weights) {
  SPILLWAY_ASSERT(schedule.problem().frozen_in_place && why_not(schedule.problem(), weights) == "");
  std::unique_ptr<FrozenFiles> files(new FrozenFiles());
  for (const HomePart& home : schedule.homes()) {
    if (rests_on_ssd(schedule, home)) files->add_home(schedule, home, weights.in_files(home.unit));
  }
  if (files->ranges_.empty()) return nullptr;
  files->sort();
  files->most_pieces_ = files->segments_.size();
  files->open_files(weights);
  files->memory_ = Arena(frozen_buffer_bytes, "memory to read frozen weights into");
  return files;
}

// The last range that begins at `offset` or before; null: none does.
const FrozenFiles::Range* FrozenFiles::last_from(std::uint64_t offset) const {
  const auto next =
      std::upper_bound(ranges_.begin(), ranges_.end(), offset,
                       [](std::uint64_t at, const Range& range) { return at < range.begin; });
  return next == ranges_.begin() ? nullptr : &*std::prev(next);
}

bool FrozenFiles::holds(std::uint64_t offset) const {
  const Range* const range = last_from(offset);
  return range != nullptr && offset < range->end;
}

std::uint64_t FrozenFiles::in_store(std::uint64_t offset) const {
  const Range* const range = last_from(offset);
  return range == nullptr ? offset : offset - range->before - (range->end - range->begin);
}

void FrozenFiles::add_buffer(const BufferInfo& buffer) {
  // Homes of a buffer follow one another.
  if (!ranges_.empty() && ranges_.back().begin == buffer.offset) return;
  const std::uint64_t bytes = round_up(buffer.bytes, buffer_alignment);
  ranges_.push_back({buffer.offset, buffer.offset + bytes, 0});
}

void FrozenFiles::sort() {
  std::sort(segments_.begin(), segments_.end(),
            [](const Segment& a, const Segment& b) { return a.begin < b.begin; });
  std::sort(ranges_.begin(), ranges_.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (Range& range : ranges_) {
    SPILLWAY_ASSERT(&range == ranges_.data() || (&range - 1)->end <= range.begin);
    range.before = bytes_;
    bytes_ += range.end - range.begin;
  }
}

void FrozenFiles::add_home(const Schedule& schedule, const HomePart& home,
                           const std::vector<Checkpoint::InFile>& tensors) {
  const BufferInfo& buffer = schedule.buffers()[home.where.buffer.id];
  add_buffer(buffer);
  const std::uint64_t width = schedule.problem().parameter_bytes();
  const std::uint64_t end = home.first_element + home.elements;
  for (const Checkpoint::InFile& tensor : tensors) {
    const std::uint64_t first = std::max(tensor.first, home.first_element);
    const std::uint64_t last = std::min(tensor.first + tensor.count, end);
    if (first >= last) continue;
    segments_.push_back({buffer.offset + home.where.offset + (first - home.first_element) * width,
                         (last - first) * width, static_cast<std::uint32_t>(tensor.file),
                         tensor.offset + (first - tensor.first) * width});
  }
}

// Descriptors of its own, of the files that were checked, whatever has their names by now.
void FrozenFiles::open_files(const Checkpoint& weights) {
  for (const SafetensorsFile& file : weights.files()) {
    const std::string path = fmt::format("/proc/self/fd/{}", file.descriptor());
    names_.push_back(file.path().string());
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
      throw MachineError::from_errno("cannot open " + names_.back() + " again", errno);
    files_.emplace_back(descriptor);
    states_.push_back(state_of(files_.back(), names_.back()));
    if (const auto reason = try_direct_io(descriptor)) {
      warnings_.push_back(
          fmt::format("{}: unbuffered I/O is not possible ({}); using the page cache, so reading "
                      "takes memory",
                      names_.back(), *reason));
    }
  }
}

FrozenFiles::State FrozenFiles::state_of(const FileDescriptor& file, const std::string& name) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0)
    throw MachineError::from_errno("cannot look at " + name, errno);
  return {status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
}

void FrozenFiles::require_unchanged(std::uint32_t file) const {
  if (state_of(files_[file], names_[file]) == states_[file]) return;
  throw MachineError(names_[file] + " was written to while a training reads its weights",
                     "put the file back as it was, and go on from the last commit with " +
                         Setting{"resume"} + ", which looks at every byte of it");
}

FrozenFiles::Channel::Channel(const FrozenFiles& files, const RingFactory& make_ring)
    : files_(files),
      ring_(make_ring(
          [&] {
            std::vector<int> descriptors;
            for (const FileDescriptor& file : files.files_) descriptors.push_back(file.get());
            return descriptors;
          }(),
          frozen_reads_in_flight)),
      transfer_(*ring_, frozen_reads_in_flight,
                Striping{std::uint64_t{1} << 20, static_cast<std::uint32_t>(files.files_.size())},
                files.names_) {
  ring_->register_memory({files.memory_.data(), files.memory_.size()});
  pieces_.reserve(files.most_pieces_);
}

void FrozenFiles::Channel::read(std::uint64_t offset, std::byte* to, std::uint64_t bytes) {
  const std::uint64_t end = offset + bytes;
  SPILLWAY_ASSERT(files_.holds(offset) && files_.holds(end - 1));
  const auto& segments = files_.segments_;
  auto segment = std::upper_bound(
      segments.begin(), segments.end(), offset,
      [](std::uint64_t at, const Segment& one) { return at < one.begin + one.bytes; });
  pieces_.clear();
  std::uint64_t done = offset;
  for (; segment != segments.end() && segment->begin < end; ++segment) {
    const std::uint64_t from = std::max(done, segment->begin);
    const std::uint64_t until = std::min(end, segment->begin + segment->bytes);
    std::memset(to + (done - offset), 0, from - done);
    pieces_.push_back({segment->file, segment->offset + (from - segment->begin),
                       to + (from - offset), until - from});
    done = until;
  }
  std::memset(to + (done - offset), 0, end - done);
  transfer_.gather(pieces_, {files_.memory_.data(), files_.memory_.size()});
  files_.bytes_read_.fetch_add(bytes, std::memory_order_relaxed);
  for (std::size_t k = 0; k < pieces_.size(); ++k) {
    if (k == 0 || pieces_[k].file != pieces_[k - 1].file) files_.require_unchanged(pieces_[k].file);
  }
}

}  // namespace spillway
