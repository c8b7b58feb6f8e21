// read_trace: one pass over the JSON by nlohmann's SAX parser, event by event, so that a large
// trace needs no document tree. Keys may come in any order, except that the header precedes the
// events.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/errors.hpp"
#include "traces/file_source.hpp"
#include "traces/json_scalar.hpp"
#include "traces/perfetto.hpp"
#include "traces/trace_format.hpp"
#include "traces/tracked_text.hpp"

namespace spillway {

namespace {

using trace_format::Scalar;
using trace_format::TrackedIterator;

// The keys of an event that the reader looks at; the rest is for Perfetto.
enum class Field : unsigned {
  ph,
  tid,
  name,
  ts,
  dur,
  task,
  kind,
  segment,
  step,
  phase,
  layer,
  micro_batch,
  bytes,
  flops,
  params
};
constexpr const char* field_names[] = {"ph",    "tid",         "name",    "ts",    "dur",
                                       "task",  "kind",        "segment", "step",  "phase",
                                       "layer", "micro_batch", "bytes",   "flops", "params"};

constexpr unsigned bit(Field field) { return 1u << static_cast<unsigned>(field); }
constexpr unsigned needed_by_span =
    bit(Field::tid) | bit(Field::ts) | bit(Field::dur) | bit(Field::task) | bit(Field::kind) |
    bit(Field::segment) | bit(Field::step) | bit(Field::phase) | bit(Field::layer) |
    bit(Field::micro_batch) | bit(Field::bytes) | bit(Field::flops) | bit(Field::params);
constexpr unsigned needed_by_sample = bit(Field::name) | bit(Field::ts) | bit(Field::bytes);

// Of objects and arrays within each other. Metadata is handed on as JSON, and others read it by
// recursion.
constexpr std::size_t most_depth = 100;

struct Event {
  unsigned present = 0;  // bits of Field
  std::string ph, name, kind, phase;
  std::int64_t thread = 0, duration_ns = 0;
  Span span;
};

using Indices = std::unordered_map<std::string, std::uint16_t>;

// Receives nlohmann's SAX events.
class Reader {
 public:
  Reader(const std::string& path, const std::string& text)
      : path_(path), text_(text), reached_(text.data()) {}

  Trace read() {
    const char* const end = text_.data() + text_.size();
    if (text_.empty()) fail("the file is empty");
    // A description, a table, a picture.
    constexpr const char* blank = " \t\r\n\xEF\xBB\xBF";  // with a byte order mark
    if (text_.find_first_not_of(blank) != text_.find('{')) fail_foreign();
    nlohmann::json::sax_parse(TrackedIterator{text_.data(), &reached_},
                              TrackedIterator{end, &reached_}, this);
    reached_ = end;
    if (!header_seen_) fail_foreign();
    if (!events_seen_ || trace_.spans.size() != spans_ || trace_.memory.size() != samples_) {
      fail(fmt::format("{} spans and {} memory samples were announced, {} and {} are there", spans_,
                       samples_, trace_.spans.size(), trace_.memory.size()));
    }
    return std::move(trace_);
  }

  bool null() { return scalar({}); }
  bool boolean(bool value) { return scalar({.type = Scalar::Type::boolean, .truth = value}); }
  bool number_integer(std::int64_t value) {
    return scalar({.type = Scalar::Type::negative, .negative = value});
  }
  bool number_unsigned(std::uint64_t value) {
    return scalar({.type = Scalar::Type::natural, .natural = value});
  }
  bool number_float(double value, const std::string& digits) {
    return scalar({.type = Scalar::Type::real, .real = value, .text = digits});
  }
  bool string(std::string& value) {
    return scalar({.type = Scalar::Type::string, .text = std::move(value)});
  }
  bool binary(nlohmann::json::binary_t&) { return false; }  // JSON text has none
  bool start_object(std::size_t) { return enter(true); }
  bool start_array(std::size_t) { return enter(false); }
  bool end_object() { return leave('}'); }
  bool end_array() { return leave(']'); }

  bool key(std::string& value) {
    if (places_.back() == Place::metadata_value) {
      capture(nlohmann::json(value).dump() + ":");
    } else {
      key_ = value;
    }
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) {
    const bool cut_off = position > text_.size();
    reached_ = text_.data() + std::min(position, text_.size());
    if (cut_off)
      fail(fmt::format("the file ends in the middle of the trace, after {} bytes", text_.size()));
    fail(fmt::format("not valid JSON at byte {}", position));
  }

 private:
  enum class Place { top, header, names, metadata, metadata_value, events, event, args, skipped };

  [[noreturn]] void fail(
      const std::string& what,
      const std::string& hint = "the trace is damaged or was edited: record it again") const {
    throw InputError(path_, trace_format::line_of(text_, reached_), what, hint);
  }

