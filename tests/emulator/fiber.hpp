// Stacks of their own for the threads of a block, and switching between them, on one thread of the
// operating system. Switching is Boost.Context's, told to the sanitizers.
//
// A FiberStack holds one suspended or running computation. Whoever is left by switch_to() goes on
// when somebody switches back to it; a stack that is left for good may be started anew as soon as
// it is left.
#pragma once

#include <boost/context/detail/fcontext.hpp>
#include <cstddef>
#include <memory>
#include <vector>

namespace emulator {

// Where a computation goes on. One of these for each FiberStack, and one for the thread itself.
struct FiberPoint {
  boost::context::detail::fcontext_t context = nullptr;
  const void* stack_bottom = nullptr;
  std::size_t stack_bytes = 0;
  void* thread_sanitizer_fiber = nullptr;
  void* fake_stack = nullptr;
};

class FiberStack {
 public:
  FiberStack();  // throws std::bad_alloc
  ~FiberStack();
  FiberStack(const FiberStack&) = delete;
  FiberStack& operator=(const FiberStack&) = delete;

  // From now on, switching here calls entry(argument), which never returns. What was on the stack
  // is forgotten.
  void prepare(void (*entry)(void*), void* argument);
  FiberPoint& point() { return point_; }

 private:
  std::byte* base_;  // a page that may not be touched, then the stack
  FiberPoint point_;
};

// Leaves `from`, which is where the caller runs, for `to`; returns when somebody switches to
// `from`.
void switch_to(FiberPoint& from, FiberPoint& to);
// The same, but never comes back to `from`.
[[noreturn]] void leave_for(FiberPoint& from, FiberPoint& to);

// `point` for a computation that runs on the thread's own stack.
FiberPoint point_of_this_thread();

// Stacks are kept for the next block; these are shared by all threads.
std::unique_ptr<FiberStack> take_stack();
void give_back(std::vector<std::unique_ptr<FiberStack>>& stacks);

}  // namespace emulator
