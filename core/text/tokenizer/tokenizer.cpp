#include "core/text/tokenizer/tokenizer.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/errors.hpp"
#include "core/text/tokenizer/added_tokens.hpp"
#include "core/text/tokenizer/decoder.hpp"
#include "core/text/tokenizer/model.hpp"
#include "core/text/tokenizer/normalizer.hpp"
#include "core/text/tokenizer/post_processor.hpp"
#include "core/text/tokenizer/pre_tokenizer.hpp"
#include "core/text/tokenizer/tokenizer_files.hpp"
#include "core/text/tokenizer/unicode.hpp"

namespace capstan::tokenizer {
namespace {

namespace fs = std::filesystem;

/// The file of tokens of a folder, or the file itself.
fs::path tokenizer_file(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return path;
  if (const auto name = TokenizerFiles(path).tokens()) return path / *name;
  for (const char* other : {"vocab.json", "vocab.txt", "sentencepiece.bpe.model", "tekken.json"}) {
    if (!fs::exists(path / other, error)) continue;
    throw RuntimeFault(path.string() + ": has " + other +
                       " and not tokenizer.json. Have transformers write it: " + "AutoTokenizer.from_pretrained('" +
                       path.string() + "').save_pretrained('" + path.string() + "').");
  }
  throw RuntimeFault(path.string() + ": has no tokenizer.json, tokenizer.model or *.tiktoken.");
}

}  // namespace

struct Tokenizer::Parts {
  Parts(fs::path from, const Field& root)
      : file(std::move(from)),
        normalizer(root.find("normalizer") ? make_normalizer(root.at("normalizer")) : nullptr),
        pre_tokenizer(root.find("pre_tokenizer")
                          ? make_pre_tokenizer(root.at("pre_tokenizer"), can_take_bytes(root.at("model")))
                          : nullptr),
        model(make_model(root.at("model"), pre_tokenizer && pre_tokenizer->leaves_bytes())),
        added(root, model->vocabulary(), normalizer.get()),
        special(special_tokens(root)),
        decoder(root) {
    const auto decoded = root.find("decoder");
    keeps_every_text = !normalizer && pre_tokenizer && pre_tokenizer->leaves_bytes() && pre_tokenizer->keeps_text() &&
                       decoded && decoded->at("type").text() == "ByteLevel" && !added.takes_space();
    for (const char* member : {"truncation", "padding"}) {
      if (root.find(member)) unused.push_back(member);
    }
  }

  fs::path file;
  std::unique_ptr<Normalizer> normalizer;
  std::unique_ptr<PreTokenizer> pre_tokenizer;
  std::unique_ptr<Model> model;
  AddedTokens added;
  SpecialTokens special;
  Decoder decoder;
  bool keeps_every_text = false;
  std::vector<std::string> unused;
};

Tokenizer::Tokenizer(const fs::path& file_or_folder) {
  const fs::path file = tokenizer_file(file_or_folder);
  const Json json = tokenizer_json(TokenizerFiles(file.parent_path()), file.filename().string());
  parts_ = std::make_unique<Parts>(file, Field(json, file.string()));
}
Tokenizer::Tokenizer(const Json& contents, const fs::path& file)
    : parts_(std::make_unique<Parts>(file, Field(contents, file.string()))) {}

Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;

const fs::path& Tokenizer::file() const { return parts_->file; }
const Ids& Tokenizer::before() const { return parts_->special.before; }
const Ids& Tokenizer::after() const { return parts_->special.after; }
const std::vector<std::string>& Tokenizer::unused_members() const { return parts_->unused; }
bool Tokenizer::is_special(Id id) const { return parts_->added.is_special(id); }

bool Tokenizer::keeps_every_text() const { return parts_->keeps_every_text; }

Id Tokenizer::vocabulary_size() const { return std::max(parts_->model->vocabulary().end(), parts_->added.end()); }

Id Tokenizer::find(std::string_view text) const {
  const Id added = parts_->added.find(text);
  return added != kNoId ? added : parts_->model->vocabulary().find(text);
}

const std::string* Tokenizer::text(Id id) const {
  const std::string* added = parts_->added.text(id);
  return added ? added : parts_->model->vocabulary().text(id);
}

struct Encoder::State {
  explicit State(const Tokenizer::Parts& of) : parts(of), pieces_to_ids(of.model->encoder()) {}

