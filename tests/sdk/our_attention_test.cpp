// The CUDA kernels of block-sparse attention, run on the CPU in each order of threads, beside dense attention in double
// precision.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "plugins/attention/cuda/block_lists.hpp"
#include "plugins/attention/cuda/kernels.hpp"
#include "tests/sdk/device_array.hpp"
#include "tests/sdk/launch_orders.hpp"

namespace capstan::testing {
namespace {

using namespace attention;

constexpr int kBatch = 2, kHeads = 2;

struct Problem {
  DeviceType type;
  int block, blocks, tokens, width, value_width;
  bool causal;

  std::size_t row(int batch, int head, int token) const {
    return (static_cast<std::size_t>(batch) * kHeads + static_cast<std::size_t>(head)) *
               static_cast<std::size_t>(tokens) +
           static_cast<std::size_t>(token);
  }
  std::size_t rows() const { return row(kBatch, 0, 0); }
  /// Of query and key, without heads.
  std::size_t pair(int batch, int query, int key) const {
    return static_cast<std::size_t>((batch * tokens + query) * tokens + key);
  }
};

/// Rows of `width` numbers.
struct Rows {
  int width;
  DeviceArray array;

  Rows(const Problem& problem, int of_width, std::mt19937& random)
      : width(of_width), array(random_array(problem.type, problem.rows() * static_cast<std::size_t>(width), random)) {}
  double at(std::size_t row, int e) const {
    return static_cast<double>(array[row * static_cast<std::size_t>(width) + static_cast<std::size_t>(e)]);
  }
  double dot(std::size_t row, const Rows& other, std::size_t other_row) const {
    double sum = 0;
    for (int e = 0; e < width; ++e) sum += at(row, e) * other.at(other_row, e);
    return sum;
  }
  DeviceRows device(const Problem& problem) {
    const std::int64_t token_stride = width, head_stride = token_stride * problem.tokens;
    return {array.data(), static_cast<DeviceDtype>(problem.type), width, kHeads * head_stride, head_stride,
            token_stride};
  }
};

/// One attention with all its inputs, a mask and a bias that all heads share among them.
struct Attention {
  Problem problem;
  std::mt19937 random{17};
  std::vector<std::uint8_t> cells;
  BlockLists lists;
  Rows q, k, v, out, grad, grad_q, grad_k, grad_v;
  std::vector<char> mask;        // [batch, query, key], of bools
  std::vector<float> bias;       // [batch, query, key]
  std::vector<float> grad_bias;  // [batch, head, query, key]: heads are added up elsewhere
  std::vector<float> log_sum_exp;

  explicit Attention(const Problem& of)
      : problem(of),
        q(of, of.width, random),
        k(of, of.width, random),
        v(of, of.value_width, random),
        out(of, of.value_width, random),
        grad(of, of.value_width, random),
        grad_q(of, of.width, random),
        grad_k(of, of.width, random),
        grad_v(of, of.value_width, random) {
    const auto blocks = static_cast<std::size_t>(of.blocks);
    cells.resize(kHeads * blocks * blocks);
    for (std::size_t i = 0; i < cells.size(); ++i) {
      cells[i] = random() % 4 != 0 && (!of.causal || i % blocks <= i / blocks % blocks);
    }
    lists = lists_of(
        {kHeads, static_cast<std::uint32_t>(of.block), static_cast<std::uint32_t>(blocks), of.causal, cells.data()});
    const std::size_t pairs = of.pair(kBatch, 0, 0);
    for (std::size_t i = 0; i < pairs; ++i) {
      mask.push_back(random() % 5 != 0);
      bias.push_back(static_cast<float>(random() % 1000) / 500.0f - 1.0f);
    }
    grad_bias.assign(pairs * kHeads, 0.0f);
    log_sum_exp.assign(of.rows(), 0.0f);
  }

  float scale() const { return 1.0f / std::sqrt(static_cast<float>(problem.width)); }
  bool joins(int batch, int head, int query, int key) const {
    const int n = problem.blocks;
    const auto cell = static_cast<std::size_t>((head * n + query / problem.block) * n + key / problem.block);
    return cells[cell] != 0 && (!problem.causal || key <= query) && mask[problem.pair(batch, query, key)] != 0;
  }
  /// The score of a query and a key, minus infinity where it is left out.
  double score(int batch, int head, int query, int key) const {
    if (!joins(batch, head, query, key)) return -std::numeric_limits<double>::infinity();
    const double product = q.dot(problem.row(batch, head, query), k, problem.row(batch, head, key));
    return product * static_cast<double>(scale()) + static_cast<double>(bias[problem.pair(batch, query, key)]);
  }
  DeviceCall call() {
    const std::int64_t n = problem.tokens;
    DeviceCall call{};
    call.q = q.device(problem);
    call.k = k.device(problem);
    call.v = v.device(problem);
    call.batch = kBatch;
    call.heads = kHeads;
    call.tokens = problem.tokens;
    call.width = problem.width;
    call.value_width = problem.value_width;
    call.scale = scale();
    call.terms[0] = {true, mask.data(), n * n, 0, n, 1, nullptr};
    call.terms[1] = {false, bias.data(), n * n, 0, n, 1, grad_bias.data()};
    call.term_count = 2;
    call.index = {problem.block,        problem.blocks,          problem.causal,   lists.column_starts.data(),
                  lists.columns.data(), lists.row_starts.data(), lists.rows.data()};
    return call;
  }
  DeviceGradients gradients() {
    return {out.device(problem),    log_sum_exp.data(),     grad.device(problem),
            grad_q.device(problem), grad_k.device(problem), grad_v.device(problem)};
  }
};

/// Allows the error of float32 sums of some hundred numbers of order 1, and half a step of the type that holds the
/// result.
void expect_near(double found, double expected, DeviceType type, const char* what, std::size_t at) {
  const double step = type == DeviceType::kFloat32 ? 0 : type == DeviceType::kBFloat16 ? 0x1p-8 : 0x1p-11;
  ASSERT_NEAR(found, expected, 2e-5 * (1 + std::abs(expected)) + step * std::abs(expected)) << what << ' ' << at;
}

void expect_rows(const Rows& found, const std::vector<double>& expected, const char* what) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    expect_near(static_cast<double>(found.array[i]), expected[i], found.array.type(), what, i);
  }
}

