#include "cli/data/token_record.hpp"

#include <algorithm>

#include "core/errors.hpp"
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

std::optional<TokenRecord> TokenRecord::read(const std::filesystem::path& of) {
  const std::filesystem::path path = record_file(of);
  if (!std::filesystem::is_regular_file(path)) return std::nullopt;
  const Json json = parse_json_text(read_text_file(path), path.string());
  const auto wrong = [&](const std::string& what) {
    return RuntimeFault(path.string() + ": " + what +
                        " is not as 'capstan data' writes it. Make the tokens again, or remove the record.");
  };
  if (!json.is_object()) throw wrong("the record");
  const auto number = [&](const char* key) {
    const Json* value = json.find(key);
    if (value == nullptr || value->is_null()) return std::int64_t{-1};
    if (!value->is_integer()) throw wrong("\"" + std::string(key) + "\"");
    return value->as_integer();
  };
  const auto text = [&](const Json* in, const char* key) {
    const Json* value = in == nullptr ? nullptr : in->find(key);
    if (value == nullptr) return std::string();
    if (!value->is_string()) throw wrong("\"" + std::string(key) + "\"");
    return value->as_string();
  };
  const Json* tokenizer = json.find("tokenizer");
  return TokenRecord{.format = text(&json, "format"),
                     .documents = number("documents"),
                     .tokens = number("tokens"),
                     .largest_token = number("largest_token"),
                     .vocabulary_size = number("vocabulary_size"),
                     .end_token = number("end_token"),
                     .rows = std::max<std::int64_t>(number("rows"), 0),
                     .row_length = std::max<std::int64_t>(number("row_length"), 0),
                     .tokenizer = text(tokenizer, "file"),
                     .tokenizer_sha256 = text(tokenizer, "sha256")};
}

std::optional<TokenRecord> TokenRecord::read_of(const std::string& file, const std::string& format) {
  if (format == "uint16" || format == "uint32") return read(file);
  if (format != "indexed") return std::nullopt;
  if (file.ends_with(".idx")) return read(file);
  return read((file.ends_with(".bin") ? file.substr(0, file.size() - 4) : file) + ".idx");
}

std::int64_t end_of_documents(std::int64_t given, const std::optional<TokenRecord>& record) {
  return given >= 0 ? given : record ? record->end_token : -1;
}

bool TokenRecord::has_same_tokenizer() const {
  return std::filesystem::is_regular_file(tokenizer) && sha256_of_file(tokenizer) == tokenizer_sha256;
}

void TokenRecord::write(const std::filesystem::path& of) const {
  Json json = Json::object();
  json["format"] = format;
  json["documents"] = documents;
  json["tokens"] = tokens;
  json["largest_token"] = largest_token;
  json["vocabulary_size"] = vocabulary_size;
  json["end_token"] = end_token < 0 ? Json() : Json(end_token);
  if (row_length > 0) {
    json["rows"] = rows;
    json["row_length"] = row_length;
  }
  json["tokenizer"]["file"] = tokenizer.string();
  json["tokenizer"]["sha256"] = sha256_of_file(tokenizer);
  replace_file(record_file(of), json.dump(2) + "\n");
}

}  // namespace capstan::cli
