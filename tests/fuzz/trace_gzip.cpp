// Compressed traces. After a byte 'z' the rest is a trace that is compressed here, whole or cut
// off, so that mutations reach beyond its checksum; other input is the file as it is.
#include <zlib.h>

#include <vector>

#include "tests/fuzz/fuzz.hpp"
#include "tests/fuzz/support/traces.hpp"
#include "traces/perfetto.hpp"

using namespace spillway;

namespace {

std::vector<std::uint8_t> compressed(fuzz::Bytes text) {
  z_stream stream{};
  constexpr int with_gzip_header = 15 + 16;
  fuzz::require(
      deflateInit2(&stream, 1, Z_DEFLATED, with_gzip_header, 8, Z_DEFAULT_STRATEGY) == Z_OK,
      "zlib can begin to compress");
  std::vector<std::uint8_t> bytes(deflateBound(&stream, text.size()));
  stream.next_in = const_cast<Bytef*>(text.data());
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = bytes.data();
  stream.avail_out = static_cast<uInt>(bytes.size());
  fuzz::require(deflate(&stream, Z_FINISH) == Z_STREAM_END, "zlib compresses in one go");
  bytes.resize(stream.total_out);
  deflateEnd(&stream);
  return bytes;
}

bool read_file(const fuzz::ScratchFolder& folder, fuzz::Bytes bytes, Trace& trace) {
  const std::string path = folder.write("in.json.gz", bytes).string();
  return fuzz::accepted([&] { trace = read_trace(path); });
}

}  // namespace

SPILLWAY_FUZZ_TARGET(trace_gzip) {
  static const fuzz::ScratchFolder folder;
  Trace trace;
  if (input.size() < 2 || input.front() != 'z') {
    if (!read_file(folder, input, trace)) return;
    fuzz::check_round_trip(trace, folder.path() / "out.json.gz");
    return;
  }
  // The byte after 'z' says how much is cut off: nothing, or up to 255 bytes.
  const fuzz::Bytes text = input.subspan(2);
  const std::vector<std::uint8_t> whole = compressed(text);
  const std::size_t cut = std::min<std::size_t>(input[1], whole.size());
  Trace plain;
  const bool plain_is_a_trace = read_file(folder, text, plain);
  const bool is_a_trace = read_file(folder, {whole.data(), whole.size() - cut}, trace);
  if (cut > 0) {
    fuzz::require(!is_a_trace, "a compressed file that is cut off is refused");
    return;
  }
  // Text that looks compressed itself is not decompressed twice.
  if (text.size() >= 2 && text[0] == 0x1f && text[1] == 0x8b) return;
  fuzz::require(is_a_trace == plain_is_a_trace && (!is_a_trace || fuzz::equal(trace, plain)),
                "a trace is the same one compressed");
  if (is_a_trace) fuzz::check_round_trip(trace, folder.path() / "out.json.gz");
}
