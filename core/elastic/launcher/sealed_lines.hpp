#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace capstan {

/// The protocol of a connection between two launchers: lines of text, each proven by a secret that both have. It knows
/// bytes, not sockets.
///
/// Either side begins with a greeting, which holds a nonce of its own. From the secret and both nonces follow two keys,
/// one a direction, and each line carries an HMAC-SHA-256 of its number and its text under the key of its direction.
/// So a line is accepted once, in its place, in its direction and in its connection alone: recorded lines are of no use
/// to anybody. The caller proves itself first, by an empty line. Texts are not encrypted.
class SealedLines {
 public:
  enum class Side { kCaller, kListener };
  enum class State {
    kGreeted,      // the other side has not proven itself yet
    kProven,       // it has sent a line under the secret
    kOtherSecret,  // its secret is another one. Nothing is read or sent any more, here and below
    kNotOurs,      // it speaks another protocol, or what it says was changed on the way
    kTooLong       // it has sent more than it may
  };
  /// What a side may send before it has proven itself, and how long a line is at most afterwards.
  static constexpr std::size_t kMostUnproven = std::size_t{64} << 10, kLongest = std::size_t{4} << 20;

  /// `nonce`: random, of this connection alone, 32 hexadecimal digits.
  SealedLines(std::string secret, Side side, const std::string& nonce);

  State state() const { return state_; }
  bool is_broken() const { return state_ > State::kProven; }

  /// Has a line sent. Lines without a line break only; an empty one is a sign of life.
  void send(std::string_view text);
  /// Bytes that are to be sent, from the front; sent() takes those that were.
  std::string_view outgoing() const { return std::string_view(out_).substr(sent_); }
  void sent(std::size_t bytes);

  /// Bytes that the other side has sent.
  void take(std::string_view bytes);
  /// The next proven line; nothing where none is whole. What is not proven breaks the connection.
  std::optional<std::string> next();

 private:
  void read_greeting(std::string_view line);
  void read_sealed(std::string_view line, std::optional<std::string>& text);
  void seal(std::string_view text);
  void seal_early_lines();
  void end(State state);

  const std::string secret_;
  const Side side_;
  const std::string nonce_;
  State state_ = State::kGreeted;
  std::string own_key_, other_key_;                  // empty until the other side has greeted
  std::uint64_t own_number_ = 0, other_number_ = 0;  // of the next line
  std::string early_;                                // lines that wait: seal_early_lines()
  bool seals_ = false;                               // they wait no more
  std::string in_, out_;
  std::size_t begin_ = 0, seen_ = 0;  // of in_: where the next line begins, and up to where there is no line break
  std::size_t sent_ = 0;              // of out_
  std::size_t unproven_ = 0;          // bytes taken before the other side has proven itself
};

}  // namespace capstan
