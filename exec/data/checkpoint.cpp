#include "exec/data/checkpoint.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <map>
#include <set>
#include <span>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "base/units.hpp"
#include "exec/data/model_writer.hpp"
#include "policies/model/peft.hpp"

namespace spillway {

namespace {

constexpr std::size_t most_named = 5;
constexpr const char* other_model =
    "the weights may be of another model than the folder's config.json";
constexpr const char* other_adapter =
    "the adapters may be of another model, or not those that adapter_config.json describes";

// The first few of many names.
std::string named(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), most_named); ++i)
    text += (i == 0 ? "" : ", ") + printable(names[i]);
  if (names.size() > most_named) text += fmt::format(" and {} more", names.size() - most_named);
  return text;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

ElementType supported_type(const std::string& file, const SafetensorsFile::Tensor& tensor) {
  if (const std::optional<ElementType> type = element_type_of(tensor.type)) return *type;
  throw InputError(fmt::format("{}: tensor {} is of type {}", file, printable(tensor.name),
                               printable(tensor.type)),
                   "supported: F32, F16, BF16");
}

void require_shape(const std::string& file, const SafetensorsFile::Tensor& tensor,
                   const std::vector<std::int64_t>& shape, const char* hint) {
  if (tensor.shape == shape) return;
  throw InputError(fmt::format("{}: tensor {} has the shape {}, the model needs {}", file,
                               printable(tensor.name), shape_text(tensor.shape), shape_text(shape)),
                   hint);
}

// Elements of a tensor from the file, as fp32.
void read_some(const SafetensorsFile& file, const SafetensorsFile::Tensor& tensor, ElementType type,
               std::uint64_t first, std::vector<float>& to) {
  std::vector<std::byte> bytes(to.size() * bytes_of(type));
  std::uint64_t offset = file.data_start() + tensor.begin + first * bytes_of(type);
  for (std::span<std::byte> left = bytes; !left.empty();) {
    const ssize_t count =
        ::pread(file.descriptor(), left.data(), left.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw MachineError::from_errno("cannot read " + file.path().string(), errno);
    if (count == 0)
      throw MachineError(file.path().string() + " was cut short while it was read",
                         "copy it again");
    offset += static_cast<std::uint64_t>(count);
    left = left.subspan(static_cast<std::size_t>(count));
  }
  widen(type, bytes.data(), to.size(), to.data());
}

// A tied model has one matrix for its tokens and its head. transformers writes it once; other
// programs write the head, too. One that is not the table would be lost.
void require_tied_head(const SafetensorsFolder& files, const SafetensorsFolder::Place& table,
                       const SafetensorsFolder::Place& head) {
  const SafetensorsFile &table_file = files.files()[table.file],
                        &head_file = files.files()[head.file];
  const std::string name = head_file.path().string();
  const ElementType type = supported_type(name, head.tensor);
  require_shape(name, head.tensor, table.tensor.shape, other_model);
  const ElementType table_type = supported_type(table_file.path().string(), table.tensor);
  constexpr std::uint64_t piece = std::uint64_t{1} << 20;
  const std::uint64_t elements = (head.tensor.end - head.tensor.begin) / bytes_of(type);
  std::vector<float> values, others;
  for (std::uint64_t first = 0; first < elements; first += piece) {
    values.resize(std::min(piece, elements - first));
    others.resize(values.size());
    read_some(head_file, head.tensor, type, first, values);
    read_some(table_file, table.tensor, table_type, first, others);
    if (std::memcmp(values.data(), others.data(), values.size() * sizeof(float)) == 0) continue;
    throw InputError(
        fmt::format("{}: tensor {} differs from the tokens' matrix, {}, and config.json says that "
                    "the two are one",
                    name, printable(head.tensor.name), printable(table.tensor.name)),
        "remove the tensor, or set tie_word_embeddings to false for a model with two");
  }
}

}  // namespace

