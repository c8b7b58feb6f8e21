#include <nvtx3/nvToolsExt.h>

#include <atomic>

#include "tests/emulator/calls.hpp"

namespace {

thread_local int depth = 0;

int push() {
  emulator::count_one("nvtx push");
  return depth++;
}
int pop() {
  emulator::count_one("nvtx pop");
  return depth == 0 ? -2 : --depth;
}

}  // namespace

int nvtxRangePushA(const char*) { return push(); }
int nvtxRangePushEx(const nvtxEventAttributes_t*) { return push(); }
int nvtxRangePop() { return pop(); }
void nvtxMarkA(const char*) { emulator::count_one("nvtx mark"); }

nvtxRangeId_t nvtxRangeStartA(const char*) {
  static std::atomic<nvtxRangeId_t> ranges{0};
  emulator::count_one("nvtx push");
  return ++ranges;
}
nvtxRangeId_t nvtxRangeStartEx(const nvtxEventAttributes_t*) { return nvtxRangeStartA(""); }
void nvtxRangeEnd(nvtxRangeId_t) { emulator::count_one("nvtx pop"); }

nvtxDomainHandle_t nvtxDomainCreateA(const char*) { return nullptr; }
void nvtxDomainDestroy(nvtxDomainHandle_t) {}
int nvtxDomainRangePushEx(nvtxDomainHandle_t, const nvtxEventAttributes_t*) { return push(); }
int nvtxDomainRangePop(nvtxDomainHandle_t) { return pop(); }
