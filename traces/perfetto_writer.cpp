// write_trace: the header, the metadata, then one event a line, streamed in 1 MiB pieces.
#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "base/errors.hpp"
#include "traces/file_sink.hpp"
#include "traces/perfetto.hpp"
#include "traces/trace_format.hpp"

namespace spillway {

namespace {

constexpr std::size_t piece_bytes = 1 << 20;

// A JSON string. Bytes that are not UTF-8 (a name from outside) become U+FFFD rather than bad JSON.
std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::vector<std::string> quoted_all(const std::vector<std::string>& texts) {
  std::vector<std::string> result;
  for (const std::string& text : texts) result.push_back(quoted(text));
  return result;
}

class Writer {
 public:
  Writer(const Trace& trace, FileSink& sink)
      : trace_(trace),
        sink_(sink),
        kinds_(quoted_all(trace.kinds)),
        phases_(quoted_all(trace.phases)) {}

  void write() {
    header();
    metadata();
    raw("\"traceEvents\":[\n");
    tracks();
    for (const Span& span : trace_.spans) complete_event(span);
    counters();
    raw("\n]}\n");
    sink_.write({buffer_.data(), buffer_.size()});
  }

 private:
  template <class... Args>
  void text(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(buffer_), format, std::forward<Args>(args)...);
  }
  void raw(std::string_view piece) { buffer_.append(piece); }

  // Starts an event on a line of its own.
  void event() {
    if (buffer_.size() >= piece_bytes) {
      sink_.write({buffer_.data(), buffer_.size()});
      buffer_.clear();
    }
    if (!first_event_) raw(",\n");
    first_event_ = false;
  }

  // Nanoseconds as microseconds, digit for digit: a double would lose the last ones after some
  // days.
  void microseconds(std::int64_t ns) {
    const std::uint64_t size =
        ns < 0 ? 0 - static_cast<std::uint64_t>(ns) : static_cast<std::uint64_t>(ns);
    text("{}{}.{:03}", ns < 0 ? "-" : "", size / 1000, size % 1000);
  }

  // Kinds, phases and tiers are written by name, so two of one name could not be told apart.
  static void require_distinct(const std::vector<std::string>& names) {
    const std::set<std::string> distinct(names.begin(), names.end());
    SPILLWAY_ASSERT(distinct.size() == names.size(), "two kinds, phases or tiers share a name");
  }

  void header() {
    for (const auto* list : {&trace_.kinds, &trace_.phases, &trace_.tiers}) require_distinct(*list);
    text("{{\"displayTimeUnit\":\"ns\",\n\"spillway\":{{\"format\":\"{}\",\"version\":{}",
         trace_format::name, trace_format::version);
    names("lanes", quoted_all(trace_.lanes));
    names("kinds", kinds_);
    names("phases", phases_);
    names("tiers", quoted_all(trace_.tiers));
    text(",\"spans\":{},\"memory_samples\":{}}},\n", trace_.spans.size(), trace_.memory.size());
  }

  void names(std::string_view key, const std::vector<std::string>& quoted_names) {
    text(",\"{}\":[{}]", key, fmt::join(quoted_names, ","));
  }

  void metadata() {
    raw("\"otherData\":{");
    const char* separator = "";
    for (const auto& [key, json_text] : trace_.metadata) {
      SPILLWAY_ASSERT(nlohmann::json::accept(json_text),
                      "metadata '" + key + "' is not JSON: " + json_text);
      text("{}\n{}:{}", separator, quoted(key), json_text);
      separator = ",";
    }
    raw("},\n");
  }

  void metadata_event(std::string_view name, int thread, std::string_view argument,
                      std::string_view json_value) {
    event();
    text("{{\"ph\":\"M\",\"pid\":{},\"tid\":{},\"name\":\"{}\",\"args\":{{\"{}\":{}}}}}",
         trace_format::process, thread, name, argument, json_value);
  }

  void tracks() {
    metadata_event("process_name", 0, "name", "\"spillway\"");
    for (std::size_t lane = 0; lane < trace_.lanes.size(); ++lane) {
      const int thread = static_cast<int>(lane) + trace_format::first_thread;
      metadata_event("thread_name", thread, "name", quoted(trace_.lanes[lane]));
      metadata_event("thread_sort_index", thread, "sort_index", std::to_string(lane));
    }
  }

