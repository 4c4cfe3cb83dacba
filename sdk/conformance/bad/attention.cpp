// A window of two blocks, and every way to get it wrong.
#include "capstan/sdk/attention.hpp"

#include "bad.hpp"
#include "creation.hpp"

namespace {

namespace sdk = capstan::sdk;

class Bad {
 public:
  Bad(const sdk::Host&, const sdk::Params& params) : number_(++instances_) { create_badly(params); }

  sdk::AttentionFacts facts() const {
    if (breaks("facts")) return {0, false};
    if (breaks("facts_again")) return {8 + ++asked_, false};
    return {8, true};
  }
  void layout(const sdk::AttentionShape& shape, sdk::AttentionCells& cells) const {
    leak_in_call();
    if (breaks("cells")) return;
    for (std::uint32_t row = 0; row < shape.blocks; ++row) {
      cells.set(0, row, row);
      if (row > 0) cells.set(0, row, row - 1);
      if (breaks("pure") && number_ % 2 == 0 && row > 1) cells.set(0, row, 0);
    }
    if (breaks("cells_beyond")) cells.set(shape.heads, 0, 0);
    cells.copy_first_head();
  }

 private:
  static inline int instances_ = 0;
  int number_;
  mutable std::uint32_t asked_ = 0;
};

constexpr capstan_component kBad = with_raw_create<Bad>(sdk::attention<Bad, "Bad">);

}  // namespace

CAPSTAN_PLUGIN(&kBad)
