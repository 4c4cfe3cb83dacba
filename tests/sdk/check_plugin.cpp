#include <iostream>

#include "sdk/conformance/conformance.hpp"

/// check_plugin FILE: what `capstan plugins check` does.
int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const capstan::conformance::Options options;
  const auto results = capstan::conformance::check(argv[1], options, [&](const auto& result) {
    std::cout << capstan::conformance::line(result, argv[1], options) << '\n';
  });
  return capstan::conformance::passed(results) ? 0 : 1;
}
