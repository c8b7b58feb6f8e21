#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <set>

#include "base/errors.hpp"
#include "base/rounding.hpp"
#include "exec/data/safetensors.hpp"

namespace spillway {

namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

constexpr std::uint64_t data_alignment = 4096;
constexpr std::uint64_t piece_bytes = std::uint64_t{4} << 20;

std::uint64_t bytes_of(const SafetensorsTensor& tensor) {
  std::uint64_t elements = 1;
  for (const std::int64_t size : tensor.shape) {
    SPILLWAY_ASSERT(size >= 0, tensor.name);
    elements *= static_cast<std::uint64_t>(size);
  }
  return elements * bytes_of(tensor.type);
}

// The length and the JSON, padded to data_alignment.
std::string make_header(const std::vector<SafetensorsTensor>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!metadata.empty()) json["__metadata__"] = metadata;
  std::set<std::string> names = {"__metadata__"};
  std::uint64_t offset = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    SPILLWAY_ASSERT(names.insert(tensor.name).second, "two tensors are called " + tensor.name);
    const std::uint64_t end = offset + bytes_of(tensor);
    json[tensor.name] = {
        {"dtype", name_of(tensor.type)}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = json.dump();
  const std::uint64_t start = round_up(sizeof(std::uint64_t) + text.size(), data_alignment);
  const std::uint64_t length = start - sizeof(std::uint64_t);
  text.resize(length, ' ');
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
}

}  // namespace

void write_safetensors(const FilePlace& place, const std::vector<SafetensorsTensor>& tensors,
                       const SafetensorsSource& source,
                       const std::map<std::string, std::string>& metadata,
                       const ReplaceOnly* only) {
  const std::string header = make_header(tensors, metadata);
  std::uint64_t total = header.size();
  for (const SafetensorsTensor& tensor : tensors) total += bytes_of(tensor);

  NewFile file(place, 0666, only);
  file.reserve(total);
  file.write(std::as_bytes(std::span(header)));
  std::vector<std::byte> buffer(std::min(piece_bytes, total));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::uint64_t bytes = bytes_of(tensors[i]);
    for (std::uint64_t offset = 0; offset < bytes; offset += piece_bytes) {
      const auto piece = std::span(buffer).first(std::min(piece_bytes, bytes - offset));
      source(i, offset, piece);
      file.write(piece);
    }
  }
  file.commit();
}

}  // namespace spillway
