#include "text/tokenizer/sentencepiece_model.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <unordered_set>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "text/tokenizer/utf8.hpp"

namespace spillway {

namespace {

// Fields of a protobuf message, one after the other.
class ProtobufMessage {
 public:
  struct Field {
    std::uint32_t number = 0;
    std::uint64_t value = 0;      // of a number; of a 32-bit one its bits
    std::string_view bytes = {};  // of a text or a message
    bool is_bytes = false;
  };

  ProtobufMessage(std::string_view bytes, const std::string& origin)
      : bytes_(bytes), origin_(origin) {}

  bool next(Field& field) {
    if (at_ == bytes_.size()) return false;
    const std::uint64_t tag = varint();
    field = {static_cast<std::uint32_t>(tag >> 3)};
    if (tag >> 3 == 0 || tag >> 32 != 0) fail();
    switch (tag & 7) {
      case 0:
        field.value = varint();
        break;
      case 1:
        take(8);
        break;
      case 2: {
        field.bytes = take(varint());
        field.is_bytes = true;
        break;
      }
      case 5: {
        const std::string_view bytes = take(4);
        std::uint32_t value = 0;
        std::memcpy(&value, bytes.data(), 4);
        field.value = value;
        break;
      }
      default:
        fail();
    }
    return true;
  }

 private:
  [[noreturn]] void fail() const { throw InputError(origin_, 0, "is no SentencePiece model"); }

  std::string_view take(std::uint64_t count) {
    if (count > bytes_.size() - at_) fail();
    at_ += count;
    return bytes_.substr(at_ - count, count);
  }

  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= std::uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
    fail();
  }

  std::string_view bytes_;
  const std::string& origin_;
  std::size_t at_ = 0;
};

class ModelReader {
 public:
  ModelReader(std::string_view bytes, const std::string& origin) : bytes_(bytes), origin_(origin) {}

