#include "tests/support/ranks.hpp"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>

namespace capstan::test {
namespace {

/// Runs in a rank's own process and does not return.
[[noreturn]] void be_a_rank(const std::function<void(Communicator&)>& body, const RanksOptions& options) {
  // A test that is killed for its time takes its ranks with it.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  int code = 0;
  try {
    Communicator::Options given;
    given.timeout = options.timeout;
    given.arrival = options.arrival;
    given.watch_every = options.watch_every;
    const Rendezvous rendezvous = read_rendezvous(process_environment());
    options.before(rendezvous.rank);
    const auto communicator = Communicator::connect(rendezvous, given);
    body(*communicator);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    code = 3;
  }
  std::fflush(nullptr);
  _exit(code != 0 ? code : testing::Test::HasFailure() ? 1 : 0);
}

}  // namespace

RankEnvironments::RankEnvironments(int size, int per_host)
    : size_(size), per_host_(per_host > 0 ? per_host : size), socket_(socket(AF_INET, SOCK_STREAM, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  if (bind(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 || listen(socket_, 64) != 0 ||
      getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    throw std::runtime_error("no port to listen at");
  }
  port_ = ntohs(address.sin_port);
}

RankEnvironments::~RankEnvironments() { close(socket_); }

std::vector<std::string> RankEnvironments::of(int rank) const {
  return {"RANK=" + std::to_string(rank),
          "WORLD_SIZE=" + std::to_string(size_),
          "LOCAL_RANK=" + std::to_string(rank % per_host_),
          "LOCAL_WORLD_SIZE=" + std::to_string(per_host_),
          "MASTER_ADDR=127.0.0.1",
          "MASTER_PORT=" + std::to_string(port_),
          "CAPSTAN_LISTENING_SOCKET=" + std::to_string(socket_),
          "CAPSTAN_TEST_IS_RANK=1",
          "OMP_NUM_THREADS=1"};
}

std::vector<ProcessResult> run_ranks(int size, const std::function<void(Communicator&)>& body,
                                     const RanksOptions& options) {
  if (std::getenv("CAPSTAN_TEST_IS_RANK") != nullptr) be_a_rank(body, options);
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  const std::string name = std::string(test->test_suite_name()) + "." + test->name();
  const RankEnvironments environments(size, options.ranks_per_host);
  std::vector<std::unique_ptr<Process>> ranks;
  for (int rank = 0; rank < size; ++rank) {
    auto environment = environments.of(rank);
    const bool over_tcp = std::find(options.over_tcp.begin(), options.over_tcp.end(), rank) != options.over_tcp.end();
    if (over_tcp) environment.push_back("CAPSTAN_HOST_MEMORY=off");
    for (std::string& variable : options.environment(rank)) environment.push_back(std::move(variable));
    ranks.push_back(std::make_unique<Process>(std::vector<std::string>{"/proc/self/exe", "--gtest_filter=" + name},
                                              ProcessOptions{.environment = std::move(environment)}));
  }
  std::vector<ProcessResult> results;
  for (const auto& rank : ranks) results.push_back(rank->wait());
  return results;
}

void expect_on_ranks(int size, const std::function<void(Communicator&)>& body, const RanksOptions& options) {
  const auto results = run_ranks(size, body, options);
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    EXPECT_EQ(results[rank].exit_code, 0) << "rank " << rank << ":\n" << results[rank].out << results[rank].err;
  }
}

}  // namespace capstan::test
