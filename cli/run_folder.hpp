// The folder of one training run: metrics, trace, weights. A run that never starts leaves none
// behind.
#pragma once

#include <filesystem>
#include <string>

namespace spillway::cli {

class RunFolder {
 public:
  // Creates `path`, or runs/MODEL-TIME where it is empty. Throws InputError when it is there
  // already and not empty, or cannot be created.
  RunFolder(const std::string& path, const std::string& model);
  // The folder of an earlier run, to go on in: it stays whatever happens.
  static RunFolder open(const std::string& path);
  // Unless kept, removes what this object created and the files a run writes before it starts;
  // nothing else.
  ~RunFolder();
  RunFolder(RunFolder&& other) noexcept;
  RunFolder& operator=(const RunFolder&) = delete;

  std::filesystem::path file(const char* name) const { return folder_ / name; }
  const std::filesystem::path& path() const { return folder_; }
  // Creates and returns the folder of the ssd tier where the user names none.
  std::filesystem::path make_ssd_folder();
  // Training starts: from here on the folder stays.
  void keep() { keep_ = true; }

  static constexpr const char* metrics = "metrics.jsonl";
  static constexpr const char* machine = "machine.toml";
  static constexpr const char* model = "model.toml";
  static constexpr const char* weights = "model.safetensors";
  static constexpr const char* trace = "trace.json.gz";
  static constexpr const char* ssd = "ssd";

 private:
  RunFolder() = default;

  std::filesystem::path folder_;
  std::filesystem::path exists_;  // the nearest folder above (or at) folder_ that was there before
  bool keep_ = false;
};

// The nearest path at or above `path` that exists.
std::filesystem::path nearest_existing(const std::filesystem::path& path);

}  // namespace spillway::cli
