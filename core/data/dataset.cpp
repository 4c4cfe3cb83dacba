#include "core/data/dataset.hpp"

#include <utility>

#include "core/errors.hpp"

namespace capstan {
namespace {

/// What a data set fails with is about the data, not about the plugin.
template <class Call>
void call_dataset(PluginFunction function, Call&& call) {
  try {
    call_plugin(function, "data", std::forward<Call>(call));
  } catch (const PluginError& error) {
    throw RuntimeFault(error.what());
  }
}

}  // namespace

Dataset::Dataset(Component component, const Source& source) : component_(std::move(component)) {
  std::vector<capstan_str> paths;
  for (const std::string& path : source.paths) paths.push_back(as_str(path));
  capstan_data_source told{};
  told.struct_size = sizeof told;
  told.paths = paths.data();
  told.path_count = paths.size();
  told.sequence_length = source.sequence_length;
  told.vocabulary = source.vocabulary;
  const auto* table = component_.vtable<capstan_dataset>();
  call_dataset(component_.function("open"),
               [&](capstan_error* error) { return table->open(component_.self(), &told, error); });

  const std::string where = "dataset '" + component_.manifest().type + "', describe";
  facts_ =
      Json::parse(plugin_text(component_.function("describe"), where, [&](capstan_sink* sink, capstan_error* error) {
        return table->describe(component_.self(), sink, error);
      }));
  const Json* samples = facts_.find("samples");
  if (samples == nullptr || !samples->is_integer() || samples->as_integer() < 1) {
    throw PluginError(where + ": \"samples\" must be a whole number above 0, got " + facts_.dump() +
                      ". Ask the plugin's author.");
  }
  samples_ = samples->as_integer();
  if (const Json* text = facts_.find("fingerprint"); text && text->is_string()) fingerprint_ = text->as_string();
  if (const Json* length = facts_.find("sequence_length"); length && length->is_integer()) {
    sequence_length_ = length->as_integer();
  }
  if (const Json* bytes = facts_.find("bytes_per_token")) {
    if (!bytes->is_number() || !(bytes->as_number() > 0)) {
      throw PluginError(where + ": \"bytes_per_token\" must be a number above 0, got " + facts_.dump() +
                        ". Ask the plugin's author.");
    }
    bytes_per_token_ = bytes->as_number();
  }
}

Batch Dataset::read(std::span<const std::int64_t> samples) const {
  Batch batch;
  call_dataset(component_.function("read"), [&](capstan_error* error) {
    return component_.vtable<capstan_dataset>()->read(component_.self(), samples.data(), samples.size(), &batch, error);
  });
  return batch;
}

}  // namespace capstan