  // "forward L3 m1"
  std::string display_name(const Span& span) const {
    std::string name = trace_.kinds[span.kind];
    if (span.layer >= 0) name += " L" + std::to_string(span.layer);
    if (span.micro_batch >= 0) name += " m" + std::to_string(span.micro_batch);
    return name;
  }

  void complete_event(const Span& span) {
    SPILLWAY_ASSERT(span.lane < trace_.lanes.size() && span.kind < trace_.kinds.size() &&
                        span.phase < trace_.phases.size(),
                    fmt::format("task {} names an unknown lane, kind or phase", span.task));
    SPILLWAY_ASSERT(
        span.end_ns >= span.start_ns && std::isfinite(span.flops),
        fmt::format("task {} ends before it starts, or its work is not a number", span.task));
    event();
    text("{{\"ph\":\"X\",\"pid\":{},\"tid\":{},\"name\":{},\"cat\":{},\"ts\":",
         trace_format::process, span.lane + trace_format::first_thread, quoted(display_name(span)),
         kinds_[span.kind]);
    microseconds(span.start_ns);
    raw(",\"dur\":");
    microseconds(span.end_ns - span.start_ns);
    text(",\"args\":{{\"task\":{},\"kind\":{},\"segment\":{},\"step\":{},\"phase\":{}", span.task,
         kinds_[span.kind], span.segment, span.step, phases_[span.phase]);
    text(",\"layer\":{},\"micro_batch\":{},\"bytes\":{},\"flops\":{},\"params\":{}}}}}", span.layer,
         span.micro_batch, span.bytes, span.flops, span.params);
  }

  void counters() {
    std::vector<std::string> names;
    for (const std::string& tier : trace_.tiers) {
      names.push_back(quoted(std::string(trace_format::counter_prefix) + tier));
    }
    for (const MemorySample& sample : trace_.memory) {
      SPILLWAY_ASSERT(sample.tier < trace_.tiers.size(), "a memory sample names an unknown tier");
      event();
      text("{{\"ph\":\"C\",\"pid\":{},\"tid\":0,\"name\":{},\"ts\":", trace_format::process,
           names[sample.tier]);
      microseconds(sample.time_ns);
      text(",\"args\":{{\"bytes\":{}}}}}", sample.bytes);
    }
  }

  const Trace& trace_;
  FileSink& sink_;
  std::vector<std::string> kinds_, phases_;  // quoted once, written per span
  fmt::memory_buffer buffer_;
  bool first_event_ = true;
};

// As much of the beginning as `head` holds, decompressed where it is gzip.
std::string beginning_of(std::span<const std::byte> head) {
  const auto* const bytes = reinterpret_cast<const char*>(head.data());
  const bool compressed = head.size() > 2 && bytes[0] == '\x1f' && bytes[1] == '\x8b';
  if (!compressed) return {bytes, head.size()};
  std::string text(4096, '\0');
  z_stream stream{};
  constexpr int gzip_window = 15 + 16;
  if (::inflateInit2(&stream, gzip_window) != Z_OK) return {};
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes));
  stream.avail_in = static_cast<unsigned>(head.size());
  stream.next_out = reinterpret_cast<Bytef*>(text.data());
  stream.avail_out = static_cast<unsigned>(text.size());
  ::inflate(&stream, Z_SYNC_FLUSH);
  text.resize(text.size() - stream.avail_out);
  ::inflateEnd(&stream);
  return text;
}

}  // namespace

const ReplaceOnly& only_a_trace() {
  static const ReplaceOnly only = {
      "a trace of Spillway's", [](std::span<const std::byte> head) {
        return beginning_of(head).find(fmt::format("\"spillway\":{{\"format\":\"{}\"",
                                                   trace_format::name)) != std::string::npos;
      }};
  return only;
}

void write_trace(const Trace& trace, const FilePlace& place) {
  FileSink sink(
      place,
      place.path.extension() == ".gz" ? FileSink::Compression::gzip : FileSink::Compression::none,
      &only_a_trace());
  Writer(trace, sink).write();
  sink.commit();
}

}  // namespace spillway
