#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "exec/data/safetensors.hpp"

namespace spillway {

namespace {

using nlohmann::json;

constexpr std::uint64_t largest_header = 100'000'000;  // the format's limit

// Bytes per element; 0 for a type this reader does not know.
std::uint64_t element_bytes(std::string_view type) {
  if (type == "F64" || type == "I64" || type == "U64") return 8;
  if (type == "F32" || type == "I32" || type == "U32") return 4;
  if (type == "F16" || type == "BF16" || type == "I16" || type == "U16") return 2;
  if (type == "I8" || type == "U8" || type == "BOOL" || type == "F8_E4M3" || type == "F8_E5M2")
    return 1;
  return 0;
}

// Whether the file has so many bytes there. Throws MachineError where they cannot be read.
bool read_all(const std::filesystem::path& path, int file, std::uint64_t offset, void* to,
              std::uint64_t bytes) {
  auto* memory = static_cast<std::byte*>(to);
  while (bytes > 0) {
    const ssize_t count = ::pread(file, memory, bytes, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw MachineError::from_errno("cannot read " + path.string(), errno);
    if (count == 0) return false;
    memory += count;
    offset += static_cast<std::uint64_t>(count);
    bytes -= static_cast<std::uint64_t>(count);
  }
  return true;
}

// Elements times bytes per element; the largest uint64 on overflow, which no file has.
std::uint64_t bytes_of(const SafetensorsFile::Tensor& tensor) {
  std::uint64_t bytes = element_bytes(tensor.type);
  for (const std::int64_t size : tensor.shape) {
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(size), &bytes)) {
      return std::numeric_limits<std::uint64_t>::max();
    }
  }
  return bytes;
}

// Whether `value` is {"dtype": text, "shape": [n ...], "data_offsets": [n, n]}.
bool is_tensor(const json& value) {
  const auto is_size = [](const json& number) { return number.is_number_unsigned(); };
  if (!value.is_object() || !value.contains("dtype") || !value.contains("shape") ||
      !value.contains("data_offsets")) {
    return false;
  }
  const json& shape = value["shape"];
  const json& offsets = value["data_offsets"];
  return value["dtype"].is_string() && shape.is_array() &&
         std::all_of(shape.begin(), shape.end(), is_size) && offsets.is_array() &&
         offsets.size() == 2 && std::all_of(offsets.begin(), offsets.end(), is_size);
}

}  // namespace

void SafetensorsFile::refuse(const std::string& what) const {
  throw InputError("not a valid safetensors file: " + path_.string() + ": " + what,
                   "the file may be cut short or of another format: copy or download it again");
}

SafetensorsFile::SafetensorsFile(std::filesystem::path path)
    : path_(std::move(path)), file_(::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
  struct stat status {};
  if (!file_.valid() || ::fstat(file_.get(), &status) != 0) {
    throw InputError("cannot read " + path_.string() + ": " + std::strerror(errno),
                     "check the spelling of the path and its permissions");
  }
  if (!S_ISREG(status.st_mode)) refuse("it is no regular file");
  bytes_ = static_cast<std::uint64_t>(status.st_size);
  std::uint64_t length = 0;
  if (bytes_ < sizeof length || !read_all(path_, file_.get(), 0, &length, sizeof length)) {
    refuse("shorter than the 8 bytes of its header's length");
  }
  if (length > largest_header)
    refuse(fmt::format("a header of {} bytes, the limit is 100 MB", length));
  data_start_ = sizeof length + length;
  if (data_start_ > bytes_) refuse("it ends inside its header");
  std::string header(length, '\0');
  if (!read_all(path_, file_.get(), sizeof length, header.data(), length))
    refuse("it ends inside its header");
  header_hash_ = XXH3_64bits(header.data(), header.size());
  parse(header);
  check_layout(bytes_ - data_start_);
}

