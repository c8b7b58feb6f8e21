#include "text/tokens/packing.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <map>
#include <string>

#include "base/errors.hpp"
#include "text/tokens/hold_out.hpp"
#include "text/tokens/permutation.hpp"

namespace spillway {

namespace {

// A file without a name that grows and is then read as memory.
class ScratchFile {
 public:
  explicit ScratchFile(const std::filesystem::path& folder) : folder_(folder) {
    std::string name = (folder / "spillway-packing-XXXXXX").string();
    file_ = FileDescriptor(::mkostemp(name.data(), O_CLOEXEC));
    if (!file_.valid())
      throw MachineError::from_errno("cannot make a file in " + folder.string(), errno);
    ::unlink(name.c_str());
  }

  template <class Value>
  void add(const Value& value) {
    const auto* const bytes = reinterpret_cast<const std::byte*>(&value);
    buffer_.insert(buffer_.end(), bytes, bytes + sizeof value);
    if (buffer_.size() >= std::size_t{1} << 20) flush();
  }

  MappedFile map() {
    flush();
    return MappedFile(file_.get(), folder_);
  }

 private:
  void flush() {
    for (std::size_t done = 0; done < buffer_.size();) {
      const ssize_t count = ::write(file_.get(), buffer_.data() + done, buffer_.size() - done);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) throw MachineError::from_errno("cannot write to " + folder_.string(), errno);
      done += static_cast<std::size_t>(count);
    }
    buffer_.clear();
  }

  std::filesystem::path folder_;
  FileDescriptor file_;
  std::vector<std::byte> buffer_;
};

template <class Value>
std::span<const Value> values_in(const MappedFile& file) {
  return {reinterpret_cast<const Value*>(file.bytes().data()), file.bytes().size() / sizeof(Value)};
}

[[noreturn]] void refuse_empty(const PackingCounts& counts, Side side) {
  std::vector<std::string> why;
  const auto add = [&](std::uint64_t count, const char* what, const char* whats) {
    if (count > 0) why.push_back(fmt::format("{} {}", count, count == 1 ? what : whats));
  };
  add(counts.too_short, "has a single token", "have a single token");
  add(counts.dropped, "is longer than a sequence", "are longer than a sequence");
  add(counts.untrained, "piece has nothing that is trained on",
      "pieces have nothing that is trained on");
  const char* const which = side == Side::training ? "training" : "validation";
  throw InputError(
      fmt::format("nothing is left of the {} data of {} document{}: {}", which, counts.documents,
                  counts.documents == 1 ? "" : "s", fmt::join(why, ", ")),
      counts.dropped + counts.untrained > 0
          ? "give a larger " + Setting{"sequence"} +
                (counts.dropped > 0 ? " or " + Setting{"long_documents", "cut"} : Message())
          : Message("documents of two tokens and more are trained on"));
}

}  // namespace

void PackingCounts::add(const PackingCounts& more) {
  documents += more.documents;
  sequences += more.sequences;
  inputs += more.inputs;
  counted += more.counted;
  cut += more.cut;
  dropped += more.dropped;
  split += more.split;
  too_short += more.too_short;
  untrained += more.untrained;
}

// Puts pieces of documents into sequences, window by window.
class PackedSequences::Builder {
 public:
  Builder(PackedSequences& owner, const std::filesystem::path& scratch)
      : owner_(owner),
        too_long_(owner.settings_.too_long),
        length_(static_cast<std::uint64_t>(owner.settings_.sequence)),
        segments_(scratch),
        sequences_(scratch) {
    if (too_long_ == TooLong::automatic)
      too_long_ = owner.corpus_.all_trained() ? TooLong::split : TooLong::cut;
  }

  void add_document(TokenCorpus::Range document) {
    PackingCounts& counts = owner_.counts_;
    ++counts.documents;
    const std::uint64_t places = document.size() - 1;
    if (places == 0) {
      ++counts.too_short;
    } else if (places <= length_) {
      add_piece({document.begin, places});
    } else if (too_long_ == TooLong::drop) {
      ++counts.dropped;
    } else if (too_long_ == TooLong::cut) {
      ++counts.cut;
      add_piece({document.begin, length_});
    } else {
      ++counts.split;
      for (std::uint64_t done = 0; done < places; done += length_)
        add_piece({document.begin + done, std::min(length_, places - done)});
    }
  }

  void finish() {
    pack_window();
    sequences_.add(SequenceRecord{segments_added_, 0});
    owner_.segment_file_ = segments_.map();
    owner_.sequence_file_ = sequences_.map();
    owner_.segments_ = values_in<Segment>(owner_.segment_file_);
    owner_.records_ = values_in<SequenceRecord>(owner_.sequence_file_);
  }

 private:
  struct Piece {
    Segment segment;
    std::uint64_t counted = 0;
  };
  struct Bin {
    std::uint64_t room = 0;
    std::vector<Piece> pieces;
  };

  void add_piece(const Segment& segment) {
    const std::uint64_t counted = owner_.corpus_.count_trained(segment.first + 1, segment.count);
    if (counted == 0) {
      ++owner_.counts_.untrained;
      return;
    }
    owner_.counts_.inputs += segment.count;
    owner_.counts_.counted += counted;
    window_.push_back({segment, counted});
    if (window_.size() == most_in_window) pack_window();
  }