  SentencePieceModel read() {
    ProtobufMessage message(bytes_, origin_);
    for (ProtobufMessage::Field field; message.next(field);) {
      if (field.number == 1 || field.number == 2 || field.number == 3 || field.number == 5) {
        if (!field.is_bytes) fail("is no SentencePiece model");
      }
      if (field.number == 1) piece(field.bytes);
      if (field.number == 2) training(field.bytes);
      if (field.number == 3) normalizer(field.bytes);
      if (field.number == 5 && !field.bytes.empty()) denormalizer(field.bytes);
    }
    check();
    return std::move(model_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw InputError(origin_, 0, what); }

  void piece(std::string_view bytes) {
    SentencePieceModel::Piece piece;
    ProtobufMessage message(bytes, origin_);
    std::uint64_t type = 1;
    for (ProtobufMessage::Field field; message.next(field);) {
      if (field.number == 1) piece.text = field.bytes;
      if (field.number == 2) {
        float score = 0;
        const auto bits = static_cast<std::uint32_t>(field.value);
        std::memcpy(&score, &bits, 4);
        if (!std::isfinite(score)) fail("a piece has a score that is no number");
      }
      if (field.number == 3) type = field.value;
    }
    if (piece.text.empty() || valid_utf8(piece.text) != piece.text.size() ||
        piece.text.find('\0') != std::string_view::npos)
      fail(fmt::format("piece {} is no text", model_.pieces.size()));
    if (type < 1 || type > 6)
      fail(fmt::format("piece {} is of no known type", model_.pieces.size()));
    if (!texts_.insert(piece.text).second)
      fail(fmt::format("the piece {} is there twice", printable(piece.text)));
    piece.type = static_cast<SentencePieceModel::Type>(type);
    model_.pieces.push_back(piece);
  }

  void training(std::string_view bytes) {
    ProtobufMessage message(bytes, origin_);
    for (ProtobufMessage::Field field; message.next(field);) {
      if (field.number == 3) {
        if (field.value != 1 && field.value != 2)
          fail("trainer_spec.model_type: only unigram and BPE are supported");
        model_.unigram = field.value == 1;
      }
      if (field.number == 24 && field.value != 0)
        fail("trainer_spec.treat_whitespace_as_suffix is not supported");
      if (field.number == 35) model_.byte_fallback = field.value != 0;
      if (field.number == 44) model_.unknown_surface = field.bytes;
    }
  }

  void normalizer(std::string_view bytes) {
    ProtobufMessage message(bytes, origin_);
    for (ProtobufMessage::Field field; message.next(field);) {
      if (field.number == 2 && !field.bytes.empty()) {
        check_characters(field.bytes);
        model_.changes_characters = true;
      }
      if (field.number == 3) model_.add_dummy_prefix = field.value != 0;
      if (field.number == 4) model_.remove_extra_whitespaces = field.value != 0;
      if (field.number == 5 && field.value == 0)
        fail("normalizer_spec.escape_whitespaces = false is not supported");
    }
  }

  void denormalizer(std::string_view bytes) {
    ProtobufMessage message(bytes, origin_);
    for (ProtobufMessage::Field field; message.next(field);) {
      if (field.number == 2 && !field.bytes.empty())
        fail("denormalizer_spec.precompiled_charsmap is not supported");
    }
  }

  // normalizer_spec.precompiled_charsmap: the number of bytes of a double-array trie (Darts), the
  // trie, and texts that end with a zero byte, which the values of the trie point into. A search
  // goes from the unit at `i` to one at i ^ offset ^ byte, which must be in the trie.
  void check_characters(std::string_view map) const {
    constexpr const char* what = "normalizer_spec.precompiled_charsmap is malformed";
    const auto number = [&](std::size_t at) {
      std::uint32_t value = 0;
      std::memcpy(&value, map.data() + at, 4);
      return value;
    };
    if (map.size() < 4) fail(what);
    const std::size_t trie = number(0);
    if (trie >= map.size() - 4 || trie % 4 != 0 || trie < 1024 || map.back() != '\0') fail(what);
    const std::size_t units = trie / 4, texts = map.size() - 4 - trie;
    for (std::size_t i = 0; i < units; ++i) {
      const std::uint32_t unit = number(4 + 4 * i);
      if ((unit & 0x80000000u) != 0) continue;  // a value, not a way on
      const std::size_t offset = std::size_t{unit >> 10} << ((unit & 0x200u) >> 6);
      const std::size_t next = i ^ offset;
      if ((next | 0xffu) >= units) fail(what);
      const bool has_value = (unit & 0x100u) != 0;
      if (has_value && (number(4 + 4 * next) & 0x7fffffffu) >= texts) fail(what);
    }
    if ((number(4) & 0x80000000u) != 0) fail(what);
  }

  void check() const {
    using Type = SentencePieceModel::Type;
    if (model_.pieces.empty()) fail("is no SentencePiece model: it has no pieces");
    std::size_t unknown = 0, bytes = 0;
    for (const auto& piece : model_.pieces) {
      if (piece.type == Type::unknown) ++unknown;
      if (piece.type != Type::byte) continue;
      ++bytes;
      if (byte_of(piece.text) < 0)
        fail(fmt::format("the byte piece {} names no byte", printable(piece.text)));
    }
    if (unknown != 1) fail(fmt::format("it has {} pieces for what is unknown, not one", unknown));
    if (model_.byte_fallback ? bytes != 256 : bytes != 0)
      fail(fmt::format("it has {} pieces for bytes", bytes));
  }

  static int byte_of(std::string_view name) {
    for (int byte = 0; byte < 256; ++byte) {
      if (name == fmt::format("<0x{:02X}>", byte)) return byte;
    }
    return -1;
  }

  std::string_view bytes_;
  const std::string& origin_;
  SentencePieceModel model_;
  std::unordered_set<std::string_view> texts_;
};

}  // namespace

SentencePieceModel read_sentencepiece_model(std::string_view model, const std::string& origin) {
  return ModelReader(model, origin).read();
}

}  // namespace spillway