/// log(sum(exp(score))) of each row.
std::vector<double> log_sums(const Attention& a) {
  std::vector<double> sums(a.problem.rows());
  for (int b = 0; b < kBatch; ++b) {
    for (int h = 0; h < kHeads; ++h) {
      for (int i = 0; i < a.problem.tokens; ++i) {
        double sum = 0;
        for (int j = 0; j < a.problem.tokens; ++j) sum += std::exp(a.score(b, h, i, j));
        sums[a.problem.row(b, h, i)] = std::log(sum);
      }
    }
  }
  return sums;
}

/// Calls body(b, h, i, j, p) for each query and key, p being the weight of the key.
template <class Body>
void for_weights(const Attention& a, const std::vector<double>& sums, const Body& body) {
  for (int b = 0; b < kBatch; ++b) {
    for (int h = 0; h < kHeads; ++h) {
      for (int i = 0; i < a.problem.tokens; ++i) {
        for (int j = 0; j < a.problem.tokens; ++j) {
          const double score = a.score(b, h, i, j);
          if (std::isfinite(score)) body(b, h, i, j, std::exp(score - sums[a.problem.row(b, h, i)]));
        }
      }
    }
  }
}

void add_row(std::vector<double>& to, std::size_t row, double factor, const Rows& from, std::size_t from_row) {
  for (int e = 0; e < from.width; ++e) {
    to[row * static_cast<std::size_t>(from.width) + static_cast<std::size_t>(e)] += factor * from.at(from_row, e);
  }
}

void expect_forward(Attention& a, const std::vector<double>& sums) {
  ASSERT_EQ(launch_forward(a.call(), a.out.device(a.problem), a.log_sum_exp.data(), nullptr), nullptr);
  std::vector<double> out(a.out.array.count());
  for_weights(a, sums, [&](int b, int h, int i, int j, double p) {
    add_row(out, a.problem.row(b, h, i), p, a.v, a.problem.row(b, h, j));
  });
  expect_rows(a.out, out, "out");
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (std::isinf(sums[i])) {
      ASSERT_EQ(static_cast<double>(a.log_sum_exp[i]), sums[i]);  // a query without keys
    } else {
      expect_near(static_cast<double>(a.log_sum_exp[i]), sums[i], DeviceType::kFloat32, "log_sum_exp", i);
    }
  }
}

/// After expect_forward().
void expect_backward(Attention& a, const std::vector<double>& sums) {
  ASSERT_EQ(launch_backward(a.call(), a.gradients(), nullptr), nullptr);
  std::vector<double> q(a.q.array.count()), k(q.size()), v(a.v.array.count()), bias(a.grad_bias.size());
  const auto scale = static_cast<double>(a.scale());
  for_weights(a, sums, [&](int b, int h, int i, int j, double p) {
    const std::size_t query = a.problem.row(b, h, i), key = a.problem.row(b, h, j);
    const double of_score = p * (a.grad.dot(query, a.v, key) - a.grad.dot(query, a.out, query));
    add_row(q, query, of_score * scale, a.k, key);
    add_row(k, key, of_score * scale, a.q, query);
    add_row(v, key, p, a.grad, query);
    bias[query * static_cast<std::size_t>(a.problem.tokens) + static_cast<std::size_t>(j)] = of_score;
  });
  expect_rows(a.grad_q, q, "gradient of q");
  expect_rows(a.grad_k, k, "gradient of k");
  expect_rows(a.grad_v, v, "gradient of v");
  for (std::size_t i = 0; i < bias.size(); ++i) {
    expect_near(static_cast<double>(a.grad_bias[i]), bias[i], DeviceType::kFloat32, "gradient of the bias", i);
  }
}

/// Widths of each kernel, blocks above and below a tile, more keys than shared memory holds at once.
constexpr Problem kProblems[] = {
    {DeviceType::kFloat32, 16, 6, 93, 64, 64, false},  {DeviceType::kFloat32, 64, 2, 100, 5, 9, true},
    {DeviceType::kFloat32, 48, 2, 96, 100, 70, false}, {DeviceType::kFloat32, 40, 2, 80, 130, 256, true},
    {DeviceType::kBFloat16, 64, 2, 120, 32, 16, true}, {DeviceType::kFloat16, 64, 2, 120, 16, 32, false},
};

TEST(OurAttentionKernels, GiveDenseAttentionOfTheCellsThatAreSet) {
  for (const Problem& problem : kProblems) {
    SCOPED_TRACE(::testing::Message() << problem.tokens << " tokens of width " << problem.width);
    const std::vector<double> sums = log_sums(Attention(problem));
    in_each_launch_order([&] {
      Attention attention(problem);
      expect_forward(attention, sums);
      expect_backward(attention, sums);
    });
  }
}

}  // namespace
}  // namespace capstan::testing