void SafetensorsFile::parse(const std::string& header) {
  if (!header.starts_with('{')) refuse("its header does not start with {");
  if (nested_deeper(header, most_nesting)) refuse("its header is nested too deeply");
  // A file of another kind, or one made to take much memory, is not parsed to its end.
  constexpr std::size_t most_dimensions = 16, most_keys = 100'000, most_tensors = 1'000'000;
  std::set<std::string> names;
  std::string twice;
  std::size_t in_list = 0, keys = 0;  // values of a list, keys of a tensor or of the metadata
  const auto watch_names = [&](int depth, json::parse_event_t event, json& parsed) {
    in_list = depth < 3 ? 0 : in_list + 1;
    keys = depth < 2 ? 0 : keys + (event == json::parse_event_t::key ? 1 : 0);
    if (in_list > most_dimensions) refuse("a tensor has more than 16 dimensions");
    if (keys > most_keys) refuse("a tensor, or its metadata, has too many keys");
    if (names.size() > most_tensors) refuse("it has more than a million tensors");
    if (event == json::parse_event_t::key && depth == 1) {
      const std::string name = parsed.get<std::string>();
      if (!names.insert(name).second) twice = name;
    }
    return true;
  };
  json parsed;
  try {
    parsed = json::parse(header, watch_names);
  } catch (const json::exception& error) {
    refuse(std::string("its header is not JSON: ") + error.what());
  }
  if (!twice.empty()) refuse("two tensors are called " + twice);
  for (const auto& [name, value] : parsed.items()) {
    if (name == "__metadata__") {
      if (!value.is_object()) refuse("its metadata is not a map");
      for (const auto& [key, text] : value.items()) {
        if (!text.is_string()) refuse("its metadata is not text");
        metadata_[key] = text.get<std::string>();
      }
      continue;
    }
    if (!is_tensor(value)) refuse("tensor " + name + " lacks a dtype, shape or data_offsets");
    tensors_.push_back({name, value["dtype"].get<std::string>(),
                        value["shape"].get<std::vector<std::int64_t>>(),
                        value["data_offsets"][0].get<std::uint64_t>(),
                        value["data_offsets"][1].get<std::uint64_t>()});
  }
  // Empty tensors may share their offset with the next one: they come first.
  std::sort(tensors_.begin(), tensors_.end(), [](const Tensor& a, const Tensor& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
}

void SafetensorsFile::check_layout(std::uint64_t data_bytes) const {
  std::uint64_t expected = 0;
  for (const Tensor& tensor : tensors_) {
    if (element_bytes(tensor.type) == 0) {
      refuse("tensor " + tensor.name + " has the unknown type " + tensor.type);
    }
    if (tensor.begin > expected) refuse("a hole in the data before tensor " + tensor.name);
    if (tensor.begin < expected) refuse("tensor " + tensor.name + " overlaps the one before");
    if (tensor.end < tensor.begin || tensor.end - tensor.begin != bytes_of(tensor)) {
      refuse("the shape of tensor " + tensor.name + " does not agree with its data_offsets");
    }
    expected = tensor.end;
  }
  if (expected != data_bytes) {
    refuse(fmt::format("its tensors take {} bytes, its data has {}", expected, data_bytes));
  }
}

std::vector<float> SafetensorsFile::read(const std::string& name) const {
  const auto tensor = std::find_if(tensors_.begin(), tensors_.end(),
                                   [&](const Tensor& candidate) { return candidate.name == name; });
  if (tensor == tensors_.end()) {
    throw InputError(path_.string() + " has no tensor " + name,
                     "the file may belong to another model");
  }
  if (tensor->type != "F32") {
    throw InputError(
        "tensor " + name + " of " + path_.string() + " is " + tensor->type + ", not F32",
        "convert the file to fp32");
  }
  std::vector<float> values((tensor->end - tensor->begin) / sizeof(float));
  if (!read_all(path_, file_.get(), data_start_ + tensor->begin, values.data(),
                tensor->end - tensor->begin)) {
    refuse("it ends inside tensor " + name);
  }
  return values;
}

}  // namespace spillway
