// A management library of a driver that is not there: one GPU at 0000:3B:00.0 (or the emulated
// one), whose power goes from 100 W up by 1 W a reading.
#include <cstring>

namespace {

int sessions = 0;
unsigned readings = 0;

}  // namespace

extern "C" {

int nvmlInit_v2() {
  ++sessions;
  return 0;
}
int nvmlShutdown() { return --sessions < 0 ? 1 : 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus, void** device) {
  if (std::strcmp(bus, "0000:99:00.0") == 0) return 6;  // NVML_ERROR_NOT_FOUND
  *device = &sessions;
  return 0;
}
int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatts) {
  *milliwatts = 100'000 + 1000 * readings++;
  return device == &sessions && sessions > 0 ? 0 : 1;
}
int nvmlDeviceGetClockInfo(void*, int kind, unsigned* mhz) {
  *mhz = 1980;
  return kind == 1 ? 0 : 2;  // NVML_CLOCK_SM
}
}
