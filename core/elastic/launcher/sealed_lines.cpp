#include "core/elastic/launcher/sealed_lines.hpp"

#include <utility>

#include "core/hmac.hpp"

namespace capstan {
namespace {

/// "capstan-launch 1 NONCE". Another protocol has another number.
constexpr std::string_view kGreeting = "capstan-launch 1 ";
/// The one line that nobody can prove: from a listener to a caller that has another secret.
constexpr std::string_view kOtherSecretLine = "another secret";
constexpr std::size_t kNonce = 32, kSeal = 64;

bool is_nonce(std::string_view text) {
  return text.size() == kNonce && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string seal_of(const std::string& key, std::uint64_t number, std::string_view text) {
  return hmac_sha256(key, std::to_string(number) + " " + std::string(text));
}

}  // namespace

SealedLines::SealedLines(std::string secret, Side side, const std::string& nonce)
    : secret_(std::move(secret)), side_(side), nonce_(nonce), out_(std::string(kGreeting) + nonce + "\n") {}

void SealedLines::end(State state) {
  state_ = state;
  in_.clear();
  early_.clear();
  begin_ = seen_ = 0;
  if (state == State::kOtherSecret && side_ == Side::kListener) out_ += std::string(kOtherSecretLine) + "\n";
}

void SealedLines::send(std::string_view text) {
  if (is_broken()) return;
  if (seals_) return seal(text);
  early_ += text;
  early_ += "\n";
}

void SealedLines::seal(std::string_view text) {
  out_ += seal_of(own_key_, own_number_++, text) + " ";
  out_ += text;
  out_ += "\n";
}

/// A caller may once the other side has greeted. A listener tells strangers nothing under its secret.
void SealedLines::seal_early_lines() {
  seals_ = true;
  const std::string early = std::exchange(early_, "");
  for (std::size_t begin = 0; begin < early.size();) {
    const std::size_t end_of_line = early.find('\n', begin);
    seal(std::string_view(early).substr(begin, end_of_line - begin));
    begin = end_of_line + 1;
  }
}

void SealedLines::sent(std::size_t bytes) {
  sent_ += bytes;
  if (sent_ < out_.size() && sent_ < kMostUnproven) return;
  out_.erase(0, sent_);
  sent_ = 0;
}

void SealedLines::take(std::string_view bytes) {
  if (is_broken()) return;
  in_ += bytes;
  if (state_ == State::kGreeted && (unproven_ += bytes.size()) > kMostUnproven) end(State::kTooLong);
}

std::optional<std::string> SealedLines::next() {
  std::optional<std::string> text;
  while (!is_broken() && !text) {
    const std::size_t end_of_line = in_.find('\n', seen_);
    if (end_of_line == std::string::npos) {
      in_.erase(0, begin_);
      begin_ = 0;
      seen_ = in_.size();
      if (in_.size() > kLongest) end(State::kTooLong);
      break;
    }
    const std::string line = in_.substr(begin_, end_of_line - begin_);
    begin_ = seen_ = end_of_line + 1;
    if (line.size() > kLongest) {
      end(State::kTooLong);
    } else if (other_key_.empty()) {
      read_greeting(line);
    } else {
      read_sealed(line, text);
    }
  }
  return text;
}

void SealedLines::read_greeting(std::string_view line) {
  if (!line.starts_with(kGreeting) || !is_nonce(line.substr(kGreeting.size()))) return end(State::kNotOurs);
  const std::string other(line.substr(kGreeting.size()));
  const bool calls = side_ == Side::kCaller;
  const std::string nonces = calls ? nonce_ + " " + other : other + " " + nonce_;
  const std::string caller = hmac_sha256(secret_, "capstan launch, from the caller " + nonces),
                    listener = hmac_sha256(secret_, "capstan launch, from the listener " + nonces);
  own_key_ = calls ? caller : listener;
  other_key_ = calls ? listener : caller;
  if (!calls) return;
  seal("");
  seal_early_lines();
}

void SealedLines::read_sealed(std::string_view line, std::optional<std::string>& text) {
  const bool is_first = state_ == State::kGreeted;
  if (is_first && side_ == Side::kCaller && line == kOtherSecretLine) return end(State::kOtherSecret);
  const bool has_form = line.size() > kSeal && line[kSeal] == ' ';
  if (has_form) {
    std::string found(line.substr(kSeal + 1));
    if (equal_secretly(line.substr(0, kSeal), seal_of(other_key_, other_number_, found))) {
      ++other_number_;
      state_ = State::kProven;
      if (!seals_) seal_early_lines();
      text = std::move(found);
      return;
    }
  }
  end(has_form && is_first ? State::kOtherSecret : State::kNotOurs);
}

}  // namespace capstan
