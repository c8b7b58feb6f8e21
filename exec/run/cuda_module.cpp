#include "exec/run/cuda_module.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "base/errors.hpp"
#include "exec/ranks/mpi_module.hpp"

namespace spillway {

namespace {

// Beside the program: the module is built with it and moves with it. Tests name another in the
// environment.
std::filesystem::path module_path() {
  if (const char* const named = std::getenv("SPILLWAY_CUDA_MODULE")) return named;
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  return program.parent_path() / "libspillway_cuda.so";
}

// The numbers of devices are those that nvidia-smi shows, not CUDA's own, where nothing else is
// set.
// For good: what it makes refers to it, and CUDA's runtime does not survive being unloaded, be it
// for having looked for devices only.
void* open_module() {
  ::setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 0);
  // Lanes, their notices, transfers and the watch are nine streams: on fewer hardware queues one of
  // them would hold up another.
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  // Kernels that are loaded when they are first started may wait for all that runs, among it what
  // waits for other ranks (exec/cuda/ranks/nccl_links.hpp).
  if (launched_rank()) ::setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  return dlopen(module_path().c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
}

struct Close {
  void operator()(void* module) const { dlclose(module); }
};

void* module_for_good() {
  static void* const module = open_module();
  if (module == nullptr) {
    throw MachineError(
        "the CUDA module " + module_path().string() + " cannot be loaded",
        "build with a CUDA toolkit (nvcc on PATH), or use " + Setting{"device", "cpu"});
  }
  return module;
}

template <class Function>
Function* module_function(const char* name) {
  void* const module = module_for_good();
  auto* const version = reinterpret_cast<const char* (*)()>(dlsym(module, "spillway_cuda_version"));
  auto* const function = reinterpret_cast<Function*>(dlsym(module, name));
  if (version == nullptr || function == nullptr || version() != cuda_module_version()) {
    throw MachineError("the CUDA module is from another version of spillway",
                       "build and install the program and its module together");
  }
  return function;
}

}  // namespace

std::string cuda_module_version() {
  return fmt::format("{} {} {} {} {} {} {} {}", SPILLWAY_VERSION, sizeof(Problem), sizeof(Task),
                     sizeof(Operands), sizeof(Device), sizeof(CudaGpu), sizeof(CudaOptions),
                     sizeof(GpuBenchOptions));
}

CudaDevices find_cuda_devices() {
  CudaDevices devices;
  const std::unique_ptr<void, Close> module(open_module());
  if (!module) {
    const char* const reason = dlerror();
    std::error_code error;
    devices.text =
        std::filesystem::exists(module_path(), error)
            ? fmt::format("the CUDA module cannot be loaded: {}", reason ? reason : "no reason")
            : "this build has no CUDA module: no CUDA toolkit was found when it was configured";
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
  if (count <= 0) return devices;
  try {
    module_function<void(std::vector<CudaGpu>*)>("spillway_cuda_list")(&devices.gpus);
  } catch (const MachineError& error) {
    devices.count = 0;
    devices.text = error.what();
  }
  return devices;
}

bool cuda_driver_present() {
  if (std::getenv("SPILLWAY_CUDA_MODULE") != nullptr) return true;
  const std::unique_ptr<void, Close> driver(dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL));
  return driver != nullptr;
}

std::string cuda_attention() {
  const char* const value = std::getenv("SPILLWAY_CUDA_ATTENTION");
  const std::string wanted = value == nullptr || *value == 0 ? "mma" : value;
  if (wanted == "mma" || wanted == "wgmma") return wanted;
  throw InputError(
      fmt::format("SPILLWAY_CUDA_ATTENTION={}: there are no such kernels of attention", wanted),
      "mma: those for every GPU; wgmma: those for Hopper");
}

std::uint64_t cuda_free_bytes(int device) {
  return module_function<std::uint64_t(int)>("spillway_cuda_free_bytes")(device);
}

std::uint64_t cuda_reserved_bytes(const Problem& problem) {
  return module_function<std::uint64_t(const Problem*)>("spillway_cuda_reserved_bytes")(&problem);
}

std::unique_ptr<Device> make_cuda_device(const Problem& problem, std::uint64_t gpu_bytes,
                                         std::uint64_t host_bytes, const CudaOptions& options) {
  return std::unique_ptr<Device>(
      module_function<Device*(const Problem*, std::uint64_t, std::uint64_t, const CudaOptions*)>(
          "spillway_cuda_make_device")(&problem, gpu_bytes, host_bytes, &options));
}

std::unique_ptr<GpuLinks> make_gpu_links(int device) {
  const char* const value = std::getenv("SPILLWAY_NCCL");
  const std::string file = value == nullptr ? "" : value;
  if (file == "off") throw MachineError("SPILLWAY_NCCL is off");
  return std::unique_ptr<GpuLinks>(module_function<GpuLinks*(int, const std::string*)>(
      "spillway_cuda_make_links")(device, &file));
}

std::unique_ptr<GpuBench> make_gpu_bench(const GpuBenchOptions& options) {
  return std::unique_ptr<GpuBench>(
      module_function<GpuBench*(const GpuBenchOptions*)>("spillway_cuda_make_bench")(&options));
}

}  // namespace spillway
