// What the tests of training share: a folder with text and ssd directories, and a tiny model.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "exec/training.hpp"

namespace spillway::test {

namespace fs = std::filesystem;

// A folder of its own for each test, with a text to train on and directories for the ssd tier.
class Workbench {
 public:
  Workbench() {
    std::string pattern = (fs::temp_directory_path() / "spillway-training-XXXXXX").string();
    root_ = mkdtemp(pattern.data());
    fs::create_directories(root_ / "ssd-a");
    fs::create_directories(root_ / "ssd-b");
    std::ofstream text(root_ / "text.txt");
    for (int i = 0; i < 400; ++i)
      text << "line " << i * i << " of a text that repeats itself, but not quite.\n";
  }
  ~Workbench() { fs::remove_all(root_); }
  fs::path root() const { return root_; }

  TrainingOptions options(const std::string& policy) const {
    TrainingOptions o;
    o.problem.model = load_model("gpt-tiny", {"layers=3", "hidden=32", "heads=4"});
    o.problem.machine.name = "test";
    o.problem.machine.gpu.is_cpu = true;
    o.problem.machine.gpu.memory = o.problem.machine.host.memory = std::uint64_t{1} << 30;
    o.problem.machine.ssd.capacity = std::uint64_t{1} << 30;
    o.problem.workload = {8, 2, 16, Precision::fp32, GradientWidth::automatic};
    o.policy = policy;
    o.steps = 20;
    o.data = {root_ / "text.txt"};
    o.ssd = {root_ / "ssd-a", root_ / "ssd-b"};
    o.guard_bytes = 1 << 20;
    return o;
  }

 private:
  fs::path root_;
};

}  // namespace spillway::test
