#include "core/elastic/launcher/sealed_lines.hpp"

#include <gmock/gmock.h>

#include <sstream>
#include <string>
#include <vector>

namespace capstan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using Side = SealedLines::Side;
using State = SealedLines::State;

const std::string kSecret(44, 's');
const std::string kSealed(64, 'a');  // as long as a seal

std::string nonce(char letter) { return std::string(32, letter); }

/// All bytes that are to be sent.
std::string said_by(SealedLines& side) {
  const std::string bytes(side.outgoing());
  side.sent(bytes.size());
  return bytes;
}

std::vector<std::string> lines_of(const std::string& bytes) {
  std::vector<std::string> lines;
  std::istringstream in(bytes);
  for (std::string line; std::getline(in, line);) lines.push_back(line + "\n");
  return lines;
}

std::vector<std::string> heard_by(SealedLines& side) {
  std::vector<std::string> texts;
  while (auto text = side.next()) texts.push_back(*text);
  return texts;
}

std::vector<std::string> tell(SealedLines& side, const std::string& bytes) {
  side.take(bytes);
  return heard_by(side);
}

/// A caller and a listener that have greeted each other; the caller has proven itself.
struct Connected {
  explicit Connected(const std::string& listeners_secret = kSecret, char nonces = 'a')
      : caller(kSecret, Side::kCaller, nonce(nonces)),
        listener(listeners_secret, Side::kListener, nonce(static_cast<char>(nonces + 1))) {
    greeting = said_by(caller);
    tell(caller, said_by(listener));
    tell(listener, greeting + said_by(caller));
  }
  SealedLines caller, listener;
  std::string greeting;
};

TEST(SealedLines, CarryTextsOfBothSidesInTheirOrder) {
  SealedLines caller(kSecret, Side::kCaller, nonce('a')), listener(kSecret, Side::kListener, nonce('b'));
  caller.send("first");
  listener.send("welcome");
  std::vector<std::string> by_caller, by_listener;
  for (int round = 0; round < 3; ++round) {
    // A byte at a time, as a slow network has it.
    for (const char byte : said_by(caller)) {
      for (const auto& text : tell(listener, std::string(1, byte))) by_listener.push_back(text);
    }
    for (const auto& text : tell(caller, said_by(listener))) by_caller.push_back(text);
    if (round == 1) caller.send("second");
  }
  EXPECT_THAT(by_listener, ElementsAre("", "first", "second"));
  EXPECT_THAT(by_caller, ElementsAre("welcome"));
  EXPECT_EQ(caller.state(), State::kProven);
  EXPECT_EQ(listener.state(), State::kProven);
}

TEST(SealedLines, TellBothSidesThatTheirSecretsDiffer) {
  Connected pair(std::string(44, 't'));
  EXPECT_EQ(pair.listener.state(), State::kOtherSecret);
  EXPECT_EQ(said_by(pair.listener), "another secret\n");
  pair.caller.take("another secret\n");
  EXPECT_THAT(heard_by(pair.caller), IsEmpty());
  EXPECT_EQ(pair.caller.state(), State::kOtherSecret);
  pair.listener.send("text");
  EXPECT_EQ(said_by(pair.listener), "");
}

TEST(SealedLines, TellNobodyAnythingBeforeItHasProvenItself) {
  SealedLines listener(kSecret, Side::kListener, nonce('b'));
  listener.send("the port of the ranks");
  EXPECT_EQ(said_by(listener), "capstan-launch 1 " + nonce('b') + "\n");
  tell(listener, "capstan-launch 1 " + nonce('a') + "\n");
  EXPECT_EQ(said_by(listener), "");
}

TEST(SealedLines, AreOfNoUseInAnotherConnection) {
  SealedLines caller(kSecret, Side::kCaller, nonce('a')), listener(kSecret, Side::kListener, nonce('b'));
  caller.send("start 5");
  tell(caller, said_by(listener));
  const std::string recorded = said_by(caller);
  ASSERT_THAT(tell(listener, recorded), ElementsAre("", "start 5"));
  SealedLines again(kSecret, Side::kListener, nonce('c'));
  EXPECT_THAT(tell(again, recorded), IsEmpty());
  EXPECT_EQ(again.state(), State::kOtherSecret);
}

