#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/pretrained/gguf_header.hpp"
#include "core/text/json.hpp"

namespace capstan {

// A model between a config.json of transformers and a GGUF file of llama.cpp: the numbers that describe it, and the
// names and the layout of its weights. Known are llama (which Mistral is in GGUF) and those of gguf_architectures().

/// Where llama.cpp has a weight of transformers, and how it lies there.
struct GgufPlace {
  std::string name;
  /// Rows of each of so many heads lie in pairs: row 2i + j there is row i + j * d / 2 of a head of d rows here,
  /// because llama.cpp rotates neighbours where transformers rotates halves. 0: rows lie as here.
  std::int64_t rotary_heads = 0;
  bool plus_one = false;  // values there are larger by 1, because transformers adds 1 to them when it computes
};

/// The place of the weight that transformers calls `name` in a model with this config.json; nothing where the model
/// type or the name has none.
std::optional<GgufPlace> gguf_place(const Json& config, std::string_view name);

/// The contents of config.json for a GGUF file, in the keys that transformers 4 and 5 read. `files`: where the bytes of
/// each of the model's files begin, of which the first is `header`'s; `where` opens messages. Throws RuntimeFault for
/// an architecture, a key or a scaling of rotary positions that is not known here.
Json config_of_gguf(const GgufHeader& header, std::span<const std::byte* const> files, const std::string& where);

/// The metadata of a GGUF file for a config.json: whole numbers, numbers and texts. Throws RuntimeFault naming the key
/// that GGUF or llama.cpp does not have.
Json gguf_metadata(const Json& config);

/// The divisors of rotary frequencies, one for two elements of a head, that a GGUF file holds as the tensor
/// "rope_freqs.weight" where rope_type is "llama3"; empty elsewhere.
std::vector<float> rope_divisors(const Json& config);

/// Sentences about what llama.cpp computes in another way than transformers does.
std::vector<std::string> gguf_differences(const Json& config);

}  // namespace capstan
