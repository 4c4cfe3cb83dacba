// Kernels on a CPU: threads, blocks, barriers, shuffles, and what becomes of kernels with mistakes.
#include "capstan/sdk/launch.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "tests/sdk/launch_orders.hpp"

namespace capstan::testing {
namespace {

using Number = std::int64_t;  // sums of it are exact in every order

std::vector<Number> random_numbers(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Number> numbers(count);
  for (Number& number : numbers) number = static_cast<Number>(random() % 2'000'001) - 1'000'000;
  return numbers;
}

constexpr unsigned kThreads = 128;

__global__ void sums_by_barriers(const Number* numbers, std::size_t count, Number* sums) {
  __shared__ Number shared[kThreads];
  const unsigned t = threadIdx.x;
  const std::size_t i = blockIdx.x * std::size_t{blockDim.x} + t;
  shared[t] = i < count ? numbers[i] : 0;
  for (unsigned width = kThreads / 2; width > 0; width /= 2) {
    __syncthreads();
    if (t < width) shared[t] += shared[t + width];
  }
  if (t == 0) sums[blockIdx.x] = shared[0];
}

__global__ void sums_by_shuffles(const Number* numbers, std::size_t count, Number* sums) {
  __shared__ Number of_warps[kThreads / 32];
  const unsigned t = threadIdx.x;
  const std::size_t i = blockIdx.x * std::size_t{blockDim.x} + t;
  Number sum = i < count ? numbers[i] : 0;
  for (unsigned delta = 16; delta > 0; delta /= 2) sum += __shfl_down_sync(0xffffffffu, sum, delta);
  if (t % 32 == 0) of_warps[t / 32] = sum;
  __syncthreads();
  if (t != 0) return;
  sums[blockIdx.x] = 0;
  for (const Number of_warp : of_warps) sums[blockIdx.x] += of_warp;
}

using SumKernel = void (*)(const Number*, std::size_t, Number*);

void expect_block_sums(SumKernel kernel) {
  in_each_launch_order([&] {
    for (const std::size_t count : {1u, 127u, 128u, 129u, 4096u, 10'001u}) {
      const std::vector<Number> numbers = random_numbers(count, 7);
      const std::size_t blocks = (count + kThreads - 1) / kThreads;
      std::vector<Number> sums(blocks, -1), expected(blocks, 0);
      for (std::size_t i = 0; i < count; ++i) expected[i / kThreads] += numbers[i];
      sdk::launch(kernel, static_cast<unsigned>(blocks), kThreads, nullptr)(numbers.data(), count, sums.data());
      EXPECT_EQ(sums, expected) << count << " numbers";
    }
  });
}

TEST(Launch, AddsUpBlocksByBarriers) { expect_block_sums(sums_by_barriers); }
TEST(Launch, AddsUpBlocksByShuffles) { expect_block_sums(sums_by_shuffles); }

/// Each lane's results of one shuffle of each kind, in groups of `width` lanes.
__global__ void shuffle_all(int argument, int width, float* by_lane, float* down, float* by_xor) {
  const auto value = static_cast<float>(threadIdx.x);
  by_lane[threadIdx.x] = __shfl_sync(0xffffffffu, value, argument, width);
  down[threadIdx.x] = __shfl_down_sync(0xffffffffu, value, static_cast<unsigned>(argument), width);
  by_xor[threadIdx.x] = __shfl_xor_sync(0xffffffffu, value, argument, width);
}

TEST(Launch, ShufflesAsTheProgrammingGuideDefines) {
  in_each_launch_order([] {
    for (const int width : {2, 4, 8, 16, 32}) {
      for (int argument = 0; argument < 32; ++argument) {
        std::vector<float> by_lane(64), down(64), by_xor(64);
        sdk::launch(shuffle_all, 1, 64, nullptr)(argument, width, by_lane.data(), down.data(), by_xor.data());
        for (int t = 0; t < 64; ++t) {
          const int lane = t % 32, warp = t - lane, group = lane / width * width;
          const auto at = [&](int from) { return static_cast<float>(warp + from); };
          const auto i = static_cast<std::size_t>(t);
          EXPECT_EQ(by_lane[i], at(group + argument % width));
          EXPECT_EQ(down[i], at(lane + argument < group + width ? lane + argument : lane));
          EXPECT_EQ(by_xor[i], at((lane ^ argument) < group + width ? lane ^ argument : lane));
        }
      }
    }
  });
}

/// The halves of a warp go separate ways, and the last lane has left.
__global__ void shuffle_halves(float* out) {
  const auto value = static_cast<float>(threadIdx.x);
  if (threadIdx.x == 31) return;
  if (threadIdx.x < 16) {
    out[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, value, 1);
  } else {
    out[threadIdx.x] = __shfl_xor_sync(0xffff0000u, value, 2) + __shfl_xor_sync(0xffff0000u, value, 1);
  }
}

TEST(Launch, ShufflesAmongTheLanesOfAMaskAndGivesNanForLanesThatLeft) {
  in_each_launch_order([] {
    std::vector<float> out(32, -1);
    sdk::launch(shuffle_halves, 1, 32, nullptr)(out.data());
    for (unsigned t = 0; t < 31; ++t) {
      const float expected = t < 16 ? static_cast<float>(t ^ 1u) : static_cast<float>((t ^ 2u) + (t ^ 1u));
      if (t == 29 || t == 30) {
        EXPECT_TRUE(std::isnan(out[t])) << t;
      } else {
        EXPECT_EQ(out[t], expected) << t;
      }
    }
  });
}

/// Turns each block's numbers round in shared memory, twice. Barrier i is left out where `without` is i.
__global__ void reverse_twice(Number* numbers, int without) {
  __shared__ Number shared[kThreads];
  Number* own = numbers + blockIdx.x * blockDim.x + threadIdx.x;
  for (int round = 0; round < 2; ++round) {
    // Shuffles between the barriers: warps must not march in step where no barrier asks for it.
    shared[threadIdx.x] = __shfl_xor_sync(0xffffffffu, __shfl_xor_sync(0xffffffffu, *own, 1), 1);
    if (without != 0) __syncthreads();
    *own = shared[kThreads - 1 - threadIdx.x] + __shfl_sync(0xffffffffu, Number{1}, 0);
    if (without != 1) __syncthreads();
  }
}

/// In how many orders the result is wrong.
int wrong_orders(int without) {
  int wrong = 0;
  in_each_launch_order([&] {
    const std::vector<Number> before = random_numbers(4 * kThreads, 3);
    std::vector<Number> after = before;
    sdk::launch(reverse_twice, 4, kThreads, nullptr)(after.data(), without);
    bool same = true;
    for (std::size_t i = 0; i < before.size(); ++i) same = same && after[i] == before[i] + 2;
    wrong += same ? 0 : 1;
  });
  return wrong;
}

TEST(Launch, ShowsThatABarrierLacksByAnotherResult) {
  EXPECT_EQ(wrong_orders(-1), 0);
  EXPECT_GE(wrong_orders(0), 1);  // numbers are read before all are written
  EXPECT_GE(wrong_orders(1), 1);  // numbers are written before all are read
}

__global__ void note_threads(unsigned* noted, int* count) {
  noted[(*count)++] = threadIdx.x;
  __syncthreads();
  noted[(*count)++] = threadIdx.x;
}

/// The threads of a block in the order in which they came, before and after a barrier.
std::pair<std::vector<unsigned>, std::vector<unsigned>> order_of(const char* name) {
  constexpr unsigned kCount = 70;  // two warps and a part
  std::vector<unsigned> noted(2 * kCount);
  int count = 0;
  setenv("CAPSTAN_LAUNCH_ORDER", name, 1);
  sdk::launch(note_threads, 1, kCount, nullptr)(noted.data(), &count);
  unsetenv("CAPSTAN_LAUNCH_ORDER");
  return {{noted.begin(), noted.begin() + kCount}, {noted.begin() + kCount, noted.end()}};
}

TEST(Launch, RunsThreadsInTheOrderThatIsAskedFor) {
  std::vector<unsigned> upwards(70);
  std::iota(upwards.begin(), upwards.end(), 0u);
  const std::vector<unsigned> downwards(upwards.rbegin(), upwards.rend());
  EXPECT_EQ(order_of("forwards"), std::pair(upwards, upwards));
  EXPECT_EQ(order_of("backwards"), std::pair(downwards, downwards));
  const auto [before, after] = order_of("scattered");
  EXPECT_NE(before, after);
  EXPECT_EQ(std::set<unsigned>(before.begin(), before.end()).size(), 70u);
  EXPECT_EQ(std::set<unsigned>(after.begin(), after.end()).size(), 70u);
  EXPECT_EQ(order_of("scattered"), std::pair(before, after));
}

__global__ void count_elements(int* counts, int count) {
  const int stride = static_cast<int>(gridDim.x * blockDim.x);
  for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < count; i += stride) ++counts[i];
}

TEST(Launch, GridStrideLoopsReachEachElementOnce) {
  in_each_launch_order([] {
    std::vector<int> counts(100'003, 0);
    sdk::launch(count_elements, 7, 96, nullptr)(counts.data(), static_cast<int>(counts.size()));
    EXPECT_EQ(counts, std::vector<int>(counts.size(), 1));
  });
}

__global__ void count_indices(int* counts, dim3 blocks, dim3 threads) {
  const bool as_launched = gridDim.x == blocks.x && gridDim.y == blocks.y && gridDim.z == blocks.z &&
                           blockDim.x == threads.x && blockDim.y == threads.y && blockDim.z == threads.z;
  if (!as_launched) return;
  const unsigned block = (blockIdx.z * blocks.y + blockIdx.y) * blocks.x + blockIdx.x;
  const unsigned thread = (threadIdx.z * threads.y + threadIdx.y) * threads.x + threadIdx.x;
  ++counts[block * threads.x * threads.y * threads.z + thread];
}

TEST(Launch, BlocksAndThreadsHaveThreeIndices) {
  in_each_launch_order([] {
    const dim3 blocks(3, 2, 5), threads(5, 3, 7);
    std::vector<int> counts(3 * 2 * 5 * 5 * 3 * 7, 0);
    sdk::launch(count_indices, blocks, threads, nullptr)(counts.data(), blocks, threads);
    EXPECT_EQ(counts, std::vector<int>(counts.size(), 1));
  });
}

__global__ void leave_number(int* found, int number) {
  __shared__ int shared;
  if (threadIdx.x == 0) {
    found[blockIdx.x] = shared;
    shared = number + static_cast<int>(blockIdx.x);
  }
  __syncthreads();
  if (shared != number + static_cast<int>(blockIdx.x)) found[blockIdx.x] = -1;
}

TEST(Launch, SharedMemoryBelongsToABlockAndIsNotCleared) {
  in_each_launch_order([] {
    std::vector<int> found(3, -2);
    sdk::launch(leave_number, 3, 64, nullptr)(found.data(), 40);
    sdk::launch(leave_number, 3, 64, nullptr)(found.data(), 50);
    EXPECT_EQ(found, (std::vector<int>{42, 50, 51}));
  });
}

TEST(Launch, EachThreadOfTheHostHasItsOwnSharedMemory) {
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed) {
    threads.emplace_back([seed] {
      const std::vector<Number> numbers = random_numbers(kThreads * 100, seed);
      std::vector<Number> sums(100);
      sdk::launch(sums_by_barriers, 100, kThreads, nullptr)(numbers.data(), numbers.size(), sums.data());
      EXPECT_EQ(std::accumulate(sums.begin(), sums.end(), Number{0}),
                std::accumulate(numbers.begin(), numbers.end(), Number{0}));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

__global__ void draw_tickets(unsigned* counter, float* total, unsigned* tickets) {
  tickets[blockIdx.x * blockDim.x + threadIdx.x] = atomicAdd(counter, 1);
  atomicAdd(total, 0.5f);
}

TEST(Launch, AtomicAddReturnsWhatWasThere) {
  in_each_launch_order([] {
    unsigned counter = 0;
    float total = 0;
    std::vector<unsigned> tickets(3 * kThreads);
    sdk::launch(draw_tickets, 3, kThreads, nullptr)(&counter, &total, tickets.data());
    std::sort(tickets.begin(), tickets.end());
    for (unsigned i = 0; i < tickets.size(); ++i) ASSERT_EQ(tickets[i], i);
    EXPECT_EQ(counter, 3 * kThreads);
    EXPECT_EQ(total, 1.5f * kThreads);
  });
}

struct Marked {
  int numbers[8];
};

__global__ __launch_bounds__(64) void change_argument(const __grid_constant__ Marked given, Marked own, int* sum) {
  own.numbers[0] += given.numbers[7];  // its own copy: other threads do not see it
  atomicAdd(sum, own.numbers[0]);
}

TEST(Launch, EachThreadHasArgumentsOfItsOwn) {
  int sum = 0;
  const Marked marked{{1, 0, 0, 0, 0, 0, 0, 2}};
  sdk::launch(change_argument, 2, 32, nullptr)(marked, marked, &sum);
  EXPECT_EQ(sum, 64 * 3);
}

TEST(Launch, MinAndMaxPreferNumbersToNan) {
  EXPECT_EQ(min(3, 2L), 2);
  EXPECT_EQ(max(3u, 2u), 3u);
  EXPECT_EQ(min(NAN, 2.0f), 2.0f);
  EXPECT_EQ(max(2.0f, NAN), 2.0f);
}

// Launches that CUDA refuses.

TEST(Launch, NothingRunsWithoutBlocks) {
  Number never = 5;
  sdk::launch(sums_by_barriers, 0, kThreads, nullptr)(nullptr, 0, &never);
  EXPECT_EQ(never, 5);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST(Launch, RefusesMoreThreadsThanABlockHas) {
  int count = 0;
  ::testing::internal::CaptureStderr();
  sdk::launch(count_elements, 1, dim3(1024, 2), nullptr)(&count, 1);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(count, 0);
  EXPECT_EQ(said.substr(0, said.find("launch_test")), "capstan: the launch at ");
  EXPECT_NE(said.find(" asks for (1, 1, 1) blocks of (1024, 2, 1) threads; CUDA takes at most"), std::string::npos);
  const cudaError_t error = cudaGetLastError();
  EXPECT_EQ(error, cudaErrorInvalidConfiguration);
  EXPECT_STREQ(cudaGetErrorString(error), "invalid configuration argument");
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

// Kernels that cannot end.

__global__ void part_ways(int way) {
  if (blockIdx.x == 0) return;
  if (way == 0) {
    if (threadIdx.x < 32) __syncthreads();
  } else if (way == 1) {
    if (threadIdx.x < 32) {
      __syncthreads();
    } else {
      __syncthreads();
    }
  } else if (threadIdx.x != 40) {
    __shfl_sync(0xffffffffu, 1, 0);
  } else {
    __syncthreads();
  }
}

using LaunchDeathTest = ::testing::Test;

TEST(LaunchDeathTest, NamesTheBarriersAtWhichABlockStandsStill) {
  EXPECT_DEATH(
      sdk::launch(part_ways, 2, 96, nullptr)(1),
      "capstan: block .1, 0, 0. of the kernel launched at launch_test.cpp:[0-9]+ stands still: of its threads "
      "32 wait in __syncthreads at launch_test.cpp:[0-9]+, 64 wait in __syncthreads at launch_test.cpp:[0-9]+.");
  EXPECT_DEATH(sdk::launch(part_ways, 2, 64, nullptr)(2),
               "block .1, 0, 0. .* stands still: of its threads 32 have returned, 31 wait in __shfl_sync at "
               "launch_test.cpp:[0-9]+, 1 wait in __syncthreads at launch_test.cpp:[0-9]+.");
}

TEST(Launch, ABarrierDoesNotWaitForThreadsThatHaveReturned) { sdk::launch(part_ways, 2, 96, nullptr)(0); }

TEST(LaunchDeathTest, RefusesAnOrderThatItDoesNotKnow) {
  setenv("CAPSTAN_LAUNCH_ORDER", "sideways", 1);
  EXPECT_DEATH(sdk::launch(part_ways, 2, 96, nullptr)(0),
               "capstan: CAPSTAN_LAUNCH_ORDER is 'sideways'; it must be forwards, backwards or scattered.");
  unsetenv("CAPSTAN_LAUNCH_ORDER");
}

/// A function of its own, because its array lies on the stack as long as it runs.
__attribute__((noinline)) __device__ void write_large_array() {
  volatile char array[300 << 10];
  for (std::size_t i = sizeof array; i > 0; i -= 512) array[i - 1] = 1;
}

/// Thread 32 writes a little beyond its stack while the stacks of others lie around it.
__global__ void outgrow_stack() {
  __syncthreads();
  if (threadIdx.x != 32) return;
  write_large_array();
  std::_Exit(0);
}

TEST(LaunchDeathTest, AKernelThatOutgrowsItsStackFaults) {
  EXPECT_DEATH(sdk::launch(outgrow_stack, 1, 64, nullptr)(), "");
}

}  // namespace
}  // namespace capstan::testing
