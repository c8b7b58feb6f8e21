#include "exec/run/frozen_origin.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "base/errors.hpp"
#include "base/new_file.hpp"
#include "base/text.hpp"
#include "policies/model/units.hpp"

namespace spillway {

namespace {

constexpr std::uint64_t longest_file = std::uint64_t{16} << 20;

}  // namespace

std::optional<FrozenOrigin> FrozenOrigin::load(const Directory& run) {
  const std::optional<std::string> text = run.read(file, longest_file);
  return text ? parse(*text) : std::nullopt;
}

std::optional<FrozenOrigin> FrozenOrigin::parse(const std::string& text) {
  if (nested_deeper(text, most_nesting)) return std::nullopt;
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    FrozenOrigin origin;
    origin.folder = json.at("folder").get<std::string>();
    origin.seed = json.at("seed");
    origin.seal.headers = json.at("headers");
    origin.seal.data = json.at("data");
    for (const nlohmann::json& one : json.at("files")) {
      origin.seal.files.push_back({one.at("name"), one.at("bytes"), one.at("inode"),
                                   one.at("device"), one.at("modified_ns"), one.at("changed_ns")});
    }
    return origin;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

std::string FrozenOrigin::text() const {
  nlohmann::ordered_json json = {{"folder", folder.string()},
                                 {"seed", seed},
                                 {"headers", seal.headers},
                                 {"data", seal.data},
                                 {"files", nlohmann::ordered_json::array()}};
  for (const WeightsSeal::File& one : seal.files) {
    json["files"].push_back({{"name", one.name},
                             {"bytes", one.bytes},
                             {"inode", one.inode},
                             {"device", one.device},
                             {"modified_ns", one.modified_ns},
                             {"changed_ns", one.changed_ns}});
  }
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

void FrozenOrigin::save(const Directory& run) const {
  NewFile out({run, file});
  const std::string all = text();
  out.write(std::as_bytes(std::span(all)));
  out.commit();
}

FrozenOrigin require_origin(const std::filesystem::path& run,
                            const std::optional<std::uint64_t>& hash) {
  const auto refuse = [&](const std::string& what) {
    throw InputError((run / FrozenOrigin::file).string() + what,
                     "restore it from a backup, or go on with the run, which writes it anew: " +
                         Setting{"resume"});
  };
  auto origin = FrozenOrigin::load(Directory(run));
  if (!origin) refuse(" is missing or damaged: it says where the frozen weights of the run are");
  if (hash && (origin->seal.data != *hash || origin->folder.empty() != (*hash == 0)))
    refuse(" does not tell of the frozen weights that the run began with");
  return *origin;
}

void require_same_frozen(const std::filesystem::path& folder, std::uint64_t found,
                         std::uint64_t wanted) {
  if (found == wanted) return;
  throw InputError(
      "the frozen weights in " + folder.string() + " are not those that the run began with",
      "bring these back; a training that goes on may be told where they are: " +
          Setting{"model", "DIR"});
}

StateValues frozen_values(const FrozenOrigin& origin, const ModelSpec& model,
                          const RingFactory& make_ring, const ReadingProgress& progress,
                          std::int64_t strip_bytes) {
  if (origin.folder.empty()) return initial_state(model, origin.seed);
  if (!SafetensorsFolder::has_weights(origin.folder))
    throw InputError(
        "the frozen weights of the run are not in " + origin.folder.string() + " any more",
        "bring them back: its commits hold what is trained alone");
  auto weights = std::make_shared<Checkpoint>(origin.folder, model, make_ring);
  weights->set_strip_bytes(strip_bytes);
  weights->tell(progress);
  require_same_frozen(origin.folder, seal_weights(*weights, origin.seal).data, origin.seal.data);
  weights->tell({});
  return starting_state(model, origin.seed, weights, nullptr);
}

StateValues with_frozen(const ModelSpec& model, StateValues trained, StateValues frozen) {
  std::vector<std::uint64_t> ends;  // of what is trained, by unit
  for (std::int64_t unit = 0; unit < unit_count(model); ++unit)
    ends.push_back(static_cast<std::uint64_t>(trained_elements(model, unit)));
  return [ends, trained = std::move(trained), frozen = std::move(frozen)](
             std::int64_t unit, int moment, std::uint64_t first, std::uint64_t count, float* to) {
    const std::uint64_t end = ends[static_cast<std::size_t>(unit)];
    const std::uint64_t some = std::min(count, std::max(end, first) - first);
    if (some > 0) trained(unit, moment, first, some, to);
    if (count > some) frozen(unit, moment, first + some, count - some, to + some);
  };
}

}  // namespace spillway
