#include "cli/data/tokenizing.hpp"

namespace capstan::cli {

using tokenizer::Id;
using tokenizer::Ids;
using tokenizer::Tokenizer;

Tokenizing::Found::Found(const Json& json)
    : empty(json.at("empty").as_integer()),
      different(json.at("different").as_integer()),
      first_difference(json.at("first_difference").as_string()) {}

Json Tokenizing::Found::json() const {
  Json json = Json::object();
  json["empty"] = empty;
  json["different"] = different;
  json["first_difference"] = first_difference;
  return json;
}

void Tokenizing::Found::add(const Found& later) {
  empty += later.empty;
  different += later.different;
  if (first_difference.empty()) first_difference = later.first_difference;
}

Tokenizing::Tokenizing(const Tokenizer& tokenizer, const DataTokenizeArguments& arguments, TokenSink& to)
    : to_(to), encoder_(tokenizer, [this](std::span<const Id> ids) { take(ids); }) {
  if (arguments.special_tokens) {
    before_.assign(tokenizer.before().begin(), tokenizer.before().end());
    after_.assign(tokenizer.after().begin(), tokenizer.after().end());
  }
  if (arguments.verify) check_.emplace(tokenizer);
}

void Tokenizing::append(std::string_view text) {
  if (text.empty()) return;
  if (!in_document_) to_.append(before_);
  in_document_ = true;
  if (check_) check_->expect(text);
  encoder_.append(text);
}

void Tokenizing::end_document() {
  if (!in_document_) {
    ++empty_;
    return;
  }
  encoder_.finish();
  if (check_) check_->end_document(source);
  to_.append(after_);
  to_.end_document();
  in_document_ = false;
}

void Tokenizing::begin_within(std::string_view context) {
  encoder_.begin_behind(context);
  in_document_ = true;
}

void Tokenizing::end_within() {
  encoder_.finish();
  in_document_ = false;
}

Tokenizing::Found Tokenizing::found() const {
  Found found;
  found.empty = empty_;
  if (!check_) return found;
  found.different = check_->different();
  found.first_difference = check_->first_difference();
  return found;
}

void Tokenizing::take(std::span<const Id> ids) {
  if (check_) check_->take(ids);
  wide_.assign(ids.begin(), ids.end());
  to_.append(wide_);
}

}  // namespace capstan::cli
