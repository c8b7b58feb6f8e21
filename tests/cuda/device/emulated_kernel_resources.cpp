#ifdef SPILLWAY_EMULATED_GPU
#include "tests/cuda/device/emulated_kernel_resources.hpp"

#include <cxxabi.h>
#include <elf.h>
#include <link.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <numeric>
#include <queue>
#include <sstream>

#include "base/errors.hpp"
#include "base/rounding.hpp"
#include "test_paths.hpp"

namespace spillway::test {

namespace {

// As tests/cuda_module/resources_test.py writes it.
std::string plain_name(const char* mangled) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(mangled, nullptr, nullptr, &status), std::free);
  std::string name = status == 0 ? text.get() : mangled;
  for (const std::string part : {"(anonymous namespace)::", "spillway::", "cuda::"}) {
    for (std::size_t at = 0; (at = name.find(part, at)) != std::string::npos;)
      name.erase(at, part.size());
  }
  return name.starts_with("void ") ? name.substr(5) : name;
}

template <class T>
const T* at(const std::string& file, std::size_t offset, std::size_t count = 1) {
  SPILLWAY_ASSERT(offset + count * sizeof(T) <= file.size());
  return reinterpret_cast<const T*>(file.data() + offset);
}

// Functions of the running program by address, from its symbol table.
std::map<std::uintptr_t, std::string> functions() {
  std::ifstream in("/proc/self/exe", std::ios::binary);
  const std::string file(std::istreambuf_iterator<char>(in), {});
  std::uintptr_t base = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* to) {
        *static_cast<std::uintptr_t*>(to) = info->dlpi_addr;
        return 1;  // the program itself comes first
      },
      &base);
  std::map<std::uintptr_t, std::string> found;
  const auto* header = at<ElfW(Ehdr)>(file, 0);
  const auto* sections = at<ElfW(Shdr)>(file, header->e_shoff, header->e_shnum);
  for (int i = 0; i < header->e_shnum; ++i) {
    if (sections[i].sh_type != SHT_SYMTAB) continue;
    const auto& names = sections[sections[i].sh_link];
    const std::size_t count = sections[i].sh_size / sizeof(ElfW(Sym));
    const auto* symbols = at<ElfW(Sym)>(file, sections[i].sh_offset, count);
    for (std::size_t k = 0; k < count; ++k) {
      if (ELF64_ST_TYPE(symbols[k].st_info) != STT_FUNC) continue;
      found[base + symbols[k].st_value] = at<char>(file, names.sh_offset + symbols[k].st_name);
    }
  }
  return found;
}

}  // namespace

std::map<std::string, KernelResources> kernel_resources() {
  std::ifstream in(std::string(SPILLWAY_SOURCE_DIR) + "/tests/cuda_module/resources.txt");
  std::map<std::string, KernelResources> all;
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    KernelResources one;
    for (int& registers : one.registers) words >> registers;
    words >> one.shared >> one.threads >> std::ws;
    std::string name;
    std::getline(words, name);
    all[name] = one;
  }
  return all;
}

std::string kernel_at(const void* address) {
  static const auto all = functions();
  const auto found = all.find(reinterpret_cast<std::uintptr_t>(address));
  return found == all.end() ? "" : plain_name(found->second.c_str());
}

double wave_efficiency(const std::vector<double>& cost, int multiprocessors, int side_by_side) {
  const auto count = static_cast<std::size_t>(multiprocessors);
  const std::size_t slots = count * static_cast<std::size_t>(side_by_side);
  if (cost.size() <= slots) {  // all at once, dealt out
    std::vector<double> busy(count, 0.0);
    for (std::size_t i = 0; i < cost.size(); ++i) busy[i % count] += cost[i];
    return std::accumulate(cost.begin(), cost.end(), 0.0) /
           (static_cast<double>(count) * *std::max_element(busy.begin(), busy.end()));
  }
  std::priority_queue<double, std::vector<double>, std::greater<>> free_at;
  for (std::size_t i = 0; i < slots; ++i) free_at.push(0.0);
  double end = 0, sum = 0;
  for (const double one : cost) {
    const double done = free_at.top() + one;
    free_at.pop();
    free_at.push(done);
    end = std::max(end, done);
    sum += one;
  }
  return sum / (static_cast<double>(slots) * end);
}

double wave_efficiency(std::int64_t blocks, int multiprocessors, int side_by_side) {
  const std::int64_t slots = std::int64_t{multiprocessors} * side_by_side;
  const std::int64_t at_once = blocks <= slots ? multiprocessors : slots;
  return static_cast<double>(blocks) / static_cast<double>(round_up(blocks, at_once));
}

}  // namespace spillway::test
#endif
