// Products of a warpgroup: see <emulator/warpgroup.hpp>.
#include <cuda_runtime.h>

#include <array>
#include <bit>
#include <cstring>
#include <deque>
#include <emulator/warpgroup.hpp>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "tests/emulator/block.hpp"
#include "tests/emulator/calls.hpp"
#include "tests/emulator/proxy.hpp"

namespace emulator {

namespace {

constexpr int inner = 16, warp_rows = 16;
constexpr std::size_t left_rows = 64;
constexpr std::size_t unit = 16;              // bytes that a layout moves together
constexpr std::uint32_t poison = 0x7fc0dead;  // a NaN

// Element (major, step) of an operand, `major` its row (left) or column (right) and `step` along
// the inner dimension, as make_gmma_desc() of CUTLASS documents it ("canonical layouts", in units
// of 16 bytes; W of them in a swizzled row):
//   K-major    ((8, n), 2) : ((W, stride), 1); without swizzle ((1, stride), leading)
//   MN-major   ((W, n), (8, 2)) : ((1, leading), (W, stride)); without ((1, stride), (1, leading))
struct Descriptor {
  std::uint32_t address, leading, stride;
  unsigned swizzle;  // bits of the pattern: 0 none, 1: 32, 2: 64, 3: 128 bytes
  std::uint32_t swaps;

  explicit Descriptor(std::uint64_t bits) {
    const auto field = [&](int shift) {
      return static_cast<std::uint32_t>(bits >> shift & 0x3fffu) << 4;
    };
    address = field(0);
    leading = field(16);
    stride = field(32);
    if ((bits >> 49 & 7u) != 0) fail_thread("wgmma: a base offset other than 0 is not emulated");
    constexpr std::uint64_t meaning =
        ~(0x3fffull | 0x3fffull << 16 | 0x3fffull << 32 | 7ull << 49 | 3ull << 62);
    if ((bits & meaning) != 0) fail_thread("wgmma: bits of a descriptor that mean nothing are set");
    const std::array<unsigned, 4> pattern{0, 3, 2, 1};
    swizzle = pattern[bits >> 62];
    swaps = machine().wgmma_works ? (1u << swizzle) - 1 : 0;
  }

