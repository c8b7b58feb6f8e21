// Price lists: any text, read as TOML; a few of the machines that the parts make are put together.
#include "experiments/questions/price_list.hpp"

#include <cmath>

#include "tests/fuzz/fuzz.hpp"

using namespace spillway;

SPILLWAY_FUZZ_TARGET(price_list) {
  PriceList list;
  if (!fuzz::accepted([&] { list = parse_price_list(fuzz::text_of(input), "prices.toml"); }))
    return;
  std::vector<PricedMachine> machines;
  if (!fuzz::accepted([&] { machines = list.machines(); })) return;
  fuzz::require(machines.size() <= most_priced_machines, "there are not too many machines");
  constexpr std::size_t most_loaded = 16;
  for (std::size_t i = 0; i < machines.size(); ++i) {
    fuzz::require(machines[i].price >= 0, "a price is a number");
    if (i > 0)
      fuzz::require(machines[i].price >= machines[i - 1].price,
                    "the cheapest machine is the first");
    if (i >= most_loaded) continue;
    list.name_of(machines[i]);
    // Always this machine: another name may be the path of any file.
    fuzz::accepted([&] { load_machine("rtx4090-12ssd", machines[i].overrides); });
  }
}
