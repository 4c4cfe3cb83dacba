#pragma once

#include <c10/core/StorageImpl.h>

#include <string>

namespace capstan {

/// Takes a storage's memory from it. The storage keeps its size, so that tensors over it and views of them stay what
/// they are and cost nothing; whoever asks for the memory without an operator (`data_ptr`, `torch::save`, another
/// thread) gets an exception with `sentence` instead of a null pointer.
void drop_memory(c10::StorageImpl& storage, std::string sentence);

/// Gives the storage memory again. The tensors' version counters do not change.
void restore_memory(c10::StorageImpl& storage, at::DataPtr memory);

}  // namespace capstan