  void pack_window() {
    std::vector<Bin> bins;
    if (owner_.settings_.packing == Packing::padded) {
      for (const Piece& piece : window_) bins.push_back({0, {piece}});
    } else {
      bins = best_fit();
    }
    for (const Bin& bin : bins) {
      SequenceRecord record{segments_added_, 0};
      for (const Piece& piece : bin.pieces) {
        segments_.add(piece.segment);
        ++segments_added_;
        record.counted += piece.counted;
      }
      sequences_.add(record);
      ++owner_.counts_.sequences;
    }
    window_.clear();
  }

  std::vector<Bin> best_fit() {
    std::stable_sort(window_.begin(), window_.end(), [](const Piece& a, const Piece& b) {
      return a.segment.count > b.segment.count;
    });
    std::vector<Bin> bins;
    std::map<std::uint64_t, std::vector<std::size_t>> by_room;
    for (const Piece& piece : window_) {
      std::size_t bin = bins.size();
      if (const auto found = by_room.lower_bound(piece.segment.count); found != by_room.end()) {
        bin = found->second.back();
        found->second.pop_back();
        if (found->second.empty()) by_room.erase(found);
      } else {
        bins.push_back({length_, {}});
      }
      bins[bin].room -= piece.segment.count;
      bins[bin].pieces.push_back(piece);
      if (bins[bin].room > 0) by_room[bins[bin].room].push_back(bin);
    }
    return bins;
  }

  PackedSequences& owner_;
  TooLong too_long_;
  std::uint64_t length_, segments_added_ = 0;
  ScratchFile segments_, sequences_;
  std::vector<Piece> window_;
};

PackedSequences::PackedSequences(const TokenCorpus& corpus, const PackSettings& settings,
                                 const HoldOut& hold_out, Side side)
    : corpus_(corpus), settings_(settings) {
  SPILLWAY_ASSERT(settings.sequence > 0);
  if (settings.packing == Packing::stream) {
    stream(hold_out, side);
    return;
  }
  if (!corpus.has_documents())
    throw InputError(
        corpus.files().front().path().string() + " does not say where its documents end",
        "use " + Setting{"pack", "stream"});
  const std::vector<bool> held = held_out(corpus, hold_out);
  Builder builder(
      *this, settings.scratch.empty() ? std::filesystem::temp_directory_path() : settings.scratch);
  const Permutation order(corpus.documents(), settings.seed);
  for (std::uint64_t i = 0; i < corpus.documents(); ++i) {
    const std::uint64_t document = order(i);
    if (held[document] == (side == Side::held_out)) builder.add_document(corpus.document(document));
  }
  builder.finish();
  if (counts_.sequences == 0) refuse_empty(counts_, side);
}

// What is held out of a stream is its end: where documents are not known, or do not matter, a part
// between others would be seen from both sides.
void PackedSequences::stream(const HoldOut& hold_out, Side side) {
  if (!corpus_.all_trained())
    throw InputError(Setting{"pack", "stream"} + " is for text of which all is trained on",
                     "use " + Setting{"pack", "on"});
  const std::uint64_t tokens = corpus_.tokens();
  std::uint64_t border = tokens;  // the first token that is held out
  if (hold_out.documents >= corpus_.documents())
    throw InputError(fmt::format("the data has {} documents: {} cannot be held out",
                                 corpus_.documents(), hold_out.documents),
                     "hold out a part: " + Setting{"validation", "1%"});
  if (hold_out.documents > 0)
    border = corpus_.document(corpus_.documents() - hold_out.documents).begin;
  else if (hold_out.fraction > 0)
    border = tokens - std::max<std::uint64_t>(
                          1, static_cast<std::uint64_t>(
                                 std::floor(static_cast<double>(tokens) * hold_out.fraction)));
  const auto length = static_cast<std::uint64_t>(settings_.sequence);
  stream_first_ = side == Side::training ? 0 : border;
  const std::uint64_t own = side == Side::training ? border : tokens - border;
  if (own < length + 1) {
    throw InputError(
        fmt::format("the {} data has {} tokens, a sequence of {} tokens needs {}",
                    side == Side::training ? "training" : "validation", own, length, length + 1),
        own < 2 ? "name more data"
                : "name more data, or choose " + Setting{"sequence", std::to_string(own - 1)} +
                      " or less");
  }
  counts_.documents = corpus_.documents();
  counts_.sequences = (own - 1) / length;
  counts_.inputs = counts_.counted = counts_.sequences * length;
}

double PackedSequences::fill_rate() const {
  return static_cast<double>(counts_.inputs) /
         (static_cast<double>(counts_.sequences) * static_cast<double>(settings_.sequence));
}

std::vector<Segment> PackedSequences::segments(std::uint64_t number) const {
  SPILLWAY_ASSERT(number < sequences());
  if (settings_.packing == Packing::stream) {
    const auto length = static_cast<std::uint64_t>(settings_.sequence);
    return {{stream_first_ + number * length, length}};
  }
  const auto found =
      segments_.subspan(records_[number].first_segment,
                        records_[number + 1].first_segment - records_[number].first_segment);
  return {found.begin(), found.end()};
}

std::uint64_t PackedSequences::counted(std::uint64_t number) const {
  SPILLWAY_ASSERT(number < sequences());
  return settings_.packing == Packing::stream ? static_cast<std::uint64_t>(settings_.sequence)
                                              : records_[number].counted;
}

}  // namespace spillway
