// Links between GPUs, over the emulated NCCL: numbers, failures, and ranks that are lost.
#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "exec/cuda/ranks/nccl_links.hpp"
#include "exec/ranks/rank_gpus.hpp"
#include "tests/cuda/device_memory.hpp"
#include "tests/emulator/emulator.hpp"
#include "tests/exec/ranks/local_ranks.hpp"

using namespace spillway;
using namespace spillway::cuda;

namespace {

// Ranks of a test, each with a GPU of its own.
void run_ranks(int size, const std::function<void(RankTeam&)>& body) {
  const auto with_devices = [](int devices) {
    emulator::Machine machine;
    machine.devices = devices;
    emulator::set_machine(machine);
  };
  with_devices(size);
  const std::unique_ptr<void, std::function<void(void*)>> after(&size,
                                                                [&](void*) { with_devices(1); });
  test::run_ranks(size, body);
}

std::unique_ptr<GpuLinks> links(RankTeam& team) {
  return std::make_unique<NcclLinks>(team.rank(), "");
}

template <class Element>
std::vector<Element> values_of(int rank, std::size_t count) {
  return random_normal<Element>(count, rank % 2 == 0 ? 1e4f : 1e-1f,
                                static_cast<std::uint64_t>(rank) + 1);
}

template <class Element>
struct Collected {
  std::vector<Element> whole, part, gathered;
  bool operator==(const Collected& other) const {
    return same_bits(whole, other.whole) && same_bits(part, other.part) &&
           same_bits(gathered, other.gathered);
  }
};

// All collectives of `sums`, on memory that `make` makes and `read` looks at.
template <class Element, class Make, class Read>
Collected<Element> collect(RankTeam& team, OrderedSums& sums, std::size_t count, const Make& make,
                           const Read& read) {
  constexpr std::uint64_t width = sizeof(Element);
  const auto parts = test::unequal_parts(team.size(), count, width);
  const std::uint64_t own = parts[static_cast<std::size_t>(team.rank())];
  const std::vector<Element> mine = values_of<Element>(team.rank(), count);
  auto whole = make(mine), summed = make(mine), gathered = make(mine);
  auto part = make(std::vector<Element>(own / width, from_float<Element>(0.5f)));
  const auto at = [](auto& one) { return reinterpret_cast<std::byte*>(one->data()); };
  team.barrier();
  sums.all_reduce(at(whole), count * width, width);
  sums.reduce_scatter(at(summed), at(part), parts, width, true);
  sums.all_gather(at(part), at(gathered), parts);
  team.barrier();
  return {read(whole), read(part), read(gathered)};
}

template <class Element>
void check_collectives(int ranks, std::size_t count) {
  INFO(ranks << " ranks, " << count << " elements of " << sizeof(Element) << " bytes");
  std::atomic<int> same{0};
  run_ranks(ranks, [&](RankTeam& team) {
    RankGpus gpus(team, links(team), false);
    const auto on_host = collect<Element>(
        team, team.on(Lane::ranks_reduce), count,
        [](const auto& values) { return std::make_unique<std::vector<Element>>(values); },
        [](const auto& one) { return *one; });
    const auto on_gpus = collect<Element>(
        team, *gpus.on(Lane::ranks_reduce), count,
        [](const auto& values) { return std::make_unique<DeviceArray<Element>>(values); },
        [](const auto& one) { return one->download(); });
    same += on_gpus == on_host ? 1 : 0;
  });
  CHECK(same == ranks);
}

TEST_CASE("CUDA: collectives between GPUs have the bits of those in host memory") {
  for (const int ranks : {2, 3, 4}) {
    for (const std::size_t count : {64u, 5000u, 300'000u}) {
      check_collectives<float>(ranks, count);
      check_collectives<bf16>(ranks, count);
    }
  }
  // Several pieces of one.
  check_collectives<float>(2, 10'000'000);
}

TEST_CASE("CUDA: messages between stages arrive, each way by a link of its own") {
  constexpr int stages = 3;
  constexpr std::size_t count = 5000;
  std::atomic<int> right{0};
  run_ranks(stages, [&](RankTeam& team) {
    RankGpus gpus(team, links(team), true);
    const int next = (team.rank() + 1) % stages, before = (team.rank() + stages - 1) % stages;
    DeviceArray<float> out(values_of<float>(team.rank(), count)), in(count), gradient(count);
    team.barrier();
    const auto bytes = [](const auto& one) { return reinterpret_cast<std::byte*>(one.data()); };
    // Around the ring, on lanes of their own: one that waits holds up no other.
    std::thread sends([&] {
      if (gpus.meet(Lane::stage_out, next, true))
        gpus.send(Lane::stage_out, next, bytes(out), out.bytes());
    });
    std::thread receives([&] {
      if (gpus.meet(Lane::stage_in, before, true))
        gpus.receive(Lane::stage_in, before, bytes(in), in.bytes());
    });
    sends.join();
    receives.join();
    team.barrier();
    right += same_bits(in.download(), values_of<float>(before, count)) ? 1 : 0;
    // Back, and what is not for a result on one side moves nothing.
    std::thread back([&] {
      if (gpus.meet(Lane::stage_gradient_out, before, team.rank() != 1))
        gpus.send(Lane::stage_gradient_out, before, bytes(in), in.bytes());
    });
    const bool moved = gpus.meet(Lane::stage_gradient_in, next, true);
    if (moved) gpus.receive(Lane::stage_gradient_in, next, bytes(gradient), gradient.bytes());
    back.join();
    right += moved == (next != 1) ? 1 : 0;
    team.barrier();
  });
  CHECK(right == 2 * stages);
}

TEST_CASE("CUDA: where one rank only takes part in a collective, none moves anything") {
  std::atomic<int> moved{0};
  run_ranks(3, [&](RankTeam& team) {
    RankGpus gpus(team, links(team), false);
    moved += gpus.meet(Lane::ranks_gather, all_ranks(3), team.rank() != 1) ? 1 : 0;
    moved += gpus.meet(Lane::ranks_gather, all_ranks(3), true) ? 10 : 0;
  });
  CHECK(moved == 30);
}

TEST_CASE("CUDA: links that cannot be made or used say what failed, and what to do") {
  const auto failing = [&](const char* call, int nth, const char* text) {
    emulator::reset();
    emulator::fail(call, nth, cudaErrorUnknown);
    std::mutex mutex;
    std::string texts;  // of both: one has failed, the other has lost it
    CHECK_THROWS(run_ranks(2, [&](RankTeam& team) {
      try {
        RankGpus gpus(team, links(team), false);
      } catch (const MachineError& error) {
        const std::lock_guard lock(mutex);
        texts += std::string(error.what()) + "; ";
        throw;
      }
    }));
    CHECK_THAT(texts, Catch::Contains(text));
    emulator::reset();
  };
  failing("ncclCommInitRankConfig", 1, "in ncclCommInitRank");
  failing("ncclGroupEnd", 1, "in ncclGroupEnd");
  failing("cudaMalloc", 1, "cannot take 33.55 MB of GPU memory for what ranks tell each other");
}

TEST_CASE("CUDA: a rank that is lost ends those that wait for its GPU") {
  const std::int64_t aborted = emulator::count("ncclCommAbort");
  const DeviceArray<float> whole(values_of<float>(0, 1000));
  std::string lost;
  const auto one_fails = [&](RankTeam& team) {
    RankGpus gpus(team, links(team), false);
    team.barrier();
    if (team.rank() == 1) throw MachineError("its drive is gone");
    try {
      gpus.on(Lane::ranks_reduce)
          ->all_reduce(reinterpret_cast<std::byte*>(whole.data()), whole.bytes(), sizeof(float));
    } catch (const RankLost& error) {
      lost = error.what();
      throw;
    }
  };
  CHECK_THROWS(run_ranks(2, one_fails));
  CHECK_THAT(lost, Catch::Contains("rank 1") && Catch::Contains("its drive is gone"));
  CHECK(emulator::count("ncclCommAbort") > aborted);
}

}  // namespace
