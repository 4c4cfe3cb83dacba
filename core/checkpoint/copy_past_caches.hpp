#pragma once

#include <cstddef>

namespace capstan {

/// Copies between memory that does not overlap, past the caches where the processor can: for what nobody reads for a
/// while. Other threads see the bytes once flush_copies() has been called.
void copy_past_caches(std::byte* to, const std::byte* from, std::size_t count);
void flush_copies();

}  // namespace capstan
