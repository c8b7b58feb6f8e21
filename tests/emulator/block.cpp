#include "tests/emulator/block.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <numeric>
#include <vector>

#include "tests/emulator/device_language.hpp"
#include "tests/emulator/fiber.hpp"
#include "tests/emulator/random.hpp"

namespace emulator {
namespace {

enum class State : std::uint8_t { ready, at_barrier, in_exchange, asleep, ended };

struct Thread {
  uint3 index{};
  State state = State::ready;
  std::unique_ptr<FiberStack> stack;  // none before it starts and after it ended
  // Where it waits, and with what:
  std::source_location where;
  unsigned mask = 0;
  const void* deposit = nullptr;
  std::size_t bytes = 0;
  int result = -1;  // the Result it may be reading
};

// What an exchange brought together; free again when every lane went on to its next.
struct Result {
  alignas(16) std::array<std::byte, warp_lanes * exchange_bytes> deposits;
  int readers = 0;
};

bool same_place(const std::source_location& a, const std::source_location& b) {
  return a.line() == b.line() && a.column() == b.column() &&
         (a.file_name() == b.file_name() || std::strcmp(a.file_name(), b.file_name()) == 0);
}

std::string text(const std::source_location& where) {
  return std::string(where.file_name()) + ":" + std::to_string(where.line());
}
std::string text(const uint3& index) {
  return "(" + std::to_string(index.x) + ", " + std::to_string(index.y) + ", " +
         std::to_string(index.z) + ")";
}

// "0-31, 40"
std::string ranges(const std::vector<std::size_t>& numbers) {
  std::string result;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    result += (result.empty() ? "" : ", ") + std::to_string(numbers[i]);
    if (last > i) result += "-" + std::to_string(numbers[last]);
    i = last + 1;
  }
  return result;
}

constexpr std::size_t guard_bytes = 256;
constexpr auto guard_value = std::byte{0xa5};
constexpr auto poison_value = std::byte{0xff};  // NaN, in every type

struct FreeMemory {
  void operator()(std::byte* memory) const { std::free(memory); }
};

class Block {
 public:
  Block(const Grid& grid, const std::function<void()>& body);
  ~Block();
  void run(const uint3& index);

  void barrier(const std::source_location& where);
  const void* exchange(unsigned mask, const void* deposit, std::size_t bytes,
                       const std::source_location& where);
  void sleep_on(const void* key, const std::source_location& where);
  void wake(const void* key);
  void dawdle() {
    push_ready(current_);
    go_on();
  }
  std::uint64_t next_random() { return random_.next(); }
  int lane() const { return static_cast<int>(current_ % warp_lanes); }
  unsigned lanes() const {
    const std::size_t count = threads_.size() - current_ / warp_lanes * warp_lanes;
    return count < warp_lanes ? (1u << count) - 1u : full_mask;
  }
  std::byte* shared() const { return shared_.get(); }
  std::size_t shared_bytes() const { return grid_.shared_bytes; }
  std::string place() const {
    return "kernel " + grid_.kernel + ", block " + text(blockIdx) + ", thread " +
           text(threads_[current_].index);
  }

 private:
  static void serve(void* self) { static_cast<Block*>(self)->serve(); }
  void serve();
  void order_threads();
  void become(std::size_t thread);
  bool next_ready(std::size_t& thread);
  void push_ready(std::size_t thread);
  void go_on();  // the current thread waits, or is ready: runs who is next until it is this one
  [[noreturn]] void stop();
  void complete_exchange(std::size_t warp, unsigned mask);
  std::string who_waits() const;
  std::unique_ptr<FiberStack> new_stack();

  const Grid& grid_;
  const std::function<void()>& body_;
  Random random_;
  std::vector<Thread> threads_;
  std::vector<std::size_t> order_;
  std::vector<std::unique_ptr<FiberStack>> free_stacks_;
  FiberPoint outside_;
  std::unique_ptr<std::byte, FreeMemory> shared_;

