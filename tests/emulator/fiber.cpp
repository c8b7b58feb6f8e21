#include "tests/emulator/fiber.hpp"

#include <sys/mman.h>

#include <cstdlib>
#include <mutex>
#include <new>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#include <pthread.h>
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace emulator {
namespace {

namespace fcontext = boost::context::detail;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
constexpr std::size_t stack_bytes = 256 * 1024;
#else
constexpr std::size_t stack_bytes = 128 * 1024;
#endif
constexpr std::size_t guard_bytes = 4096;

// What the one who leaves gives to the one who goes on.
struct Handover {
  FiberPoint* from;
  FiberPoint* to;
};

// First thing on the new stack: says where the other one can be found.
void arrive(fcontext::transfer_t transfer, FiberPoint& self) {
  const auto* handover = static_cast<const Handover*>(transfer.data);
  handover->from->context = transfer.fctx;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(self.fake_stack, nullptr, nullptr);
#else
  static_cast<void>(self);
#endif
}

struct Start {
  void (*entry)(void*);
  void* argument;
};

// The bottom of a stack: entered by the first switch to it, never left by returning.
void run_stack(fcontext::transfer_t transfer) {
  FiberPoint& self = *static_cast<const Handover*>(transfer.data)->to;
  // prepare() left it at the very top of the stack.
  const auto* start = reinterpret_cast<const Start*>(
      static_cast<const std::byte*>(self.stack_bottom) + self.stack_bytes);
  arrive(transfer, self);
  start->entry(start->argument);
  std::abort();  // entry() returned
}

std::mutex& pool_mutex() {
  static std::mutex mutex;
  return mutex;
}
std::vector<std::unique_ptr<FiberStack>>& pool() {
  static auto* stacks = new std::vector<std::unique_ptr<FiberStack>>;  // lives as long as threads
  return *stacks;
}

}  // namespace

FiberStack::FiberStack() {
  void* memory = mmap(nullptr, guard_bytes + stack_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  mprotect(memory, guard_bytes, PROT_NONE);
  base_ = static_cast<std::byte*>(memory);
  point_.stack_bottom = base_ + guard_bytes;
  point_.stack_bytes = stack_bytes - sizeof(Start);
#if defined(__SANITIZE_THREAD__)
  point_.thread_sanitizer_fiber = __tsan_create_fiber(0);
#endif
}

FiberStack::~FiberStack() {
#if defined(__SANITIZE_THREAD__)
  __tsan_destroy_fiber(point_.thread_sanitizer_fiber);
#endif
  munmap(base_, guard_bytes + stack_bytes);
}

void FiberStack::prepare(void (*entry)(void*), void* argument) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(point_.stack_bottom, stack_bytes);
#endif
  std::byte* top = base_ + guard_bytes + point_.stack_bytes;
  new (top) Start{entry, argument};
  point_.context = fcontext::make_fcontext(top, point_.stack_bytes, run_stack);
  point_.fake_stack = nullptr;
}

void switch_to(FiberPoint& from, FiberPoint& to) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&from.fake_stack, to.stack_bottom, to.stack_bytes);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(to.thread_sanitizer_fiber, 0);
#endif
  Handover handover{&from, &to};
  arrive(fcontext::jump_fcontext(to.context, &handover), from);
}

void leave_for(FiberPoint& from, FiberPoint& to) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(nullptr, to.stack_bottom, to.stack_bytes);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(to.thread_sanitizer_fiber, 0);
#endif
  Handover handover{&from, &to};
  fcontext::jump_fcontext(to.context, &handover);
  std::abort();  // somebody came back
}

FiberPoint point_of_this_thread() {
  FiberPoint point;
#if defined(__SANITIZE_ADDRESS__)
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
    void* bottom = nullptr;
    pthread_attr_getstack(&attributes, &bottom, &point.stack_bytes);
    point.stack_bottom = bottom;
    pthread_attr_destroy(&attributes);
  }
#endif
#if defined(__SANITIZE_THREAD__)
  point.thread_sanitizer_fiber = __tsan_get_current_fiber();
#endif
  return point;
}

std::unique_ptr<FiberStack> take_stack() {
  {
    std::lock_guard lock(pool_mutex());
    if (!pool().empty()) {
      std::unique_ptr<FiberStack> stack = std::move(pool().back());
      pool().pop_back();
      return stack;
    }
  }
  return std::make_unique<FiberStack>();
}

void give_back(std::vector<std::unique_ptr<FiberStack>>& stacks) {
  std::lock_guard lock(pool_mutex());
  for (auto& stack : stacks) pool().push_back(std::move(stack));
  stacks.clear();
}

}  // namespace emulator
