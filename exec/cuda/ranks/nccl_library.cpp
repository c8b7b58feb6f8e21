#include <dlfcn.h>
#include <fmt/format.h>

#include "base/errors.hpp"
#include "exec/cuda/ranks/nccl.hpp"

#if !defined(SPILLWAY_EMULATED_GPU) && __has_include(<nccl.h>)
#include <nccl.h>

namespace spillway::cuda {
static_assert(sizeof(NcclId) == sizeof(ncclUniqueId) && sizeof(int) == sizeof(ncclResult_t));
static_assert(NcclFunctions::success == ncclSuccess &&
              NcclFunctions::in_progress == ncclInProgress);
static_assert(NcclFunctions::bytes == ncclUint8 && NcclConfig::undefined == NCCL_CONFIG_UNDEF_INT);
static_assert(offsetof(NcclConfig, size) == offsetof(ncclConfig_t, size) &&
              offsetof(NcclConfig, magic) == offsetof(ncclConfig_t, magic) &&
              offsetof(NcclConfig, version) == offsetof(ncclConfig_t, version) &&
              offsetof(NcclConfig, blocking) == offsetof(ncclConfig_t, blocking) &&
              offsetof(NcclConfig, cluster_size) == offsetof(ncclConfig_t, cgaClusterSize) &&
              offsetof(NcclConfig, least_blocks) == offsetof(ncclConfig_t, minCTAs) &&
              offsetof(NcclConfig, most_blocks) == offsetof(ncclConfig_t, maxCTAs) &&
              offsetof(NcclConfig, network) == offsetof(ncclConfig_t, netName));
}  // namespace spillway::cuda
#endif

namespace spillway::cuda {

namespace {

constexpr int oldest = 21700;

constexpr const char* how_to_get_it =
    "install NCCL: it comes with a CUDA toolkit (libnccl2), or by `pip install nvidia-nccl-cu13`; "
    "SPILLWAY_NCCL=FILE names its libnccl.so.2, SPILLWAY_NCCL=off does without";

template <class Function>
void look_up(void* library, const std::string& file, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  if (function == nullptr) throw MachineError(file + " has no " + name, how_to_get_it);
}

}  // namespace

NcclFunctions load_nccl(const std::string& file) {
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* const reason = dlerror();
    throw MachineError(fmt::format("NCCL cannot be loaded: {}", reason ? reason : file),
                       how_to_get_it);
  }
  NcclFunctions found;
  look_up(library, file, "ncclGetVersion", found.version);
  look_up(library, file, "ncclGetErrorString", found.error_text);
  look_up(library, file, "ncclGetLastError", found.last_error);
  look_up(library, file, "ncclGetUniqueId", found.new_id);
  look_up(library, file, "ncclCommInitRankConfig", found.join);
  look_up(library, file, "ncclCommGetAsyncError", found.state);
  look_up(library, file, "ncclCommAbort", found.abort);
  look_up(library, file, "ncclGroupStart", found.begin_group);
  look_up(library, file, "ncclGroupEnd", found.end_group);
  look_up(library, file, "ncclSend", found.send);
  look_up(library, file, "ncclRecv", found.receive);
  int version = 0;
  if (found.version(&version) != NcclFunctions::success || version < oldest)
    throw MachineError(
        fmt::format("{} is NCCL of version {}; 2.17 or later is needed", file, version),
        how_to_get_it);
  return found;
}

}  // namespace spillway::cuda
