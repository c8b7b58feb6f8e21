#include "text/tokenizer/content_hash.hpp"

#include <xxhash.h>

#include <array>
#include <new>

namespace spillway {

struct ContentHash::State {
  XXH3_state_t* hash = XXH3_createState();
  State() {
    if (hash == nullptr) throw std::bad_alloc();
    XXH3_64bits_reset(hash);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { XXH3_freeState(hash); }
};

ContentHash::ContentHash() : state_(std::make_unique<State>()) {}
ContentHash::~ContentHash() = default;

void ContentHash::text(std::string_view bytes) {
  add(bytes.size());
  XXH3_64bits_update(state_->hash, bytes.data(), bytes.size());
}

void ContentHash::add(std::uint64_t value) {
  std::array<unsigned char, 8> bytes{};  // lowest first, on any machine
  for (unsigned char& byte : bytes) {
    byte = static_cast<unsigned char>(value & 0xffu);
    value >>= 8;
  }
  XXH3_64bits_update(state_->hash, bytes.data(), bytes.size());
}

std::uint64_t ContentHash::value() const { return XXH3_64bits_digest(state_->hash); }

}  // namespace spillway
