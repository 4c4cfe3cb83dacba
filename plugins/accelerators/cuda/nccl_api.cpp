#include "plugins/accelerators/cuda/nccl_api.hpp"

#include <dlfcn.h>

#include <string>

#include "capstan/sdk/component.hpp"

namespace capstan::accelerators {

const NcclApi& NcclApi::of_libtorch() {
  static const NcclApi api = [] {
    void* library = ::dlopen("libnccl.so.2", RTLD_NOLOAD | RTLD_NOW);
    const auto find = [&](auto& function, const char* name) {
      void* found = library ? ::dlsym(library, name) : nullptr;
      if (!found) throw sdk::Error(std::string("LibTorch's NCCL has no ") + name + ".");
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(found);
    };
    NcclApi filled{};
    find(filled.new_id, "ncclGetUniqueId");
    find(filled.init, "ncclCommInitRankConfig");
    find(filled.finalize, "ncclCommFinalize");
    find(filled.destroy, "ncclCommDestroy");
    find(filled.abort, "ncclCommAbort");
    find(filled.async_error, "ncclCommGetAsyncError");
    find(filled.error_text, "ncclGetErrorString");
    find(filled.last_error, "ncclGetLastError");
    find(filled.group_start, "ncclGroupStart");
    find(filled.group_end, "ncclGroupEnd");
    find(filled.send, "ncclSend");
    find(filled.receive, "ncclRecv");
    return filled;
  }();
  return api;
}

}  // namespace capstan::accelerators
