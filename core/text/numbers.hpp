#pragma once

#include <cstdint>
#include <string>

namespace capstan {

/// "1,234,567"
std::string grouped(std::int64_t value);
/// "1 step", "1,234 steps"; `several` where the plural is not formed by an s.
std::string counted(std::int64_t count, const char* one, const char* several = nullptr);
/// `digits` after the point.
std::string fixed(double value, int digits);
/// Few digits, as a person would write it: "0.001", "3e-05", "1.5".
std::string short_number(double value);
/// "512 B", "2.05 kB", "31.8 MB": three digits, powers of 1000.
std::string bytes_text(std::uint64_t bytes);
/// "0:01:05"; whole seconds, rounded up.
std::string duration_text(double seconds);

}  // namespace capstan