  /// The tokens of a text in which no token of the unchanged text stands. `at_front`: of the whole text.
  void encode_section(std::string_view section, bool at_front, Ids& ids) {
    if (parts.normalizer) {
      normalized = section;
      parts.normalizer->apply(normalized);
      section = normalized;
    }
    in_section.clear();
    parts.added.split(section, true, in_section);
    for (const AddedTokens::Part& part : in_section) {
      if (part.id != kNoId) {
        ids.push_back(part.id);
      } else {
        encode_words({part.text, at_front && part.text.data() == section.data()}, ids);
      }
    }
  }

  void encode_words(const Piece& text, Ids& ids) {
    if (!parts.pre_tokenizer) return pieces_to_ids->encode(text.text, ids);
    pieces.clear();
    parts.pre_tokenizer->split({text}, pieces, texts);
    for (const Piece& piece : pieces) pieces_to_ids->encode(piece.text, ids);
    texts.clear();
  }

  const Tokenizer::Parts& parts;
  std::unique_ptr<PieceEncoder> pieces_to_ids;
  std::vector<AddedTokens::Part> in_text, in_section;
  std::string normalized;
  Pieces pieces;
  PieceTexts texts;
};

Encoder::Encoder(const Tokenizer& tokenizer) : state_(std::make_unique<State>(*tokenizer.parts_)) {}
Encoder::~Encoder() = default;

void Encoder::encode(std::string_view text, Ids& ids) {
  if (const auto at = first_invalid_byte(text)) {
    throw RuntimeFault("the text is not UTF-8 at byte " + std::to_string(*at) + ".");
  }
  state_->in_text.clear();
  state_->parts.added.split(text, false, state_->in_text);
  for (const AddedTokens::Part& part : state_->in_text) {
    if (part.id != kNoId) {
      ids.push_back(part.id);
    } else {
      state_->encode_section(part.text, part.text.data() == text.data(), ids);
    }
  }
}

struct DecodeStream::State {
  State(const Tokenizer& of, Special special_tokens)
      : tokenizer(of), special(special_tokens), steps(of.parts_->decoder.steps()) {}

  void run(std::size_t step, std::string token, std::string& out) {
    if (step == steps.size()) {
      out += token;
      return;
    }
    steps[step]->push(std::move(token), next_of(step, out));
  }
  DecodingStep::Next next_of(std::size_t step, std::string& out) {
    return [this, step, &out](std::string token) { run(step + 1, std::move(token), out); };
  }

  const Tokenizer& tokenizer;
  Special special;
  std::vector<std::unique_ptr<DecodingStep>> steps;
};

DecodeStream::DecodeStream(const Tokenizer& tokenizer, Special special)
    : state_(std::make_unique<State>(tokenizer, special)) {}
DecodeStream::~DecodeStream() = default;

std::string DecodeStream::push(Id id) {
  std::string out;
  const std::string* token = state_->tokenizer.text(id);
  if (token == nullptr || (state_->special == Special::kSkip && state_->tokenizer.is_special(id))) return out;
  state_->run(0, *token, out);
  return out;
}

std::string DecodeStream::finish() {
  std::string out;
  for (std::size_t step = 0; step < state_->steps.size(); ++step) {
    state_->steps[step]->finish(state_->next_of(step, out));
  }
  state_->steps = state_->tokenizer.parts_->decoder.steps();
  return out;
}

}  // namespace capstan::tokenizer
