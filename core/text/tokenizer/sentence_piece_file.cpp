#include "core/text/tokenizer/sentence_piece_file.hpp"

#include <cmath>
#include <protozero/pbf_reader.hpp>

#include "core/errors.hpp"
#include "core/text/tokenizer/field.hpp"
#include "core/text/tokenizer/unicode.hpp"

namespace capstan::tokenizer {
namespace {

// Fields of sentencepiece_model.proto, by their numbers.
enum ModelField { kPieces = 1, kTrainer = 2, kNormalizer = 3 };
enum PieceField { kText = 1, kScore = 2, kKind = 3 };
enum TrainerField { kModelType = 3, kSuffixes = 24, kByteFallback = 35, kUnknownId = 40, kBeginId = 41, kEndId = 42 };
enum NormalizerField { kCharacterMap = 2, kDummyPrefix = 3, kTrims = 4, kEscapes = 5 };
enum ModelType { kUnigram = 1, kBpe = 2, kWord = 3, kCharacter = 4 };

using Message = protozero::pbf_reader;
using WireType = protozero::pbf_wire_type;

class Parser {
 public:
  explicit Parser(const std::string& where) : where_(where) {}

  SentencePieceFile parse(std::string_view bytes) {
    Message model(bytes.data(), bytes.size());
    while (model.next()) {
      switch (model.tag()) {
        case kPieces:
          take_piece(part_of(model));
          break;
        case kTrainer:
          take_trainer(part_of(model));
          break;
        case kNormalizer:
          take_normalizer(part_of(model));
          break;
        default:
          model.skip();
      }
    }
    if (file_.pieces.pieces.empty()) fail("it has no pieces, so it is not a model of SentencePiece.");
    check_ids();
    return std::move(file_);
  }

  [[noreturn]] void fail(const std::string& defect) const { throw RuntimeFault(where_ + ": " + defect); }

 private:
  /// protozero takes a field's word for its type.
  void demand(const Message& message, WireType type) const {
    if (!message.has_wire_type(type)) {
      fail("it is damaged, or not a model of SentencePiece: field " + std::to_string(message.tag()) +
           " is of another type than SentencePiece's.");
    }
  }
  Message part_of(Message& message) const {
    demand(message, WireType::length_delimited);
    return message.get_message();
  }
  std::string bytes_of(Message& message) const {
    demand(message, WireType::length_delimited);
    return message.get_string();
  }
  float float_of(Message& message) const {
    demand(message, WireType::fixed32);
    return message.get_float();
  }
  std::int32_t number_of(Message& message) const {
    demand(message, WireType::varint);
    return message.get_int32();
  }

  void take_piece(Message message) {
    SentencePieces::Piece piece;
    while (message.next()) {
      if (message.tag() == kText) {
        piece.text = bytes_of(message);
      } else if (message.tag() == kScore) {
        piece.score = float_of(message);
      } else if (message.tag() == kKind) {
        piece.kind = kind_of(number_of(message));
      } else {
        message.skip();
      }
    }
    const std::string of = "piece " + std::to_string(file_.pieces.pieces.size()) + " ";
    if (piece.text.empty()) fail(of + "has no text.");
    if (first_invalid_byte(piece.text)) fail(of + "is not UTF-8.");
    if (piece.text.size() > Field::kLongestToken) fail(of + "is longer than 2,000 bytes.");
    if (!std::isfinite(piece.score)) fail(of + "has a score that is not a number.");
    if (file_.pieces.pieces.size() > static_cast<std::size_t>(Field::kLargestId)) fail("it has too many pieces.");
    file_.pieces.pieces.push_back(std::move(piece));
  }

  SentencePieces::Kind kind_of(std::int32_t number) const {
    if (number < 1 || number > static_cast<std::int32_t>(SentencePieces::Kind::kByte)) {
      fail("piece " + std::to_string(file_.pieces.pieces.size()) + " is of the kind " + std::to_string(number) +
           ", and SentencePiece has 1 to 6.");
    }
    return static_cast<SentencePieces::Kind>(number);
  }

  void take_trainer(Message message) {
    file_.pieces.has_merges = false;  // the unigram model is the default
    file_.pieces.unknown = 0;
    file_.begin = 1;
    file_.end = 2;
    while (message.next()) {
      switch (message.tag()) {
        case kModelType:
          take_model_type(number_of(message));
          break;
        case kSuffixes:
          if (number_of(message) != 0)
            fail("its spaces stand behind words (treat_whitespace_as_suffix), which is not known here.");
          break;
        case kByteFallback:
          file_.pieces.has_bytes = number_of(message) != 0;
          break;
        case kUnknownId:
          file_.pieces.unknown = number_of(message);
          break;
        case kBeginId:
          file_.begin = number_of(message);
          break;
        case kEndId:
          file_.end = number_of(message);
          break;
        default:
          message.skip();
      }
    }
  }

  void take_model_type(std::int32_t type) {
    if (type == kWord || type == kCharacter) {
      fail(std::string("it is a model of ") + (type == kWord ? "words" : "characters") +
           " (trainer_spec.model_type), and BPE and unigram are read.");
    }
    if (type != kUnigram && type != kBpe) {
      fail("its trainer_spec.model_type is " + std::to_string(type) + ", which SentencePiece does not have.");
    }
    file_.pieces.has_merges = type == kBpe;
  }

  void take_normalizer(Message message) {
    file_.pieces.trims_spaces = true;  // the defaults of normalizer_spec
    while (message.next()) {
      switch (message.tag()) {
        case kCharacterMap:
          file_.pieces.character_map = bytes_of(message);
          break;
        case kDummyPrefix:
          file_.pieces.prefix =
              number_of(message) != 0 ? SentencePieces::Prefix::kFirst : SentencePieces::Prefix::kNone;
          break;
        case kTrims:
          file_.pieces.trims_spaces = number_of(message) != 0;
          break;
        case kEscapes:
          if (number_of(message) == 0) fail("its spaces are not marked (escape_whitespaces), which is not known here.");
          break;
        default:
          message.skip();
      }
    }
  }

  void check_ids() const {
    const auto end = static_cast<std::int64_t>(file_.pieces.pieces.size());
    const auto check = [&](const char* name, std::int64_t id) {
      if (id < end) return;
      fail(std::string("its trainer_spec.") + name + " is " + std::to_string(id) + ", and there are " +
           std::to_string(end) + " pieces.");
    };
    check("unk_id", file_.pieces.unknown);
    check("bos_id", file_.begin);
    check("eos_id", file_.end);
  }

  const std::string& where_;
  SentencePieceFile file_;
};

}  // namespace

SentencePieceFile read_sentence_pieces(std::string_view bytes, const std::string& where) {
  Parser parser(where);
  try {
    return parser.parse(bytes);
  } catch (const protozero::exception& fault) {
    parser.fail(std::string("it is cut off or damaged, or not a model of SentencePiece: ") + fault.what() + ".");
  }
}

}  // namespace capstan::tokenizer
