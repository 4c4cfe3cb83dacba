#pragma once

#include <gtest/gtest.h>

#include <cstdlib>

namespace capstan::testing {

/// Calls body() once for each order in which kernels on a CPU can run the threads of a block.
template <class Body>
void in_each_launch_order(const Body& body) {
  for (const char* order : {"forwards", "backwards", "scattered"}) {
    SCOPED_TRACE(order);
    setenv("CAPSTAN_LAUNCH_ORDER", order, 1);
    body();
  }
  unsetenv("CAPSTAN_LAUNCH_ORDER");
}

}  // namespace capstan::testing