  // Of the running block:
  std::size_t current_ = 0, ended_ = 0, at_barrier_ = 0;
  std::vector<std::size_t> ready_;  // a ring
  std::size_t ready_begin_ = 0, ready_count_ = 0;
  bool newest_first_ = false;
  std::vector<unsigned> waiting_lanes_;  // per warp
  std::map<const void*, std::vector<std::size_t>> sleepers_;
  std::deque<Result> results_;  // never move: lanes are reading them
  std::vector<int> free_results_;
  std::string failure_;
};

thread_local Block* active = nullptr;
thread_local std::uint64_t runs_of_blocks = 0;

Block::Block(const Grid& grid, const std::function<void()>& body)
    : grid_(grid), body_(body), random_(grid.seed), outside_(point_of_this_thread()) {
  const std::size_t count = std::size_t{grid.threads.x} * grid.threads.y * grid.threads.z;
  threads_.resize(count);
  ready_.resize(count);
  std::size_t thread = 0;
  for (unsigned z = 0; z < grid.threads.z; ++z)
    for (unsigned y = 0; y < grid.threads.y; ++y)
      for (unsigned x = 0; x < grid.threads.x; ++x) threads_[thread++].index = {x, y, z};
  waiting_lanes_.resize((count + warp_lanes - 1) / warp_lanes);
  order_threads();
#if defined(__SANITIZE_ADDRESS__)
  const std::size_t bytes = std::max<std::size_t>(grid.shared_bytes, 1);
#else
  const std::size_t bytes = grid.shared_bytes + guard_bytes;
#endif
  void* memory = nullptr;
  if (posix_memalign(&memory, 128, bytes) != 0) throw std::bad_alloc();
  shared_.reset(static_cast<std::byte*>(memory));
  std::fill_n(shared_.get(), bytes, guard_value);
}

Block::~Block() {
  for (Thread& thread : threads_)
    if (thread.stack) free_stacks_.push_back(std::move(thread.stack));
  give_back(free_stacks_);
}

// One order of the threads for the launch; blocks begin at different places in it, and take it from
// either end.
void Block::order_threads() {
  order_.resize(threads_.size());
  std::iota(order_.begin(), order_.end(), std::size_t{0});
  switch (random_.below(4)) {
    case 0:  // as they are numbered
      break;
    case 1:  // one warp after the other, these in any order
    {
      std::vector<std::size_t> warps(waiting_lanes_.size());
      std::iota(warps.begin(), warps.end(), std::size_t{0});
      random_.shuffle(warps);
      order_.clear();
      for (const std::size_t warp : warps)
        for (std::size_t lane = 0; lane < warp_lanes; ++lane)
          if (warp * warp_lanes + lane < threads_.size())
            order_.push_back(warp * warp_lanes + lane);
      break;
    }
    default:
      random_.shuffle(order_);
  }
}

void Block::push_ready(std::size_t thread) {
  std::size_t place = ready_begin_ + ready_count_++;
  if (place >= ready_.size()) place -= ready_.size();
  ready_[place] = thread;
}

bool Block::next_ready(std::size_t& thread) {
  if (ready_count_ == 0) return false;
  --ready_count_;
  if (newest_first_) {
    std::size_t place = ready_begin_ + ready_count_;
    if (place >= ready_.size()) place -= ready_.size();
    thread = ready_[place];
  } else {
    thread = ready_[ready_begin_];
    if (++ready_begin_ == ready_.size()) ready_begin_ = 0;
  }
  return true;
}

void Block::become(std::size_t thread) {
  current_ = thread;
  threads_[thread].state = State::ready;
  threadIdx = threads_[thread].index;
}

std::unique_ptr<FiberStack> Block::new_stack() {
  std::unique_ptr<FiberStack> stack;
  if (free_stacks_.empty()) {
    stack = take_stack();
  } else {
    stack = std::move(free_stacks_.back());
    free_stacks_.pop_back();
  }
  stack->prepare(&Block::serve, this);
  return stack;
}

void Block::run(const uint3& index) {
  blockIdx = index;
  ended_ = at_barrier_ = ready_begin_ = ready_count_ = 0;
  newest_first_ = random_.below(2) != 0;
  std::fill_n(shared_.get(), grid_.shared_bytes, poison_value);
  ++runs_of_blocks;
  const std::size_t offset = random_.below(order_.size());
  for (std::size_t i = 0; i < order_.size(); ++i) push_ready(order_[(i + offset) % order_.size()]);
  for (Thread& thread : threads_) thread.result = -1;
  std::fill(waiting_lanes_.begin(), waiting_lanes_.end(), 0u);
  sleepers_.clear();
  free_results_.resize(results_.size());
  std::iota(free_results_.begin(), free_results_.end(), 0);

  std::size_t first = 0;
  next_ready(first);
  become(first);
  threads_[first].stack = new_stack();
  switch_to(outside_, threads_[first].stack->point());

  if (failure_.empty() && ended_ < threads_.size())
    failure_ = "kernel " + grid_.kernel + ", block " + text(index) +
               ": its threads wait for each other in vain: " + who_waits();
#if !defined(__SANITIZE_ADDRESS__)
  const std::byte* guard = shared_.get() + grid_.shared_bytes;
  if (failure_.empty() &&
      std::any_of(guard, guard + guard_bytes, [](std::byte value) { return value != guard_value; }))
    failure_ = "kernel " + grid_.kernel + ", block " + text(index) + ": wrote beyond its " +
               std::to_string(grid_.shared_bytes) + " bytes of dynamic shared memory";
#endif
  if (!failure_.empty()) throw KernelFailure(failure_);
}

// The life of a stack: threads that start, one after the other, as long as none of them waits.
void Block::serve() {
  for (;;) {
    try {
      body_();
    } catch (const KernelFailure& failure) {
      failure_ = failure.what();
    } catch (const std::exception& error) {
      failure_ = place() + ": " + error.what();
    } catch (...) {
      failure_ = place() + ": an exception";
    }
    Thread& done = threads_[current_];
    done.state = State::ended;
    ++ended_;
    FiberStack& stack = *done.stack;
    std::size_t next = 0;
    if (!failure_.empty() || !next_ready(next)) {
      free_stacks_.push_back(std::move(done.stack));
      leave_for(stack.point(), outside_);
    }
    become(next);
    if (!threads_[next].stack) {
      threads_[next].stack = std::move(done.stack);
    } else {
      free_stacks_.push_back(std::move(done.stack));
      leave_for(stack.point(), threads_[next].stack->point());
    }
  }
}

void Block::stop() { leave_for(threads_[current_].stack->point(), outside_); }

void Block::go_on() {
  const std::size_t self = current_;
  std::size_t next = 0;
  if (!next_ready(next)) stop();
  become(next);
  if (next == self) return;
  if (!threads_[next].stack) threads_[next].stack = new_stack();
  switch_to(threads_[self].stack->point(), threads_[next].stack->point());
}

void Block::barrier(const std::source_location& where) {
  Thread& self = threads_[current_];
  self.state = State::at_barrier;
  self.where = where;
  if (++at_barrier_ == threads_.size()) {
    for (const Thread& thread : threads_)
      if (!same_place(thread.where, where)) {
        failure_ = "kernel " + grid_.kernel + ", block " + text(blockIdx) +
                   ": its threads wait at different barriers: " + who_waits();
        stop();
      }
    at_barrier_ = 0;
    const std::size_t offset = random_.below(order_.size());
    for (std::size_t i = 0; i < order_.size(); ++i) {
      const std::size_t place = i + offset;
      push_ready(order_[place < order_.size() ? place : place - order_.size()]);
    }
  }
  go_on();
}

void Block::sleep_on(const void* key, const std::source_location& where) {
  Thread& self = threads_[current_];
  self.state = State::asleep;
  self.where = where;
  sleepers_[key].push_back(current_);
  go_on();
}

void Block::wake(const void* key) {
  const auto found = sleepers_.find(key);
  if (found == sleepers_.end()) return;
  std::vector<std::size_t> threads = std::move(found->second);
  sleepers_.erase(found);
  random_.shuffle(threads);
  for (const std::size_t thread : threads) {
    threads_[thread].state = State::ready;
    push_ready(thread);
  }
}

const void* Block::exchange(unsigned mask, const void* deposit, std::size_t bytes,
                            const std::source_location& where) {
  const std::size_t warp = current_ / warp_lanes;
  mask &= lanes();
  Thread& self = threads_[current_];
  if ((mask >> lane() & 1u) == 0) fail_thread("is not in the mask it gives at " + text(where));
  if (self.result >= 0) {
    if (--results_[static_cast<std::size_t>(self.result)].readers == 0)
      free_results_.push_back(self.result);
    self.result = -1;
  }
  self.state = State::in_exchange;
  self.where = where;
  self.mask = mask;
  self.deposit = deposit;
  self.bytes = bytes;
  waiting_lanes_[warp] |= 1u << lane();
  if ((waiting_lanes_[warp] & mask) == mask) complete_exchange(warp, mask);
  go_on();
  return bytes == 0 ? nullptr : results_[static_cast<std::size_t>(self.result)].deposits.data();
}

void Block::complete_exchange(std::size_t warp, unsigned mask) {
  const Thread& self = threads_[current_];
  const std::size_t first = warp * warp_lanes;
  for (std::size_t lane = 0; lane < warp_lanes; ++lane) {
    if ((mask >> lane & 1u) == 0) continue;
    const Thread& other = threads_[first + lane];
    if (other.mask == mask && other.bytes == self.bytes && same_place(other.where, self.where))
      continue;
    failure_ = "kernel " + grid_.kernel + ", block " + text(blockIdx) +
               ": lanes of a warp meet in different places or with different masks: " + who_waits();
    stop();
  }
  waiting_lanes_[warp] &= ~mask;
  int result = -1;
  if (self.bytes > 0) {
    if (free_results_.empty()) {
      free_results_.push_back(static_cast<int>(results_.size()));
      results_.emplace_back();
    }
    result = free_results_.back();
    free_results_.pop_back();
  }
  const std::size_t offset = random_.below(warp_lanes);
  for (std::size_t i = 0; i < warp_lanes; ++i) {
    const std::size_t lane = (i + offset) % warp_lanes;
    if ((mask >> lane & 1u) == 0) continue;
    push_ready(first + lane);
    threads_[first + lane].result = result;
  }
  if (result < 0) return;
  Result& gathered = results_[static_cast<std::size_t>(result)];
  gathered.readers = std::popcount(mask);
  std::byte* to = gathered.deposits.data();
  for (std::size_t lane = 0; lane < warp_lanes; ++lane, to += self.bytes) {
    if ((mask >> lane & 1u) != 0) {
      std::memcpy(to, threads_[first + lane].deposit, self.bytes);
    } else {
      std::fill_n(to, self.bytes, poison_value);
    }
  }
}

// Every thread's whereabouts, threads in the same place together.
std::string Block::who_waits() const {
  std::map<std::string, std::vector<std::size_t>> places;
  for (std::size_t thread = 0; thread < threads_.size(); ++thread) {
    const Thread& one = threads_[thread];
    switch (one.state) {
      case State::ended:
        places["ended"].push_back(thread);
        break;
      case State::ready:
        places["have not come so far"].push_back(thread);
        break;
      case State::at_barrier:
        places["wait for the block at " + text(one.where)].push_back(thread);
        break;
      case State::asleep:
        places["wait for others at " + text(one.where)].push_back(thread);
        break;
      case State::in_exchange: {
        std::array<char, 16> mask{};
        std::snprintf(mask.data(), mask.size(), "%08x", one.mask);
        places["wait for the lanes " + std::string(mask.data()) + " at " + text(one.where)]
            .push_back(thread);
        break;
      }
    }
  }
  std::string result;
  for (const auto& [place, threads] : places)
    result += (result.empty() ? "threads " : "; threads ") + ranges(threads) + " " + place;
  return result;
}

}  // namespace

