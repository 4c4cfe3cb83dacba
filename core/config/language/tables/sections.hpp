#pragma once

#include <span>

#include "core/config/language/language.hpp"

/// The tables of the language, one file each.
namespace capstan::sections {

/// The reader of most rows.
inline constexpr const char* kEngine = "the engine";

std::span<const Key> batch();
std::span<const Key> optimizer();
std::span<const Key> communication();
std::span<const Key> precision();
std::span<const Key> zero();
std::span<const Key> aio();
std::span<const Key> logging();
std::span<const Key> monitors();
std::span<const Key> profiling();
std::span<const Key> autotuning();
std::span<const Key> activation_checkpointing();
std::span<const Key> sparse_attention();
std::span<const Key> data_efficiency();
std::span<const Key> compression();
std::span<const Key> elasticity();
std::span<const Key> checkpoint();
std::span<const Key> parallelism();
std::span<const Key> capstan();

}  // namespace capstan::sections