  [[noreturn]] void fail_foreign() const {
    fail("not a trace of Spillway",
         "give a trace that `spillway simulate` or `spillway train` wrote");
  }

  bool enter(bool object) {
    if (places_.size() >= most_depth) fail(fmt::format("nested more than {} deep", most_depth));
    places_.push_back(inner_place(object));
    return true;
  }

  // The place that an object or array opens.
  Place inner_place(bool object) {
    if (places_.empty()) {
      if (!object) fail_foreign();
      return Place::top;
    }
    switch (places_.back()) {
      case Place::top:
        if (object && key_ == "spillway") return Place::header;
        if (object && key_ == "otherData") return Place::metadata;
        if (key_ != "traceEvents") return Place::skipped;
        if (object || !header_seen_) fail_foreign();
        events_seen_ = true;
        return Place::events;
      case Place::header:
        return !object && names_of(key_) != nullptr ? Place::names : Place::skipped;
      case Place::names:
        fail("a name must be a string");
      case Place::metadata:
      case Place::metadata_value:
        capture(object ? "{" : "[");
        return Place::metadata_value;
      case Place::events:
        if (!object) fail("an event must be an object");
        event_.present = 0;
        return Place::event;
      case Place::event:
        return object && key_ == "args" ? Place::args : Place::skipped;
      default:
        return Place::skipped;
    }
  }

  bool leave(char closer) {
    const Place place = places_.back();
    places_.pop_back();
    if (place == Place::header) check_header();
    if (place == Place::event) finish_event();
    if (place == Place::metadata_value) {
      captured_ += closer;
      if (places_.back() == Place::metadata) finish_metadata();
    }
    return true;
  }

  bool scalar(const Scalar& value) {
    if (places_.empty()) fail_foreign();
    switch (places_.back()) {
      case Place::header:
        header_value(value);
        break;
      case Place::names:
        names_of(key_)->push_back(string_of(value));
        break;
      case Place::metadata:
      case Place::metadata_value:
        capture(trace_format::json_text(value));
        if (places_.back() == Place::metadata) finish_metadata();
        break;
      case Place::events:
        fail("an event must be an object");
      case Place::event:
        event_value(value);
        break;
      case Place::args:
        argument(value);
        break;
      default:
        break;
    }
    return true;
  }

  // -- header
  // --------------------------------------------------------------------------------------

  std::vector<std::string>* names_of(const std::string& key) {
    if (key == "lanes") return &trace_.lanes;
    if (key == "kinds") return &trace_.kinds;
    if (key == "phases") return &trace_.phases;
    if (key == "tiers") return &trace_.tiers;
    return nullptr;
  }

  void header_value(const Scalar& value) {
    if (key_ == "format") format_ = string_of(value);
    if (key_ == "version") version_ = integer_of<int>(value);
    if (key_ == "spans") spans_ = integer_of<std::size_t>(value);
    if (key_ == "memory_samples") samples_ = integer_of<std::size_t>(value);
  }

  void check_header() {
    if (format_ != trace_format::name) fail_foreign();
    if (version_ != trace_format::version) {
      fail(fmt::format("trace format version {}; this program reads version {}", version_,
                       trace_format::version),
           "use the Spillway that wrote it, or record it again");
    }
    header_seen_ = true;
    for (const auto* names : {&trace_.lanes, &trace_.kinds, &trace_.phases, &trace_.tiers}) {
      constexpr std::size_t most = std::numeric_limits<std::uint16_t>::max();
      if (names->size() > most) fail(fmt::format("a list of more than {} names", most));
    }
    const auto index = [this](const std::vector<std::string>& names, Indices& indices) {
      for (std::size_t i = 0; i < names.size(); ++i) {
        if (!indices.emplace(names[i], static_cast<std::uint16_t>(i)).second)
          fail(fmt::format("two kinds, phases or tiers are called \"{}\"", names[i]));
      }
    };
    index(trace_.kinds, kinds_);
    index(trace_.phases, phases_);
    index(trace_.tiers, tiers_);
  }

  // -- metadata: values are kept as compact JSON text, in the order of the file
  // -----------------------

  void capture(std::string_view piece) {
    if (!captured_.empty() &&
        std::string_view("{[:").find(captured_.back()) == std::string_view::npos)
      captured_ += ',';
    captured_ += piece;
  }

  void finish_metadata() { trace_.metadata.emplace_back(key_, std::exchange(captured_, {})); }

  // -- events
  // ----------------------------------------------------------------------------------------

  bool is(Field field) const { return key_ == field_names[static_cast<unsigned>(field)]; }

  // Whether the current key is `field`; if so, notes that the event has it.
  bool take(Field field) {
    if (!is(field)) return false;
    event_.present |= bit(field);
    return true;
  }