void run_grid(const Grid& grid, const std::function<void()>& body) {
  Block block(grid, body);
  struct Activate {
    Block* before = active;
    explicit Activate(Block* now) { active = now; }
    ~Activate() { active = before; }
  } activate(&block);
  blockDim = grid.threads;
  gridDim = grid.blocks;
  const std::uint64_t blocks = std::uint64_t{grid.blocks.x} * grid.blocks.y * grid.blocks.z;
  // Every block once, in an order without a meaning: i -> (step i + offset) mod blocks.
  Random random(grid.seed + 1);
  std::uint64_t step = 1 + random.below(blocks);
  while (std::gcd(step, blocks) != 1) step = step % blocks + 1;
  std::uint64_t number = random.below(blocks);
  for (std::uint64_t i = 0; i < blocks; ++i) {
    const std::uint64_t row = number / grid.blocks.x;
    block.run({static_cast<unsigned>(number % grid.blocks.x),
               static_cast<unsigned>(row % grid.blocks.y),
               static_cast<unsigned>(row / grid.blocks.y)});
    number = (number + step) % blocks;
  }
}

namespace {
Block& in_kernel() {
  if (active == nullptr) throw std::logic_error("called outside of a kernel");
  return *active;
}
}  // namespace

void block_barrier(const std::source_location& where) { in_kernel().barrier(where); }
const void* exchange(unsigned mask, const void* deposit, std::size_t bytes,
                     const std::source_location& where) {
  return in_kernel().exchange(mask, deposit, bytes, where);
}
void sleep_on(const void* key, const std::source_location& where) {
  in_kernel().sleep_on(key, where);
}
void wake(const void* key) { in_kernel().wake(key); }
void dawdle() { in_kernel().dawdle(); }
std::uint64_t next_random() { return in_kernel().next_random(); }
int lane_index() { return in_kernel().lane(); }
unsigned existing_lanes() { return in_kernel().lanes(); }
void fail_thread(const std::string& what) {
  throw KernelFailure(in_kernel().place() + ": " + what);
}
std::byte* dynamic_shared() { return in_kernel().shared(); }
std::size_t dynamic_shared_bytes() { return in_kernel().shared_bytes(); }
std::uint64_t block_run() { return runs_of_blocks; }

}  // namespace emulator
