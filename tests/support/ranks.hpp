#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "core/comm/communicator.hpp"
#include "tests/support/process.hpp"

namespace capstan::test {

/// Environment of one rank of a start whose processes meet at a port that the kernel chose.
class RankEnvironments {
 public:
  /// `per_host` of them say that they share a host; 0: all.
  explicit RankEnvironments(int size, int per_host = 0);
  ~RankEnvironments();
  RankEnvironments(const RankEnvironments&) = delete;
  std::vector<std::string> of(int rank) const;

 private:
  int size_, per_host_, socket_, port_;
};

struct RanksOptions {
  std::chrono::milliseconds timeout = std::chrono::minutes(5);  // the longest that one collective may take
  std::chrono::milliseconds arrival = std::chrono::minutes(5);  // the longest wait for all ranks to appear and connect
  std::chrono::milliseconds watch_every = std::chrono::milliseconds(100);
  int ranks_per_host = 0;                                                    // 0: all
  std::vector<int> over_tcp;                                                 // ranks that do without host memory
  std::function<std::vector<std::string>(int rank)> environment = [](int) {  // "NAME=value", beside the usual ones
    return std::vector<std::string>{};
  };
  std::function<void(int rank)> before = [](int) {};  // called in each rank's process before it connects
};

/// Runs the body of the current test in `size` processes: this program, started again for this test alone. In them it
/// calls `body` and ends the process; in the test's own process it waits for them and gives how they ended, rank by
/// rank. Nothing may be printed or checked before the call.
std::vector<ProcessResult> run_ranks(int size, const std::function<void(Communicator&)>& body,
                                     const RanksOptions& options = {});

/// The same, and expects every rank to pass.
void expect_on_ranks(int size, const std::function<void(Communicator&)>& body, const RanksOptions& options = {});

}  // namespace capstan::test
