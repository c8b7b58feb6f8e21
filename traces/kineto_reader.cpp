// read_kineto: one pass over the JSON by nlohmann's SAX parser, so that a large trace needs no
// document tree.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>

#include "base/errors.hpp"
#include "traces/file_source.hpp"
#include "traces/json_scalar.hpp"
#include "traces/kineto.hpp"
#include "traces/tracked_text.hpp"

namespace spillway {

namespace {

using trace_format::Scalar;
using trace_format::TrackedIterator;

constexpr const char* give_kineto =
    "give a trace that torch.profiler exported (export_chrome_trace, or tensorboard_trace_handler)";
constexpr std::int64_t furthest_ns = 4'000'000'000'000'000'000;  // 127 years: differences have room
constexpr std::size_t deepest = 100;  // objects and arrays within each other

// Texts, each once, by their numbers.
class TextPool {
 public:
  std::uint32_t number_of(const std::string& text) {
    const auto [at, fresh] = numbers_.emplace(text, static_cast<std::uint32_t>(texts_.size()));
    if (fresh) texts_.push_back(text);
    return at->second;
  }
  std::vector<std::string> take() { return std::move(texts_); }

 private:
  std::unordered_map<std::string, std::uint32_t> numbers_;
  std::vector<std::string> texts_;
};

// Receives nlohmann's SAX events.
class KinetoReader {
 public:
  KinetoReader(const std::string& path, const std::string& text, const std::set<std::string>& args)
      : path_(path), text_(text), wanted_(args), reached_(text.data()) {
    texts_.number_of("");  // number 0: the category of events without one
  }

  KinetoTrace read() {
    const char* const end = text_.data() + text_.size();
    if (text_.empty()) fail("the file is empty");
    nlohmann::json::sax_parse(TrackedIterator{text_.data(), &reached_},
                              TrackedIterator{end, &reached_}, this);
    reached_ = end;
    if (trace_.events.empty()) {
      throw InputError(path_, 0, "holds no complete events (\"ph\": \"X\")", give_kineto);
    }
    trace_.texts = texts_.take();
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

  bool end_object() {
    const Place place = places_.back();
    places_.pop_back();
    if (place == Place::event) finish_event();
    return true;
  }
  bool end_array() {
    places_.pop_back();
    return true;
  }
  bool key(std::string& value) {
    key_ = value;
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
  enum class Place { top, events, event, args, skipped };

  // What an event says of itself.
  struct Given {
    std::string phase;
    std::optional<std::string> name, process, thread, thread_name;
    std::optional<std::int64_t> start_ns, duration_ns;
    KinetoEvent event;
  };

  [[noreturn]] void fail(const std::string& what) const {
    throw InputError(path_, trace_format::line_of(text_, reached_), what,
                     "export the trace again, or copy the file again");
  }

  bool enter(bool object) {
    if (places_.size() >= deepest) fail(fmt::format("nested more than {} deep", deepest));
    places_.push_back(inner_place(object));
    return true;
  }

  // The place that an object or array opens. A file is an object that holds traceEvents, or the
  // list of events itself.
  Place inner_place(bool object) {
    if (places_.empty()) return object ? Place::top : Place::events;
    switch (places_.back()) {
      case Place::top:
        return !object && key_ == "traceEvents" ? Place::events : Place::skipped;
      case Place::events:
        if (!object) fail("an event must be an object");
        given_ = {};
        return Place::event;
      case Place::event:
        return object && key_ == "args" ? Place::args : Place::skipped;
      default:
        return Place::skipped;
    }
  }

  bool scalar(const Scalar& value) {
    if (places_.empty()) fail("not a trace: it holds one value");
    switch (places_.back()) {
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

  void event_value(const Scalar& value) {
    if (key_ == "ph") given_.phase = plain_text(value);
    if (key_ == "name") given_.name = plain_text(value);
    if (key_ == "cat") given_.event.category = texts_.number_of(plain_text(value));
    if (key_ == "pid") given_.process = plain_text(value);
    if (key_ == "tid") given_.thread = plain_text(value);
    if (key_ == "ts") given_.start_ns = nanoseconds_of(value);
    if (key_ == "dur") given_.duration_ns = nanoseconds_of(value);
  }

  void argument(const Scalar& value) {
    if (key_ == "name") given_.thread_name = plain_text(value);
    if (wanted_.contains(key_)) {
      given_.event.args.emplace_back(texts_.number_of(key_), texts_.number_of(plain_text(value)));
    }
  }

  void finish_event() {
    if (given_.phase == "M" && given_.name == "thread_name" && given_.thread_name) {
      trace_.threads[thread()].name = *given_.thread_name;
    }
    if (given_.phase != "X") {
      ++trace_.skipped_events;
      return;
    }
    if (!given_.name) fail("the event lacks \"name\"");
    if (!given_.start_ns) fail("the event lacks \"ts\"");
    if (!given_.duration_ns) fail("the event lacks \"dur\"");
    KinetoEvent& event = given_.event;
    event.name = texts_.number_of(*given_.name);
    event.thread = thread();
    event.start_ns = *given_.start_ns;
    if (*given_.duration_ns < 0 ||
        __builtin_add_overflow(event.start_ns, *given_.duration_ns, &event.end_ns)) {
      fail("\"dur\" is out of range");
    }
    if (event.start_ns < -furthest_ns || event.end_ns > furthest_ns) fail("\"ts\" is out of range");
    trace_.events.push_back(std::move(event));
  }

  // The event's thread, which is added where it is new.
  std::uint32_t thread() {
    if (!given_.thread) fail("the event lacks \"tid\"");
    const std::string process = given_.process.value_or("");
    const auto [at, fresh] = threads_.emplace(process + "\n" + *given_.thread,
                                              static_cast<std::uint32_t>(trace_.threads.size()));
    if (fresh) trace_.threads.push_back({process, *given_.thread, ""});
    return at->second;
  }

  static std::string plain_text(const Scalar& value) {
    return value.type == Scalar::Type::string ? value.text : trace_format::json_text(value);
  }

  std::int64_t nanoseconds_of(const Scalar& value) const {
    const std::optional<std::int64_t> result = trace_format::nanoseconds(value);
    if (!result) fail(fmt::format("\"{}\" must be a time in microseconds", key_));
    return *result;
  }

  const std::string& path_;
  const std::string& text_;
  const std::set<std::string>& wanted_;
  const char* reached_;  // the parser has read up to here
  std::vector<Place> places_;
  std::string key_;
  TextPool texts_;
  std::unordered_map<std::string, std::uint32_t> threads_;
  Given given_;
  KinetoTrace trace_;
};

}  // namespace

KinetoTrace read_kineto(const std::string& path, const std::set<std::string>& args) {
  const std::string text = trace_format::read_whole_file(path, give_kineto);
  return KinetoReader(path, text, args).read();
}

}  // namespace spillway