Checkpoint::Checkpoint(const std::filesystem::path& folder, const ModelSpec& model,
                       RingFactory make_ring, CheckpointPart part)
    : folder_(folder),
      part_(part),
      files_(part == CheckpointPart::model ? SafetensorsFolder(folder)
                                           : SafetensorsFolder(folder, adapter_weights_file)) {
  match(model);
  plan(make_ring);
}

// Finds each tensor of the model among those of the files.
void Checkpoint::match(const ModelSpec& model) {
  const bool of_adapter = part_ == CheckpointPart::adapter;
  const char* const hint = of_adapter ? other_adapter : other_model;
  std::map<std::string, const SafetensorsFolder::Place*> found;
  for (const auto& [name, place] : files_.tensors()) {
    const auto [other, added] =
        found.try_emplace(of_adapter ? name : full_tensor_name(model, name), &place);
    if (added) continue;
    throw InputError(fmt::format("{} has two tensors for {}: {} and {}", folder_.string(),
                                 printable(other->first), printable(other->second->tensor.name),
                                 printable(name)),
                     other_model);
  }
  const auto head = found.find("lm_head.weight");
  const auto table = found.find(hugging_face_tensors(model, embedding_unit(model)).front().name);
  const bool repeats_table =
      !of_adapter && model.tied && head != found.end() && table != found.end();
  // Read only once all else is known to be right.
  const SafetensorsFolder::Place *const table_place = repeats_table ? table->second : nullptr,
                                        *const head_place = repeats_table ? head->second : nullptr;
  std::vector<std::string> missing;
  for (std::int64_t unit = 0; unit < unit_count(model); ++unit) {
    units_.emplace_back();
    for (HuggingFaceTensor& tensor :
         of_adapter ? adapter_tensors(model, unit) : hugging_face_tensors(model, unit)) {
      const auto place = found.find(tensor.name);
      if (place == found.end()) {
        missing.push_back(tensor.name);
        continue;
      }
      const SafetensorsFile::Tensor& stored = place->second->tensor;
      const std::string file = files_.files()[place->second->file].path().string();
      require_shape(file, stored, tensor.shape, hint);
      const ElementType type = supported_type(file, stored);
      bytes_ += stored.end - stored.begin;
      units_.back().push_back({std::move(tensor), type, place->second->file,
                               files_.files()[place->second->file].data_start() + stored.begin, 0,
                               0});
      found.erase(place);
    }
  }
  const auto refuse = [&](const std::string& what, const std::vector<std::string>& names) {
    throw InputError(fmt::format("the weights in {} {} {} tensor{}: {}", folder_.string(), what,
                                 names.size(), names.size() == 1 ? "" : "s", named(names)),
                     hint);
  };
  if (!missing.empty()) refuse("lack", missing);
  std::vector<std::string> unexpected;
  for (const auto& [name, place] : found) {
    if (of_adapter || !is_ignored_tensor(model, name)) unexpected.push_back(place->tensor.name);
  }
  if (!unexpected.empty()) refuse("have, beside those of the model,", unexpected);
  if (repeats_table) require_tied_head(files_, *table_place, *head_place);
}

// Turns a tensor's file and place in it into its extent and place in that. Tensors that follow one
// another in a file, too, share one.
void Checkpoint::plan(const RingFactory& make_ring) {
  std::vector<ReadAhead::Extent> extents;
  for (std::vector<Tensor>& unit : units_) {
    for (Tensor& tensor : unit) {
      const std::size_t file = tensor.file;
      const std::uint64_t begin = tensor.offset;
      const std::uint64_t end =
          begin + static_cast<std::uint64_t>(tensor.what.tensor.elements()) * bytes_of(tensor.type);
      if (extents.empty() || extents.back().file != file || extents.back().end != begin)
        extents.push_back({file, begin, begin});
      extents.back().end = end;
      tensor.extent = extents.size() - 1;
      tensor.at = begin - extents.back().begin;
    }
  }
  std::vector<ReadAhead::File> files;
  for (const SafetensorsFile& file : files_.files())
    files.push_back({file.descriptor(), file.bytes(), file.path().string()});
  reader_ = std::make_unique<ReadAhead>(std::move(files), std::move(extents), make_ring);
}

