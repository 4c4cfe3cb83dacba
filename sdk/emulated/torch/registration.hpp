#pragma once

namespace torch {
class Library;
}

namespace capstan::emulated {

/// Operators by group, for register_operators(); `aten` registers them under the device's key.
void register_convolutions(torch::Library& aten);
void register_cells(torch::Library& aten);
/// Operators of sparse tensors, under a key of their own.
void register_sparse();

}  // namespace capstan::emulated
