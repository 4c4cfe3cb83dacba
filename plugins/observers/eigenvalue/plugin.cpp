#include "eigenvalue.hpp"

namespace capstan::eigenvalue {
namespace {

class DrawnEigenvalue final : public Eigenvalue {
 public:
  DrawnEigenvalue(sdk::Host host, const sdk::Params& params)
      : Eigenvalue(host, params, drawn(static_cast<std::uint64_t>(params.integer("seed")))) {}
};

}  // namespace
}  // namespace capstan::eigenvalue

CAPSTAN_PLUGIN(&capstan::sdk::observer<capstan::eigenvalue::DrawnEigenvalue, "eigenvalue">)
