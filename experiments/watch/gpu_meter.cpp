#include "experiments/watch/gpu_meter.hpp"

#include <dlfcn.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace spillway {

namespace {

constexpr std::chrono::milliseconds read_every{200};

// Of nvml.h: 0 is success, the clock of the multiprocessors has number 1, power is in milliwatts.
constexpr int nvml_success = 0, nvml_clock_sm = 1;

// The functions of the library that are used.
class Nvml {
 public:
  using Device = void*;

  explicit Nvml(const std::string& library)
      : handle_(::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) return;
    find(init_, "nvmlInit_v2");
    find(shutdown_, "nvmlShutdown");
    find(device_by_bus_, "nvmlDeviceGetHandleByPciBusId_v2");
    find(power_, "nvmlDeviceGetPowerUsage");
    find(clock_, "nvmlDeviceGetClockInfo");
    begun_ = init_ != nullptr && shutdown_ != nullptr && device_by_bus_ != nullptr &&
             init_() == nvml_success;
  }
  ~Nvml() {
    if (begun_) shutdown_();
    if (handle_ != nullptr) ::dlclose(handle_);
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  Device device(const std::string& pci_bus) const {
    Device device = nullptr;
    return begun_ && device_by_bus_(pci_bus.c_str(), &device) == nvml_success ? device : nullptr;
  }
  GpuReading read(Device device) const {
    GpuReading reading;
    unsigned value = 0;
    if (power_ != nullptr && power_(device, &value) == nvml_success)
      reading.power_watts = value / 1000.0;
    if (clock_ != nullptr && clock_(device, nvml_clock_sm, &value) == nvml_success)
      reading.clock_mhz = value;
    return reading;
  }

 private:
  template <class Function>
  void find(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(::dlsym(handle_, name));
  }

  void* handle_;
  bool begun_ = false;
  int (*init_)() = nullptr;
  int (*shutdown_)() = nullptr;
  int (*device_by_bus_)(const char*, Device*) = nullptr;
  int (*power_)(Device, unsigned*) = nullptr;
  int (*clock_)(Device, int, unsigned*) = nullptr;
};

// The mean of what was read since it was last taken.
class Mean {
 public:
  void add(const std::optional<double>& value) {
    if (!value) return;
    sum_ = count_ == 0 ? *value : sum_ + *value;
    ++count_;
    last_ = value;
  }
  std::optional<double> take() {
    const std::optional<double> mean = count_ == 0 ? last_ : std::optional(sum_ / count_);
    count_ = 0;
    return mean;
  }

 private:
  double sum_ = 0;
  int count_ = 0;
  std::optional<double> last_;
};

}  // namespace

struct GpuMeter::Meter {
  Meter(const std::string& library, const std::string& pci_bus)
      : nvml(library), device(nvml.device(pci_bus)) {}

  void add(const GpuReading& reading) {
    power.add(reading.power_watts);
    clock.add(reading.clock_mhz);
  }
  void watch() {
    std::unique_lock lock(mutex);
    while (!ended.wait_for(lock, read_every, [this] { return over; })) {
      lock.unlock();
      const GpuReading reading = nvml.read(device);
      lock.lock();
      add(reading);
    }
  }

  Nvml nvml;
  Nvml::Device device;
  std::mutex mutex;
  std::condition_variable ended;
  bool over = false;
  Mean power, clock;
  std::thread watcher;
};

GpuMeter::GpuMeter(const std::string& pci_bus, const std::string& library)
    : meter_(std::make_unique<Meter>(library, pci_bus)) {
  const GpuReading first =
      meter_->device != nullptr ? meter_->nvml.read(meter_->device) : GpuReading();
  if (!first.power_watts && !first.clock_mhz) {
    meter_.reset();
    return;
  }
  meter_->add(first);
  meter_->watcher = std::thread([meter = meter_.get()] { meter->watch(); });
}

GpuMeter::~GpuMeter() {
  if (!meter_) return;
  {
    const std::lock_guard lock(meter_->mutex);
    meter_->over = true;
  }
  meter_->ended.notify_one();
  meter_->watcher.join();
}

GpuReading GpuMeter::read() {
  if (!meter_) return {};
  const std::lock_guard lock(meter_->mutex);
  return {meter_->power.take(), meter_->clock.take()};
}

}  // namespace spillway
