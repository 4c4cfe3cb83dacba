#pragma once

namespace capstan::elements {

/// A rule that adds to sums and changes nothing.
template <class Rule>
concept MeasureRule = requires {
  Rule::kMeasures;
};

}  // namespace capstan::elements
