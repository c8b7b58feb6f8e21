#include "experiments/train/train_device.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "base/errors.hpp"

namespace spillway {

namespace {

const Message on_cpu = Setting{"device", "cpu"}, on_cuda = Setting{"device", "cuda"};

std::string too_old(const CudaGpu& gpu) {
  return fmt::format("GPU {} ({}) has compute capability {}.{}, and 8.0 or later is needed", gpu.id,
                     gpu.name, gpu.major, gpu.minor);
}

std::vector<CudaGpu> usable_of(const CudaDevices& devices) {
  std::vector<CudaGpu> usable;
  std::copy_if(devices.gpus.begin(), devices.gpus.end(), std::back_inserter(usable),
               [](const CudaGpu& gpu) { return gpu.usable(); });
  return usable;
}

bool too_few(const std::vector<CudaGpu>& usable, const DeviceRequest& request) {
  return usable.size() < static_cast<std::size_t>(request.ranks_on_host);
}

std::string too_few_text(const std::vector<CudaGpu>& usable, const DeviceRequest& request) {
  return fmt::format(
      "{} ranks on this computer, each with a GPU of its own, and {} that can be used",
      request.ranks_on_host, usable.size());
}

// The one that is asked for, or the first that can be used.
DeviceChoice demanded(const DeviceRequest& request, const CudaDevices& devices) {
  if (devices.gpus.empty()) {
    throw InputError(on_cuda + (": there is no CUDA GPU here: " + devices.text),
                     request.began_on_gpu
                         ? Message("the training to go on with began on a GPU: resume it where "
                                   "there is one")
                         : "use " + on_cpu);
  }
  if (request.gpu) {
    for (const CudaGpu& gpu : devices.gpus) {
      if (gpu.id != *request.gpu) continue;
      if (!gpu.usable())
        throw InputError(Setting{"gpu"} + Message(": " + too_old(gpu)),
                         "choose another one, or use " + on_cpu);
      return {gpu, ""};
    }
    std::string there;
    for (const CudaGpu& gpu : devices.gpus)
      there += fmt::format("{}{} ({})", there.empty() ? "" : ", ", gpu.id, gpu.name);
    throw InputError(Setting{"gpu", std::to_string(*request.gpu)} +
                         Message(": there is no such GPU; found " + there),
                     "give the number of one of these");
  }
  const std::vector<CudaGpu> usable = usable_of(devices);
  if (usable.empty())
    throw InputError(on_cuda + (": " + too_old(devices.gpus.front())), "use " + on_cpu);
  if (too_few(usable, request))
    throw InputError(on_cuda + (": " + too_few_text(usable, request)),
                     "start as many ranks as there are GPUs, or use " + on_cpu);
  return {usable[static_cast<std::size_t>(request.rank_on_host)], ""};
}

}  // namespace

DeviceChoice choose_device(const DeviceRequest& request, const std::function<CudaDevices()>& find,
                           const std::function<bool()>& driver_present) {
  const bool automatic = request.device == "auto";
  if (!automatic && request.device != "cpu" && request.device != "cuda") {
    throw InputError(Setting{"device", request.device} + " is neither cpu nor cuda nor auto",
                     "use " + on_cpu);
  }
  if (request.device == "cpu") {
    if (request.gpu)
      throw InputError(Setting{"gpu", std::to_string(*request.gpu)} + " does not go with " + on_cpu,
                       "leave one of them out");
    return {};
  }
  const bool wants_gpu = !automatic || request.gpu;
  if (request.throttled) {
    if (wants_gpu)
      throw InputError(Setting{"throttle"} + " makes the CPU backend slower, not a GPU",
                       "use " + on_cpu + ", or leave " + Setting{"throttle"} + " out");
    return {};
  }
  if (wants_gpu) return demanded(request, find());
  if (request.machine == Backend::cpu) return {};
  if (!driver_present()) return {{}, "no NVIDIA driver (libcuda.so.1) is installed"};
  const CudaDevices devices = find();
  const std::vector<CudaGpu> usable = usable_of(devices);
  if (!usable.empty() && too_few(usable, request)) return {{}, too_few_text(usable, request)};
  if (!usable.empty()) return {usable[static_cast<std::size_t>(request.rank_on_host)], ""};
  return {{}, devices.gpus.empty() ? devices.text : too_old(devices.gpus.front())};
}

std::uint64_t gpu_tier_bytes(std::uint64_t free, std::uint64_t reserved) {
  const std::uint64_t margin = (std::uint64_t{256} << 20) + free / 64;
  const std::uint64_t taken = reserved + margin;
  return free > taken ? free - taken : 1;  // 0 would be no limit
}

}  // namespace spillway
