#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/checkpoint/carried_files.hpp"
#include "core/pretrained/gguf_entries.hpp"
#include "core/pretrained/gguf_header.hpp"
#include "core/text/json.hpp"

namespace capstan::cli {

/// What a GGUF file gets of the tokenizer that came with a model.
struct ExportedTokenizer {
  Json facts = Json::object();     // single values of the metadata, by their keys
  std::vector<GgufEntry> entries;  // the others
  std::vector<std::string> notes;  // sentences for who exports
  CarriedFiles files;              // that the entries point into
  GgufEntries arrays;              // likewise
};

/// The tokenizer and chat template of a checkpoint's files. Those of a GGUF file stay as they are; those of a folder
/// are translated, or, with a warning, left out where llama.cpp has no equal. `model_config`: config.json of the model,
/// `facts`: its metadata.
ExportedTokenizer exported_tokenizer(CarriedFiles files, const Json& model_config, const Json& facts);

}  // namespace capstan::cli