TEST(SealedLines, AreAcceptedOnceInTheirOrderAndNoneIsLeftOut) {
  for (const std::vector<int>& order : {std::vector<int>{0, 0}, {1}, {1, 0}, {0, 2}}) {
    Connected pair;
    for (const char* text : {"a", "b", "c"}) pair.caller.send(text);
    const std::vector<std::string> lines = lines_of(said_by(pair.caller));
    ASSERT_EQ(lines.size(), 3U);
    std::vector<std::string> heard;
    for (const int line : order) {
      for (const auto& text : tell(pair.listener, lines[static_cast<std::size_t>(line)])) heard.push_back(text);
    }
    EXPECT_EQ(heard, order.front() == 0 ? std::vector<std::string>{"a"} : std::vector<std::string>{});
    EXPECT_EQ(pair.listener.state(), State::kNotOurs);
  }
}

TEST(SealedLines, AreNotAcceptedWhereAnyBitWasChanged) {
  Connected made;
  made.caller.send(R"({"ended": 3})");
  const std::string line = said_by(made.caller);
  for (std::size_t bit = 0; bit < (line.size() - 1) * 8; ++bit) {
    Connected pair;
    std::string changed = line;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << bit % 8));
    EXPECT_THAT(tell(pair.listener, changed), IsEmpty()) << "bit " << bit;
    EXPECT_TRUE(pair.listener.is_broken()) << "bit " << bit;
  }
}

TEST(SealedLines, AreNotAcceptedFromTheirOwnSide) {
  Connected pair;
  pair.caller.send("mine");
  pair.listener.send("yours");
  EXPECT_THAT(tell(pair.caller, said_by(pair.caller)), IsEmpty());
  EXPECT_TRUE(pair.caller.is_broken());
  EXPECT_THAT(tell(pair.listener, said_by(pair.listener)), IsEmpty());
  EXPECT_TRUE(pair.listener.is_broken());
  // A listener that only sends back all that it gets does not prove itself.
  SealedLines caller(kSecret, Side::kCaller, nonce('a'));
  caller.send("hello");
  for (int round = 0; round < 2; ++round) EXPECT_THAT(tell(caller, said_by(caller)), IsEmpty());
  EXPECT_TRUE(caller.is_broken());
}

TEST(SealedLines, EndWhereAnotherProtocolIsSpoken) {
  for (const char* text :
       {"GET / HTTP/1.1\n", "\n", "capstan-launch 2 00000000000000000000000000000000\n", "capstan-launch 1 0000\n",
        R"({"hello": "Capstan"})"
        "\n"}) {
    SealedLines listener(kSecret, Side::kListener, nonce('b'));
    EXPECT_THAT(tell(listener, text), IsEmpty());
    EXPECT_EQ(listener.state(), State::kNotOurs) << text;
    EXPECT_THAT(said_by(listener), StartsWith("capstan-launch 1 "));
  }
}

TEST(SealedLines, TakeNoMoreOfAStrangerThan64Kilobytes) {
  for (const bool in_lines : {false, true}) {
    SealedLines listener(kSecret, Side::kListener, nonce('b'));
    std::size_t taken = 0;
    for (; !listener.is_broken() && taken < 10 * SealedLines::kMostUnproven; taken += 1000) {
      listener.take(std::string(999, 'x') + (in_lines && taken > 0 ? "\n" : "x"));
      if (!in_lines) heard_by(listener);
    }
    EXPECT_EQ(listener.state(), State::kTooLong);
    EXPECT_LE(taken, SealedLines::kMostUnproven + 1000);
  }
}

TEST(SealedLines, AreOf4MebibytesAtMost) {
  Connected pair;
  pair.caller.send(std::string(SealedLines::kLongest - 65, 'x'));
  EXPECT_EQ(tell(pair.listener, said_by(pair.caller)).size(), 1U);
  pair.caller.send(std::string(SealedLines::kLongest - 64, 'x'));
  EXPECT_THAT(tell(pair.listener, said_by(pair.caller)), IsEmpty());
  EXPECT_EQ(pair.listener.state(), State::kTooLong);
  Connected other;
  for (int part = 0; part < 9 && !other.listener.is_broken(); ++part) {
    EXPECT_THAT(tell(other.listener, std::string(SealedLines::kLongest / 8, 'x')), IsEmpty());
  }
  EXPECT_EQ(other.listener.state(), State::kTooLong);
}

}  // namespace
}  // namespace capstan
