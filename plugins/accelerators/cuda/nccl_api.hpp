#pragma once

#include <cstddef>

namespace capstan::accelerators {

/// 128 bytes by which the ranks of a communicator find each other (ncclUniqueId).
struct NcclId {
  char bytes[128];
};

/// The beginning of ncclConfig_t. NCCL reads as many bytes as `size` says, and takes for a field that is younger than
/// `version` its default.
struct NcclConfig {
  std::size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;  // NCCL 2.14.0, the first with `blocking`
  int blocking = 0;
};

/// The functions of NCCL that the link calls, in NCCL's C types: a communicator and a CUDA stream are pointers, results
/// are numbers.
struct NcclApi {
  static constexpr int kSuccess = 0, kInProgress = 7, kUint8 = 1;

  int (*new_id)(NcclId*);
  int (*init)(void** communicator, int size, NcclId id, int rank, NcclConfig*);
  int (*finalize)(void* communicator);
  int (*destroy)(void* communicator);
  int (*abort)(void* communicator);
  int (*async_error)(void* communicator, int* error);
  const char* (*error_text)(int);
  const char* (*last_error)(void* communicator);
  int (*group_start)();
  int (*group_end)();
  int (*send)(const void* from, std::size_t count, int type, int peer, void* communicator, void* stream);
  int (*receive)(void* to, std::size_t count, int type, int peer, void* communicator, void* stream);

  /// Of the library that LibTorch brought, so that there are never two copies of it in a process. Throws sdk::Error
  /// where it lacks a function.
  static const NcclApi& of_libtorch();
};

}  // namespace capstan::accelerators
