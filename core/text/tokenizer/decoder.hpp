#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/text/tokenizer/field.hpp"

namespace capstan::tokenizer {

/// One step of decoding, for one text: takes the texts of its tokens in order, and hands rewritten ones on.
class DecodingStep {
 public:
  using Next = std::function<void(std::string)>;

  virtual ~DecodingStep() = default;
  virtual void push(std::string token, const Next& next) = 0;
  /// The end of the text: hands on what was held back.
  virtual void finish(const Next& /*next*/) {}
};

/// How the texts of tokens become a text: the section "decoder" of tokenizer.json. Several threads may use one.
class Decoder {
 public:
  /// Throws RuntimeFault naming the kind and its place where it is not supported. Without a section tokens are joined
  /// by spaces.
  explicit Decoder(const Field& file);

  /// New steps, in order, for one text. Every text that the last one hands on is whole characters of UTF-8.
  std::vector<std::unique_ptr<DecodingStep>> steps() const;

 private:
  using Make = std::function<std::unique_ptr<DecodingStep>()>;

  void add(const Field& section);

  std::vector<Make> makers_;
  bool joined_ = false;  // whether all that comes is parts of one token, as behind Fuse
};

}  // namespace capstan::tokenizer
