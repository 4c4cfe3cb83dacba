#include "cli/data/token_record.hpp"

#include "core/output_path.hpp"
#include "core/registry/file_hash.hpp"
#include "core/text/json.hpp"
#include "core/text/text_file.hpp"

namespace capstan::cli {

std::filesystem::path record_file(const std::filesystem::path& of) { return of.string() + ".json"; }

std::string recorded_format(const std::filesystem::path& of) {
  const std::filesystem::path path = record_file(of);
  if (!std::filesystem::is_regular_file(path)) return "";
  const Json record = parse_json_text(read_text_file(path), path.string());
  const Json* format = record.is_object() ? record.find("format") : nullptr;
  return format != nullptr && format->is_string() ? format->as_string() : "";
}

void TokenRecord::write(const std::filesystem::path& of) const {
  Json json = Json::object();
  json["format"] = format;
  json["documents"] = documents;
  json["tokens"] = tokens;
  json["largest_token"] = largest_token;
  json["vocabulary_size"] = vocabulary_size;
  json["end_token"] = end_token < 0 ? Json() : Json(end_token);
  json["tokenizer"]["file"] = tokenizer.string();
  json["tokenizer"]["sha256"] = sha256_of_file(tokenizer);
  replace_file(record_file(of), json.dump(2) + "\n");
}

}  // namespace capstan::cli
