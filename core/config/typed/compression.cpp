#include "core/config/typed/compression.hpp"

namespace capstan {
namespace {

LayerReductionConfig read_layer_reduction(const SectionValues& section) {
  LayerReductionConfig to;
  section.read({{"enabled", &to.enabled},
                {"module_name_prefix", &to.module_name_prefix},
                {"teacher_layer", &to.teacher_layer},
                {"other_module_name", &to.other_module_name}});
  return to;
}

}  // namespace

CompressionConfig read_compression(const SectionValues& section) {
  CompressionConfig to;
  to.layer_reduction = read_layer_reduction(section.section("layer_reduction"));
  return to;
}

}  // namespace capstan