std::string Checkpoint::why_otherwise(std::int64_t unit, ElementType type) const {
  for (const Tensor& tensor : units_[static_cast<std::size_t>(unit)]) {
    if (tensor.what.transposed)
      return fmt::format("{} lies transposed in its file", tensor.what.name);
    if (tensor.type != type)
      return fmt::format("{} is stored as {}, and training computes with {}", tensor.what.name,
                         name_of(tensor.type), name_of(type));
  }
  return "";
}

std::vector<Checkpoint::InFile> Checkpoint::in_files(std::int64_t unit) const {
  std::vector<InFile> all;
  for (const Tensor& tensor : units_[static_cast<std::size_t>(unit)]) {
    all.push_back({static_cast<std::uint64_t>(tensor.what.tensor.offset),
                   static_cast<std::uint64_t>(tensor.what.tensor.elements()), tensor.file,
                   tensor.offset});
  }
  return all;
}

std::optional<std::uint64_t> Checkpoint::frozen_hash() const {
  const auto& metadata = files().front().metadata();
  const auto found = metadata.find(frozen_hash_key);
  if (found == metadata.end()) return std::nullopt;
  const std::string& digits = found->second;
  std::uint64_t hash = 0;
  const char* const end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, hash, 16);
  return error == std::errc() && stop == end ? std::optional(hash) : std::nullopt;
}

std::string Checkpoint::describe() const {
  std::set<std::string> types;
  for (const std::vector<Tensor>& unit : units_) {
    for (const Tensor& tensor : unit) types.insert(name_of(tensor.type));
  }
  const std::size_t files = files_.files().size();
  return fmt::format("{} as {} in {} file{}", format_bytes(static_cast<double>(bytes_)),
                     fmt::join(types, " and "), files, files == 1 ? "" : "s");
}

void Checkpoint::read(std::int64_t unit, std::uint64_t first, std::uint64_t count, float* to) {
  const auto begin = static_cast<std::int64_t>(first),
             end = begin + static_cast<std::int64_t>(count);
  std::int64_t done = begin;
  for (const Tensor& tensor : units_[static_cast<std::size_t>(unit)]) {
    const std::int64_t offset = tensor.what.tensor.offset;
    const std::int64_t from = std::max(done, offset);
    const std::int64_t until = std::min(end, offset + tensor.what.tensor.elements());
    if (from >= until) continue;
    std::fill_n(to + (done - begin), from - done, 0.0f);
    read_tensor(tensor, from - offset, until - from, to + (from - begin));
    done = until;
  }
  std::fill_n(to + (done - begin), end - done, 0.0f);
}

void Checkpoint::read_stored(const Tensor& tensor, std::int64_t first, std::int64_t count,
                             float* to) {
  const std::uint64_t width = bytes_of(tensor.type);
  auto left = static_cast<std::uint64_t>(count);
  for (std::uint64_t at = tensor.at + static_cast<std::uint64_t>(first) * width; left > 0;) {
    const std::span<const std::byte> bytes = reader_->bytes(tensor.extent, at);
    const std::uint64_t some = std::min(left, bytes.size() / width);
    widen(tensor.type, bytes.data(), some, to);
    to += some;
    at += some * width;
    left -= some;
  }
}

void Checkpoint::read_tensor(const Tensor& tensor, std::int64_t first, std::int64_t count,
                             float* to) {
  if (!tensor.what.transposed) return read_stored(tensor, first, count, to);
  const TensorLayout& layout = tensor.what.tensor;
  const auto row = [&](std::int64_t r, std::int64_t begin, std::int64_t some, float* values) {
    read_stored(tensor, r * layout.rows + begin, some, values);
  };
  transposed_.read(&tensor, layout.columns, layout.rows, row, first, count, to);
}

}  // namespace spillway
