#include "core/data/dataset.hpp"

#include "core/errors.hpp"
#include "core/text/json.hpp"

namespace capstan {

Dataset::Dataset(Component component, const Source& source)
    : component_(std::move(component)), where_("dataset '" + component_.manifest().type + "'") {
  std::vector<capstan_str> paths;
  for (const std::string& path : source.paths) paths.push_back(as_str(path));
  capstan_data_source told{};
  told.struct_size = sizeof told;
  told.paths = paths.data();
  told.path_count = paths.size();
  told.sequence_length = source.sequence_length;
  told.vocabulary = source.vocabulary;
  const auto* table = component_.vtable<capstan_dataset>();
  call_plugin(component_.function("open"), where_,
              [&](capstan_error* error) { return table->open(component_.self(), &told, error); });

  const Json facts = Json::parse(plugin_text(
      component_.function("describe"), where_ + ", describe",
      [&](capstan_sink* sink, capstan_error* error) { return table->describe(component_.self(), sink, error); }));
  const Json* samples = facts.find("samples");
  if (samples == nullptr || !samples->is_integer() || samples->as_integer() < 0) {
    throw PluginError(where_ + ", describe: \"samples\" must be a whole number, got " + facts.dump() + ".");
  }
  samples_ = samples->as_integer();
  if (const Json* text = facts.find("fingerprint"); text && text->is_string()) fingerprint_ = text->as_string();
  if (const Json* length = facts.find("sequence_length"); length && length->is_integer()) {
    sequence_length_ = length->as_integer();
  }
}

Batch Dataset::read(std::span<const std::int64_t> samples) const {
  Batch batch;
  call_plugin(component_.function("read"), where_, [&](capstan_error* error) {
    return component_.vtable<capstan_dataset>()->read(component_.self(), samples.data(), samples.size(), &batch, error);
  });
  return batch;
}

}  // namespace capstan
