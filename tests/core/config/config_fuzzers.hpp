#pragma once

#include <string_view>

/// What libFuzzer calls with every input, and what the replay test calls with the corpus. A broken invariant aborts.
namespace capstan::testing {

/// Relaxed JSON: whatever is accepted is strict JSON to the parser, and upgrading it keeps it readable.
void fuzz_json(std::string_view text);
void fuzz_toml(std::string_view text);
/// The whole reading, with a few components installed: ends, and refuses with at least one error or gives a Config.
void fuzz_validator(std::string_view text);

}  // namespace capstan::testing
