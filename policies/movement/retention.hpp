// Retention: a plan's choice, for each kind of tensor, of how many stay in memory between two uses.
// What the next visit uses always stays; retention is about memory that a plan leaves over.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace spillway {

// At most so many tensors of a kind stay beyond their use: those that are used soonest, as far as
// memory that is left over holds them.
struct Retention {
  static constexpr std::uint32_t unlimited = 0xffffffffu;
  static constexpr Retention never() { return {0}; }  // as in published systems
  static constexpr Retention nearest() { return {unlimited}; }
  static constexpr Retention slots(std::uint32_t tensors) { return {tensors}; }

  std::uint32_t most = 0;
  bool operator==(const Retention&) const = default;
};

struct RetentionByKind {
  Retention parameters;            // of one layer: on the GPU, and in host memory if at home on SSD
  Retention checkpoints;           // the input of one layer: on the GPU, and in host memory
  Retention saved;                 // what forward saves in one layer: on the GPU
  Retention activation_gradients;  // of one layer's input: on the GPU
  Retention gradients;             // the sum of one layer over micro-batches: on the GPU
  Retention optimizer_state;       // of one layer: in host memory
  bool operator==(const RetentionByKind&) const = default;
  bool keeps_any() const { return *this != RetentionByKind{}; }
};

// Calls `act(name, retention)` for every kind. ByKind: RetentionByKind or const RetentionByKind.
template <class ByKind, class Act>
void for_kinds(ByKind& retention, const Act& act) {
  act("parameters", retention.parameters);
  act("checkpoints", retention.checkpoints);
  act("saved", retention.saved);
  act("activation_gradients", retention.activation_gradients);
  act("gradients", retention.gradients);
  act("optimizer_state", retention.optimizer_state);
}

// never, nearest or slots(N).
std::string to_text(Retention retention);
// Nothing where `text` is none of the three.
std::optional<Retention> parse_retention(const std::string& text);

// One retention for all kinds, or KIND:RETENTION for some, joined by '+', and never for the others:
// "parameters:nearest+checkpoints:slots(4)". Nothing where `text` is neither.
std::optional<RetentionByKind> parse_retention_by_kind(const std::string& text);
// What parse_retention_by_kind reads, for people.
std::string retention_syntax();

// Domains of both (domains.hpp).
struct RetentionDomain {
  using Value = Retention;
  std::string write(Retention retention) const { return to_text(retention); }
  bool read(const std::string& text, Retention& retention) const;
  bool holds(Retention) const { return true; }
  std::string describe() const;
  std::vector<std::string> samples(int) const { return {"never", "nearest", "slots(2)"}; }
};
struct RetentionByKindDomain {
  using Value = RetentionByKind;
  bool read(const std::string& text, RetentionByKind& retention) const;
  std::string describe() const { return retention_syntax(); }
  std::vector<std::string> samples(int) const {
    return {"never", "nearest", "parameters:nearest+checkpoints:slots(4)"};
  }
};

}  // namespace spillway