  void event_value(const Scalar& value) {
    if (take(Field::ph))
      event_.ph = string_of(value);
    else if (take(Field::name))
      event_.name = string_of(value);
    else if (take(Field::tid))
      event_.thread = integer_of<std::int64_t>(value);
    else if (take(Field::ts))
      event_.span.start_ns = nanoseconds_of(value);
    else if (take(Field::dur))
      event_.duration_ns = nanoseconds_of(value);
  }

  void argument(const Scalar& value) {
    Span& span = event_.span;
    if (take(Field::task))
      span.task = integer_of<std::uint32_t>(value);
    else if (take(Field::kind))
      event_.kind = string_of(value);
    else if (take(Field::segment))
      span.segment = integer_of<std::int32_t>(value);
    else if (take(Field::step))
      span.step = integer_of<std::int32_t>(value);
    else if (take(Field::phase))
      event_.phase = string_of(value);
    else if (take(Field::layer))
      span.layer = integer_of<std::int32_t>(value);
    else if (take(Field::micro_batch))
      span.micro_batch = integer_of<std::int32_t>(value);
    else if (take(Field::bytes))
      span.bytes = integer_of<std::uint64_t>(value);
    else if (take(Field::flops))
      span.flops = real_of(value);
    else if (take(Field::params))
      span.params = integer_of<std::uint64_t>(value);
  }

  void finish_event() {
    if (event_.ph == "X") {
      finish_span();
    } else if (event_.ph == "C") {
      finish_sample();
    }  // "M" names the tracks for Perfetto; the header has said it already
  }

  void require(unsigned fields) const {
    const unsigned missing = fields & ~event_.present;
    if (missing != 0)
      fail(fmt::format("the event lacks \"{}\"", field_names[std::countr_zero(missing)]));
  }

  void finish_span() {
    require(needed_by_span);
    Span span = event_.span;
    const std::int64_t lane = event_.thread - trace_format::first_thread;
    if (lane < 0 || lane >= std::ssize(trace_.lanes))
      fail(fmt::format("no lane has tid {}", event_.thread));
    span.lane = static_cast<std::uint16_t>(lane);
    span.kind = index_of(kinds_, event_.kind);
    span.phase = index_of(phases_, event_.phase);
    if (event_.duration_ns < 0 ||
        __builtin_add_overflow(span.start_ns, event_.duration_ns, &span.end_ns)) {
      fail("\"dur\" is out of range");
    }
    trace_.spans.push_back(span);
  }

  void finish_sample() {
    require(needed_by_sample);
    const auto prefix = trace_format::counter_prefix;
    if (!event_.name.starts_with(prefix)) return;  // a counter that some other tool added
    const std::uint16_t tier = index_of(tiers_, event_.name.substr(prefix.size()));
    trace_.memory.push_back({event_.span.start_ns, tier, event_.span.bytes});
  }

  std::uint16_t index_of(const Indices& indices, const std::string& name) const {
    const auto found = indices.find(name);
    if (found == indices.end())
      fail(fmt::format("\"{}\" is not among the names in the header", name));
    return found->second;
  }

  // -- values
  // ----------------------------------------------------------------------------------------

  const std::string& string_of(const Scalar& value) const {
    if (value.type != Scalar::Type::string) fail(fmt::format("\"{}\" must be a string", key_));
    return value.text;
  }

  template <class Integer>
  Integer integer_of(const Scalar& value) const {
    const std::optional<Integer> result = trace_format::integer<Integer>(value);
    if (!result) {
      fail(fmt::format("\"{}\" must be a whole number from {} to {}", key_,
                       std::numeric_limits<Integer>::min(), std::numeric_limits<Integer>::max()));
    }
    return *result;
  }

  double real_of(const Scalar& value) const {
    const std::optional<double> result = trace_format::real(value);
    if (!result) fail(fmt::format("\"{}\" must be a number", key_));
    return *result;
  }

  std::int64_t nanoseconds_of(const Scalar& value) const {
    const std::optional<std::int64_t> result = trace_format::nanoseconds(value);
    if (!result) fail(fmt::format("\"{}\" must be a time in microseconds", key_));
    return *result;
  }

  const std::string& path_;
  const std::string& text_;
  const char* reached_;  // the parser has read up to here
  std::vector<Place> places_;
  std::string key_, captured_, format_;
  int version_ = 0;
  std::size_t spans_ = 0, samples_ = 0;  // announced in the header
  bool header_seen_ = false, events_seen_ = false;
  Indices kinds_, phases_, tiers_;
  Event event_;
  Trace trace_;
};

}  // namespace

Trace read_trace(const std::string& path) {
  const std::string text = trace_format::read_whole_file(
      path, "give a trace that `spillway simulate` or `spillway train` wrote");
  return Reader(path, text).read();
}

}  // namespace spillway
