// Safetensors files. Input that begins with '{' is a header of JSON up to a zero byte and then the
// data, and gets the length of the header in front; other input is a whole file.
#include "exec/data/safetensors.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/fuzz/fuzz.hpp"

using namespace spillway;

namespace {

std::vector<std::uint8_t> file_of(fuzz::Bytes input) {
  std::vector<std::uint8_t> file(input.begin(), input.end());
  if (input.empty() || input.front() != '{') return file;
  const auto zero = std::find(file.begin(), file.end(), std::uint8_t{0});
  const std::uint64_t length = static_cast<std::uint64_t>(zero - file.begin());
  if (zero != file.end()) file.erase(zero);
  std::uint8_t bytes[sizeof length];
  std::memcpy(bytes, &length, sizeof length);
  file.insert(file.begin(), bytes, bytes + sizeof length);
  return file;
}

// The same file by our writer, read again.
void write_again(const SafetensorsFile& file, const std::filesystem::path& path) {
  std::vector<SafetensorsTensor> tensors;
  std::vector<std::vector<float>> values;
  for (const SafetensorsFile::Tensor& tensor : file.tensors()) {
    if (tensor.type != "F32" || tensor.name == "__metadata__") return;
    values.push_back(file.read(tensor.name));
    tensors.push_back({tensor.name, tensor.shape});
  }
  write_safetensors(
      path, tensors,
      [&](std::size_t tensor, std::uint64_t offset, std::span<std::byte> piece) {
        std::memcpy(piece.data(), reinterpret_cast<const char*>(values[tensor].data()) + offset,
                    piece.size());
      },
      file.metadata());
  const SafetensorsFile again(path);
  fuzz::require(again.metadata() == file.metadata(), "metadata is the same again");
  fuzz::require(again.tensors().size() == tensors.size(), "there are as many tensors again");
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::vector<float> read = again.read(tensors[i].name);
    fuzz::require(read.size() == values[i].size() &&
                      (read.empty() || std::memcmp(read.data(), values[i].data(),
                                                   read.size() * sizeof(float)) == 0),
                  "a tensor has the same values again");
  }
}

}  // namespace

SPILLWAY_FUZZ_TARGET(safetensors) {
  static const fuzz::ScratchFolder folder;
  const std::filesystem::path path = folder.write("in.safetensors", file_of(input));
  fuzz::accepted([&] {
    const SafetensorsFile file(path);
    for (const SafetensorsFile::Tensor& tensor : file.tensors()) {
      const bool read = fuzz::accepted([&] { static_cast<void>(file.read(tensor.name)); });
      fuzz::require(read == (tensor.type == "F32"), "what is F32, and no other, can be read");
    }
    fuzz::require(fuzz::accepted([&] { write_again(file, folder.path() / "out.safetensors"); }),
                  "what was read can be written and read again");
  });
}
