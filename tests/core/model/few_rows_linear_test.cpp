#include "capstan/few_rows_linear.hpp"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "core/memory/interceptor.hpp"
#include "core/precision/autocast.hpp"

namespace capstan {
namespace {

class FewRowsLinear : public ::testing::Test {
 protected:
  FewRowsLinear() { at::manual_seed(3); }
  const at::NoGradGuard no_grad_;
};

/// The largest difference from products and sums in double, as a part of the sums of magnitudes.
double error_of(const at::Tensor& found, const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
  const at::Tensor x = input.to(at::kDouble), w = weight.to(at::kDouble);
  at::Tensor exact = x.matmul(w.t()), scale = x.abs().matmul(w.abs().t());
  if (bias.defined()) {
    exact = exact + bias.to(at::kDouble);
    scale = scale + bias.to(at::kDouble).abs();
  }
  return ((found.to(at::kDouble) - exact).abs() / scale).max().item<double>();
}

TEST_F(FewRowsLinear, IsTheProductOfItsRowsAndTheWeight) {
  const std::vector<std::pair<at::ScalarType, double>> types = {
      {at::kFloat, 1e-6}, {at::kBFloat16, 4e-3}, {at::kHalf, 5e-4}};
  for (const auto& [type, bound] : types) {
    for (const std::int64_t rows : {1, 2, 3, 4, 5, 8, 11, 64}) {
      for (const std::int64_t width : {1, 7, 16, 67, 576}) {
        for (const std::int64_t outputs : {1, 3, 4, 10}) {
          SCOPED_TRACE(std::to_string(rows) + " rows, " + std::to_string(width) + " to " + std::to_string(outputs));
          const at::Tensor input = at::randn({rows, width}).to(type), weight = at::randn({outputs, width}).to(type);
          const at::Tensor bias = at::randn({outputs}).to(type);
          const at::Tensor plain = few_rows_linear(input, weight), moved = few_rows_linear(input, weight, bias);
          EXPECT_EQ(plain.scalar_type(), type);
          EXPECT_LT(error_of(plain, input, weight, {}), bound);
          EXPECT_LT(error_of(moved, input, weight, bias), bound);
        }
      }
    }
  }
  const at::Tensor input = at::randn({2, 3, 5}), weight = at::randn({7, 5});
  EXPECT_EQ(few_rows_linear(input, weight).sizes(), (std::vector<std::int64_t>{2, 3, 7}));
  // Rows that do not lie one behind the other.
  const at::Tensor apart = at::randn({5, 6}).t();
  EXPECT_LT(error_of(few_rows_linear(apart, weight), apart, weight, {}), 1e-6);
}

TEST_F(FewRowsLinear, GivesARowTheSameBitsWhateverIsBesideIt) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor input = at::randn({64, 1003}).to(type), weight = at::randn({1003, 1003}).to(type);
    for (const std::int64_t rows : {2, 5, 7, 64}) {
      const at::Tensor together = few_rows_linear(input.narrow(0, 0, rows), weight);
      for (std::int64_t row = 0; row < rows; ++row) {
        EXPECT_TRUE(together.select(0, row).equal(few_rows_linear(input.narrow(0, row, 1), weight).squeeze(0))) << row;
      }
    }
  }
}

TEST_F(FewRowsLinear, GivesTheSameBitsInAnyNumberOfThreads) {
  const at::Tensor input = at::randn({3, 1003}), weight = at::randn({1603, 1003});
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor alone = few_rows_linear(input, weight);
  at::set_num_threads(3);
  const at::Tensor shared = few_rows_linear(input, weight);
  at::set_num_threads(before);
  EXPECT_TRUE(shared.equal(alone));
}

TEST_F(FewRowsLinear, LeavesToLinearWhatItDoesNotServe) {
  const at::Tensor input = at::randn({3, 70}), weight = at::randn({90, 70});
  {
    const at::AutoGradMode grad(true);
    const at::Tensor trained = weight.clone().requires_grad_(true);
    const at::Tensor result = few_rows_linear(input, trained);
    EXPECT_TRUE(result.requires_grad());
    EXPECT_TRUE(result.equal(at::linear(input, trained)));
  }
  const at::Tensor many = at::randn({65, 70});
  EXPECT_TRUE(few_rows_linear(many, weight).equal(at::linear(many, weight)));
  const at::Tensor exact = input.to(at::kDouble), wide = weight.to(at::kDouble);
  EXPECT_TRUE(few_rows_linear(exact, wide).equal(at::linear(exact, wide)));
  const at::Tensor columns = at::randn({70, 90}).t();
  EXPECT_TRUE(few_rows_linear(input, columns).equal(at::linear(input, columns)));
  {
    const AutocastScope autocast(c10::DeviceType::CPU, at::kBFloat16);
    EXPECT_EQ(few_rows_linear(input, weight).scalar_type(), at::kBFloat16);
  }
  EXPECT_THROW(few_rows_linear(input, at::randn({90, 71})), c10::Error);
  EXPECT_THROW(few_rows_linear(input, weight, at::randn({89})), c10::Error);
}

/// Counts the operators that it sees.
struct Seen final : OperatorPolicy {
  std::vector<std::string> names;
  void before(const c10::OperatorHandle& op, OperatorStack&, std::size_t) override {
    names.push_back(op.schema().name());
  }
  void after(const c10::OperatorHandle&) noexcept override {}
};

TEST_F(FewRowsLinear, IsOneOperatorToWhoBringsItsWeight) {
  Seen seen;
  const at::Tensor input = at::randn({3, 70}), weight = at::randn({90, 70});
  {
    const InterceptorScope scope(seen);
    few_rows_linear(input, weight);
  }
  EXPECT_THAT(seen.names, ::testing::ElementsAre("capstan::few_rows_linear"));
}

}  // namespace
}  // namespace capstan
