#include "exec/cuda_module.hpp"

#include <dlfcn.h>

#include <array>
#include <filesystem>
#include <memory>

namespace spillway {

namespace {

// Beside the program: the module is built with it and moves with it.
std::filesystem::path module_path() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  return program.parent_path() / "libspillway_cuda.so";
}

struct Close {
  void operator()(void* module) const { dlclose(module); }
};

}  // namespace

CudaDevices find_cuda_devices() {
  CudaDevices devices;
  const std::unique_ptr<void, Close> module(dlopen(module_path().c_str(), RTLD_NOW | RTLD_LOCAL));
  if (!module) {
    devices.text =
        "this build has no CUDA module: no CUDA toolkit was found when it was configured";
    return devices;
  }
  using Probe = int (*)(char*, int);
  const auto probe = reinterpret_cast<Probe>(dlsym(module.get(), "spillway_cuda_devices"));
  if (!probe) {
    devices.text = "the CUDA module is from another version of spillway";
    return devices;
  }
  devices.module_loaded = true;
  std::array<char, 4096> text{};
  const int count = probe(text.data(), static_cast<int>(text.size()));
  devices.text = text.data();
  devices.count = count < 0 ? 0 : count;
  if (count == 0) devices.text = "the CUDA driver reports no device";
  return devices;
}

}  // namespace spillway
