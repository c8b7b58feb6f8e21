#include "experiments/tune/price_file.hpp"

#include <nlohmann/json.hpp>
#include <utility>

#include "experiments/sweep/sweep_settings.hpp"

namespace spillway {

PriceFile::PriceFile(const std::filesystem::path& path, std::string program)
    : program_(std::move(program)), known_(read_journal(path)), journal_(path) {}

std::string PriceFile::identity_of(const std::string& key) const {
  return hash_of(program_ + "\n" + key);
}

bool PriceFile::find(const std::string& key, TrialPrice& price) {
  const auto known = known_.find(identity_of(key));
  if (known == known_.end()) return false;
  const auto json = nlohmann::json::parse(known->second);
  price.runs = json.at("runs");
  price.fits = json.at("fits");
  price.peaks = json.at("peaks");
  price.step_seconds = json.at("step_seconds");
  price.bytes_written = json.at("bytes_written");
  price.settled = json.at("settled");
  price.tasks = json.at("tasks");
  return true;
}

void PriceFile::add(const std::string& key, const TrialPrice& price) {
  journal_.append(identity_of(key), nlohmann::json{{"runs", price.runs},
                                                   {"fits", price.fits},
                                                   {"peaks", price.peaks},
                                                   {"step_seconds", price.step_seconds},
                                                   {"bytes_written", price.bytes_written},
                                                   {"settled", price.settled},
                                                   {"tasks", price.tasks}}
                                        .dump());
}

}  // namespace spillway
