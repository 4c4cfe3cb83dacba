#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string_view>
#include <vector>

namespace capstan::sdk::kernels_on_cpu {

/// The order in which the threads of a block run between two barriers. A kernel without a race gives the same result in
/// each of them.
class LaunchOrder {
 public:
  /// As the environment variable CAPSTAN_LAUNCH_ORDER says: forwards (also where it is not set), backwards or
  /// scattered, which is another order after every barrier, and the same ones in every launch. Ends the process with a
  /// sentence at any other value.
  LaunchOrder() {
    const char* value = std::getenv("CAPSTAN_LAUNCH_ORDER");
    const std::string_view name = value ? value : "forwards";
    backwards_ = name == "backwards";
    scattered_ = name == "scattered";
    if (backwards_ || scattered_ || name == "forwards") return;
    std::fprintf(stderr, "capstan: CAPSTAN_LAUNCH_ORDER is '%s'; it must be forwards, backwards or scattered.\n",
                 value);
    std::abort();
  }

  /// The numbers from 0 to count - 1 in the order of the next pass.
  std::vector<std::size_t> next(std::size_t count) {
    std::vector<std::size_t> order(count);
    std::iota(order.begin(), order.end(), std::size_t{0});
    if (backwards_) std::reverse(order.begin(), order.end());
    if (scattered_) std::shuffle(order.begin(), order.end(), random_);
    return order;
  }

 private:
  bool backwards_, scattered_;
  std::mt19937 random_;
};

}  // namespace capstan::sdk::kernels_on_cpu