  std::uint32_t at(int major, int step, bool transposed) const {
    const auto row = static_cast<std::uint32_t>(major), k = static_cast<std::uint32_t>(step);
    const std::uint32_t width = 1u << swizzle;
    std::uint32_t place = address;
    if (transposed) {
      const std::uint32_t chunk = row / 8;
      place += row % 8 * 2;
      if (swizzle == 0) {
        place += chunk * stride + k % 8 * 16 + k / 8 * leading;
      } else {
        place += chunk % width * 16 + chunk / width * leading + k % 8 * width * 16 + k / 8 * stride;
      }
    } else {
      place += k % 8 * 2 + row / 8 * stride + row % 8 * width * 16;
      place += k / 8 * (swizzle == 0 ? leading : 16);
    }
    return place ^ ((place >> 7 & swaps) << 4);
  }
};

using Row = std::array<double, inner>;

// One instruction as one warp runs it.
struct WarpProduct {
  int columns = 0, warp = 0;  // of its warpgroup
  bool left_shared = false, left_transposed = false, right_transposed = false, was_read = false;
  std::uint64_t left = 0, right = 0;
  std::array<std::array<std::uint32_t, 4>, warp_lanes> registers{};
  // The left operand's 64 rows (in registers: this warp's only), then the right one's columns.
  std::vector<Row> operands;
  int taken = 0;  // by how many lanes
};

// Sums of a thread that products are under way for.
struct Accumulation {
  float* sums;
  int columns, pending = 0;
  std::vector<float> value;
};

struct Pending {
  std::shared_ptr<WarpProduct> product;
  Accumulation* sums;
  bool accumulate;
  const std::uint32_t* registers;  // those of the left operand; null: none
};

struct ThreadProducts {
  bool begun = false;
  std::size_t started = 0;
  std::vector<Pending> open;
  std::deque<std::vector<Pending>> groups;
  std::deque<Accumulation> sums;
};

// What the warps of a warpgroup have to agree on.
struct Logged {
  int columns;
  bool left_shared, left_transposed, right_transposed, accumulate;
  std::uint64_t left, right;
  bool operator==(const Logged&) const = default;
};

struct NamedBarrier {
  int arrived = 0, threads = 0;
  std::uint64_t generation = 0;
};

struct BlockState {
  std::uint64_t run = 0;
  std::uint32_t window = 0;
  std::vector<ThreadProducts> threads;
  std::vector<std::deque<std::shared_ptr<WarpProduct>>> warps;  // products not all lanes have taken
  std::vector<std::size_t> dropped;                             // of these, per warp
  std::vector<std::vector<Logged>> warpgroups;
  std::vector<bool> unfenced;                             // per unit of shared memory
  std::vector<std::vector<std::size_t>> unfenced_copies;  // per thread
  std::array<NamedBarrier, 16> barriers;
};

std::size_t thread_index() {
  return threadIdx.x +
         std::size_t{blockDim.x} * (threadIdx.y + std::size_t{blockDim.y} * threadIdx.z);
}

BlockState& state() {
  static thread_local BlockState block;
  if (block.run != block_run()) {
    const std::size_t threads = std::size_t{blockDim.x} * blockDim.y * blockDim.z;
    block = {};
    block.run = block_run();
    // As on a GPU, the system has the first KB; then at least 16-byte alignment is promised.
    block.window = 1024 + 16 * static_cast<std::uint32_t>(next_random() % 64);
    block.threads.resize(threads);
    block.warps.resize(threads / warp_lanes + 1);
    block.dropped.resize(threads / warp_lanes + 1);
    block.warpgroups.resize(threads / (4 * warp_lanes) + 1);
    block.unfenced.resize(dynamic_shared_bytes() / unit + 1);
    block.unfenced_copies.resize(threads);
  }
  return block;
}

double element(BlockState& block, std::uint32_t window_address) {
  const std::size_t offset = std::size_t{window_address} - block.window;
  if (window_address < block.window || offset + 2 > dynamic_shared_bytes())
    fail_thread("wgmma: an operand at offset " +
                std::to_string(static_cast<std::int64_t>(window_address) - block.window) + " of " +
                std::to_string(dynamic_shared_bytes()) + " bytes of dynamic shared memory");
  if (block.unfenced[offset / unit])
    fail_thread("wgmma: an operand at offset " + std::to_string(offset) +
                " of shared memory was copied there without fence.proxy.async since");
  std::uint16_t bits = 0;
  std::memcpy(&bits, dynamic_shared() + offset, sizeof bits);
  return static_cast<double>(std::bit_cast<float>(std::uint32_t{bits} << 16));
}

std::vector<Row> read_operands(const WarpProduct& product) {
  BlockState& block = state();
  const Descriptor right(product.right);
  std::vector<Row> operands(left_rows + static_cast<std::size_t>(product.columns));
  for (int column = 0; column < product.columns; ++column) {
    Row& to = operands[left_rows + static_cast<std::size_t>(column)];
    for (int k = 0; k < inner; ++k)
      to[static_cast<std::size_t>(k)] =
          element(block, right.at(column, k, product.right_transposed));
  }
  if (product.left_shared) {
    const Descriptor left(product.left);
    for (std::size_t row = 0; row < left_rows; ++row)
      for (int k = 0; k < inner; ++k)
        operands[row][static_cast<std::size_t>(k)] =
            element(block, left.at(static_cast<int>(row), k, product.left_transposed));
    return operands;
  }
  for (std::size_t row = 0; row < warp_rows; ++row) {
    for (std::size_t k = 0; k < inner; ++k) {
      // Registers a0, a1: columns 2 (l % 4) and the next of rows l / 4 and l / 4 + 8; a2, a3: 8
      // columns further.
      const std::size_t lane = row % 8 * 4 + k % 8 / 2, part = row / 8 + k / 8 * 2;
      const std::uint32_t bits = product.registers[lane][part] >> (16 * (k % 2)) & 0xffffu;
      operands[warp_rows * static_cast<std::size_t>(product.warp) + row][k] =
          static_cast<double>(std::bit_cast<float>(bits << 16));
    }
  }
  return operands;
}

// Once, when the first lane waits. The ISA does not say when, or by which warp, what of an operand
// is read: all of it has to stay as it is from the start to the wait.
void read_again(WarpProduct& product) {
  if (product.was_read) return;
  product.was_read = true;
  const std::vector<Row> now = read_operands(product);
  if (std::memcmp(now.data(), product.operands.data(), now.size() * sizeof(Row)) != 0)
    fail_thread("wgmma: an operand in shared memory changed before the wait for its product");
}

void finish(const Pending& pending) {
  if (pending.registers != nullptr &&
      std::memcmp(pending.registers,
                  pending.product->registers[static_cast<std::size_t>(lane_index())].data(),
                  sizeof pending.product->registers[0]) != 0)
    fail_thread("wgmma: registers of the left operand changed before its wait");
  read_again(*pending.product);
  const int lane = lane_index();
  for (int i = 0; i < pending.sums->columns / 2; ++i) {
    const auto row =
        static_cast<std::size_t>(warp_rows * pending.product->warp + lane / 4 + i / 2 % 2 * 8);
    const auto column = static_cast<std::size_t>(i / 4 * 8 + 2 * (lane % 4) + i % 2);
    float& value = pending.sums->value[static_cast<std::size_t>(i)];
    double sum = pending.accumulate ? static_cast<double>(value) : 0.0;
    const Row &left = pending.product->operands[row],
              &right = pending.product->operands[left_rows + column];
    for (std::size_t k = 0; k < inner; ++k) sum += left[k] * right[k];
    value = static_cast<float>(sum);
  }
  Accumulation& sums = *pending.sums;
  if (--sums.pending > 0) return;
  for (int i = 0; i < sums.columns / 2; ++i) {
    if (std::bit_cast<std::uint32_t>(sums.sums[i]) != poison)
      fail_thread("wgmma: sums changed before the wait for their products");
    sums.sums[i] = sums.value[static_cast<std::size_t>(i)];
  }
}

Accumulation& accumulation(ThreadProducts& thread, float* sums, int columns) {
  for (Accumulation& known : thread.sums) {
    if (known.pending == 0 || known.sums != sums) continue;
    if (known.columns != columns)
      fail_thread("wgmma: products of different shapes into the same sums");
    return known;
  }
  const auto size = static_cast<std::size_t>(columns / 2);
  Accumulation fresh{sums, columns, 0, std::vector<float>(sums, sums + size)};
  for (std::size_t i = 0; i < size; ++i) sums[i] = std::bit_cast<float>(poison);
  for (Accumulation& done : thread.sums) {
    if (done.pending == 0) return done = std::move(fresh);
  }
  return thread.sums.emplace_back(std::move(fresh));
}

struct Start {
  const std::uint32_t* registers;  // or null
  bool left_transposed, right_transposed, accumulate;
  std::uint64_t left, right;
};

void start_product(float* sums, int columns, const Start& start) {
  BlockState& block = state();
  const std::size_t index = thread_index(), warp = index / warp_lanes;
  const Logged mine{columns,
                    start.registers == nullptr,
                    start.left_transposed,
                    start.right_transposed,
                    start.accumulate,
                    start.left,
                    start.right};
  struct Deposit {
    Logged logged;
    std::uint32_t registers[4];
  } deposit{mine, {}};
  if (start.registers != nullptr)
    std::memcpy(deposit.registers, start.registers, sizeof deposit.registers);
  const auto* all = static_cast<const Deposit*>(
      exchange(full_mask, &deposit, sizeof deposit, std::source_location::current()));

  ThreadProducts& thread = block.threads[index];
  if (!thread.begun) fail_thread("wgmma: no wgmma.fence since the last wait");
  const std::size_t number = thread.started++;
  auto& products = block.warps[warp];
  if (number - block.dropped[warp] == products.size()) {  // the first lane that gets here
    const auto product = std::make_shared<WarpProduct>();
    product->columns = columns;
    product->warp = static_cast<int>(warp % 4);
    product->left_shared = mine.left_shared;
    product->left_transposed = start.left_transposed;
    product->right_transposed = start.right_transposed;
    product->left = start.left;
    product->right = start.right;
    for (std::size_t lane = 0; lane < warp_lanes; ++lane) {
      if (all[lane].logged != mine) fail_thread("wgmma: lanes of a warp start different products");
      std::memcpy(product->registers[lane].data(), all[lane].registers, sizeof deposit.registers);
    }
    std::vector<Logged>& log = block.warpgroups[warp / 4];
    if (number == log.size()) log.push_back(mine);
    if (log[number] != mine) fail_thread("wgmma: warps of a warpgroup start different products");
    product->operands = read_operands(*product);
    products.push_back(product);
  }
  const std::shared_ptr<WarpProduct> product = products[number - block.dropped[warp]];
  if (++product->taken == warp_lanes) {
    products.pop_front();
    ++block.dropped[warp];
  }
  Accumulation& into = accumulation(thread, sums, columns);
  ++into.pending;
  thread.open.push_back({product, &into, start.accumulate, start.registers});
}

}  // namespace

std::uint32_t shared_window(const unsigned char* pointer) {
  return state().window + static_cast<std::uint32_t>(
                              pointer - reinterpret_cast<const unsigned char*>(dynamic_shared()));
}

void multiply_shared(float* sums, int columns, std::uint64_t left, std::uint64_t right,
                     bool accumulate) {
  start_product(sums, columns, {nullptr, false, false, accumulate, left, right});
}
void multiply_shared(float* sums, int columns, std::uint64_t left, bool left_transposed,
                     std::uint64_t right, bool right_transposed, bool accumulate) {
  start_product(sums, columns,
                {nullptr, left_transposed, right_transposed, accumulate, left, right});
}
void multiply_registers(float* sums, int columns, const std::uint32_t (&left)[4],
                        std::uint64_t right, bool accumulate) {
  start_product(sums, columns, {left, false, true, accumulate, 0, right});
}

void products_begin() { state().threads[thread_index()].begun = true; }

void products_commit() {
  ThreadProducts& thread = state().threads[thread_index()];
  thread.groups.push_back(std::move(thread.open));
  thread.open.clear();
}

void products_wait(int groups) {
  // Now and then a warp falls far behind the others of its warpgroup.
  if (next_random() % 256 == 0)
    for (int times = 0; times < 400; ++times) dawdle();
  exchange(full_mask, nullptr, 0, std::source_location::current());
  ThreadProducts& thread = state().threads[thread_index()];
  thread.begun = false;
  for (; thread.groups.size() > static_cast<std::size_t>(groups); thread.groups.pop_front())
    for (const Pending& pending : thread.groups.front()) finish(pending);
}

void copied_to_shared(const std::byte* to, std::size_t bytes) {
  BlockState& block = state();
  const auto first = static_cast<std::size_t>(to - dynamic_shared());
  for (std::size_t at = first / unit; at * unit < first + bytes; ++at) {
    block.unfenced[at] = true;
    block.unfenced_copies[thread_index()].push_back(at);
  }
}

void fence_for_products() {
  BlockState& block = state();
  for (const std::size_t at : block.unfenced_copies[thread_index()]) block.unfenced[at] = false;
  block.unfenced_copies[thread_index()].clear();
}

namespace {

// What a barrier's 8 bytes of shared memory hold here; on a GPU they are opaque.
struct SharedBarrier {
  std::uint16_t mark, count, pending, phase;
};
constexpr std::uint16_t barrier_mark = 0x6d62;

SharedBarrier* shared_barrier(const unsigned char* at, bool fresh) {
  const auto offset =
      static_cast<std::size_t>(at - reinterpret_cast<const unsigned char*>(dynamic_shared()));
  if (offset % sizeof(SharedBarrier) != 0 ||
      offset + sizeof(SharedBarrier) > dynamic_shared_bytes())
    fail_thread("mbarrier: offset " + std::to_string(offset) +
                " of shared memory is no place for one");
  auto* const barrier = reinterpret_cast<SharedBarrier*>(dynamic_shared() + offset);
  if (!fresh && barrier->mark != barrier_mark)
    fail_thread("mbarrier: that at offset " + std::to_string(offset) + " was not initialized");
  return barrier;
}

}  // namespace

void barrier_init(const unsigned char* barrier, int count) {
  const auto threads = static_cast<std::uint16_t>(count);
  *shared_barrier(barrier, true) = {barrier_mark, threads, threads, 0};
}

void barrier_arrive(const unsigned char* barrier) {
  SharedBarrier* const arrived = shared_barrier(barrier, false);
  if (--arrived->pending > 0) return;
  arrived->pending = arrived->count;
  ++arrived->phase;
  wake(arrived);
}

void barrier_wait(const unsigned char* barrier, int parity) {
  SharedBarrier* const awaited = shared_barrier(barrier, false);
  while (awaited->phase % 2 == parity) sleep_on(awaited, std::source_location::current());
  // Whoever waits next has the more reason to.
  for (std::uint64_t times = next_random() % 8; times > 0; --times) dawdle();
}

void named_barrier(int number, int threads) {
  if (number < 0 || number > 15 || threads % warp_lanes != 0)
    fail_thread("bar.sync " + std::to_string(number) + ", " + std::to_string(threads));
  NamedBarrier& barrier = state().barriers[static_cast<std::size_t>(number)];
  if (barrier.arrived > 0 && barrier.threads != threads)
    fail_thread("bar.sync: threads wait at barrier " + std::to_string(number) +
                " for different numbers of threads");
  barrier.threads = threads;
  const std::uint64_t generation = barrier.generation;
  if (++barrier.arrived == threads) {
    barrier.arrived = 0;
    ++barrier.generation;
    wake(&barrier);
  }
  while (barrier.generation == generation) sleep_on(&barrier, std::source_location::current());
}

}  // namespace emulator
