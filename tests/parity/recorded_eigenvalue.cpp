// The eigenvalues of blocks with the recorded start vectors in the place of drawn ones: the plugin's own files, but for
// the draw. Evaluates in every step, and writes what it finds to a file.
#include <ATen/ops/empty.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <memory>

#include "eigenvalue.hpp"
#include "tests/support/hash_uniform.hpp"

namespace capstan::eigenvalue {
namespace {

/// The k-th tensor asked for, k running over the blocks' parameters and the evaluations, has the values of "eig.<k>".
Start recorded_start() {
  const auto k = std::make_shared<std::int64_t>(0);
  return [k](const Block& block, std::size_t, std::int64_t) {
    Vector v;
    for (const auto& shape : block.shapes) {
      v.push_back(at::empty(shape, at::kFloat));
      const auto values =
          testing::hash_uniform("eig." + std::to_string((*k)++), static_cast<std::size_t>(v.back().numel()), 1);
      std::copy(values.begin(), values.end(), v.back().mutable_data_ptr<float>());
    }
    return v;
  };
}

class RecordedEigenvalue final : public Eigenvalue {
 public:
  RecordedEigenvalue(sdk::Host host, const sdk::Params& params)
      : Eigenvalue(host, params, recorded_start()), out_(params.text("out") + "." + std::to_string(host.rank())) {}

 protected:
  bool is_due(const capstan_event&) const override { return true; }
  void found(const capstan_event&, const Evaluation& evaluation) override {
    std::ofstream out(out_, std::ios::app);
    out.precision(17);
    out << "{\"eigenvalues\": [";
    const auto& blocks = evaluation.blocks;
    for (std::size_t b = 0; b < blocks.size(); ++b) out << (b == 0 ? "" : ", ") << blocks[b].eigenvalue;
    out << "], \"first\": [";
    for (std::size_t b = 0; b < blocks.size(); ++b) out << (b == 0 ? "" : ", ") << blocks[b].first;
    out << "], \"products\": [";
    for (std::size_t b = 0; b < blocks.size(); ++b) out << (b == 0 ? "" : ", ") << blocks[b].products;
    out << "], \"relative\": [";
    for (std::size_t b = 0; b < blocks.size(); ++b) out << (b == 0 ? "" : ", ") << evaluation.relative[b];
    out << "]}\n";
  }

 private:
  std::string out_;
};

}  // namespace
}  // namespace capstan::eigenvalue

CAPSTAN_PLUGIN(&capstan::sdk::observer<capstan::eigenvalue::RecordedEigenvalue, "recorded_eigenvalue">)
