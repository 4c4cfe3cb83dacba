// What launchers of elastic launches read of each other, for libFuzzer and for launcher_messages_replay_test.
//
// The first byte picks the reader: 'b' bytes of somebody who has not the secret, 'o' a connection whose lines are lost,
// repeated and changed on the way, 'w' a world, 'r' the report of a host, 'h' the hashes of a launch, 'v' the votes of
// a launcher, 'p' a proposal, 'k' which host a launcher is of. Each returns or throws a std::exception, and keeps what
// is checked below; anything else is a bug. scripts/fuzz looks for inputs.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/elastic/launcher/host.hpp"
#include "core/elastic/launcher/identity.hpp"
#include "core/elastic/launcher/membership.hpp"
#include "core/elastic/launcher/sealed_lines.hpp"
#include "core/elastic/world.hpp"

namespace capstan {
namespace {

using Side = SealedLines::Side;

const std::string kSecret(44, 's');

void require(bool condition) {
  if (!condition) std::abort();
}

/// In pieces whose lengths follow from the bytes.
void take_in_pieces(SealedLines& lines, std::string_view bytes, std::vector<std::string>& texts) {
  while (!bytes.empty()) {
    const std::size_t count = std::min<std::size_t>(bytes.size(), 1 + static_cast<unsigned char>(bytes.front()));
    lines.take(bytes.substr(0, count));
    bytes.remove_prefix(count);
    while (auto text = lines.next()) texts.push_back(*text);
  }
}

void read_of_a_stranger(std::string_view bytes) {
  for (const Side side : {Side::kCaller, Side::kListener}) {
    SealedLines lines(kSecret, side, std::string(32, 'a'));
    lines.send("not for strangers");
    std::vector<std::string> texts;
    take_in_pieces(lines, bytes, texts);
    require(texts.empty() && lines.state() != SealedLines::State::kProven);
    const std::string_view said = lines.outgoing();
    require(side == Side::kCaller || said.find("strangers") == std::string_view::npos);
  }
}

/// Two bytes a line: what becomes of it, and where.
void read_of_a_disturbed_connection(std::string_view script) {
  SealedLines caller(kSecret, Side::kCaller, std::string(32, 'a')),
      listener(kSecret, Side::kListener, std::string(32, 'b'));
  caller.take(listener.outgoing());
  require(!caller.next());
  std::vector<std::string> sent{""}, heard;
  std::string before;
  for (; script.size() >= 2; script.remove_prefix(2)) {
    caller.send(sent.emplace_back("text " + std::to_string(sent.size())));
    std::string bytes(caller.outgoing());
    caller.sent(bytes.size());
    const unsigned deed = static_cast<unsigned char>(script[0]), detail = static_cast<unsigned char>(script[1]);
    const std::size_t place = detail % bytes.size();
    const std::string as_sent = bytes;
    switch (deed % 8) {
      case 0:
        bytes.clear();
        break;
      case 1:
        bytes += bytes;
        break;
      case 2:
        bytes = before + bytes;
        break;
      case 3:
        bytes[place] = static_cast<char>(static_cast<unsigned char>(bytes[place]) ^ (1U << detail % 8));
        break;
      case 4:
        bytes.insert(place, 1, script[1]);
        break;
      default:
        break;
    }
    before = as_sent;
    take_in_pieces(listener, bytes, heard);
  }
  // A beginning of what was sent, in its order, whatever came between.
  require(heard.size() <= sent.size());
  for (std::size_t line = 0; line < heard.size(); ++line) require(heard[line] == sent[line]);
}

void read_world(std::string_view text) {
  const World world = World::of(Json::parse(text));
  require(world.processes.empty() || world.processes.size() == world.members.size());
  require(!world.spans_hosts() || world.hosts.size() == world.members.size());
  require(World::of(Json::parse(world.json().dump())).json() == world.json());
}

void read_report(std::string_view text) {
  const HostReport report = HostReport::of(Json::parse(text));
  require(HostReport::of(report.json()) == report);
  for (const HostReport::Process& one : report.processes) require(one.number >= 0 && one.number <= 1'000'000'000);
}

void read_hashes(std::string_view text) {
  const Json ours = launch_hashes("program 1\nfolder /home\nword train\nconfiguration {}", kSecret);
  require(!differing_kinds(ours, Json::parse(text)).empty());  // nobody finds the hashes
}

/// A launcher that takes up what another one sends stays in order, and its terms do not overflow.
void read_votes(std::string_view text) {
  const VoteRecord votes = VoteRecord::of(Json::parse(text));
  require(VoteRecord::of(Json::parse(votes.json().dump())) == votes);
  for (const bool searches : {false, true}) {
    Membership own({0, 1}, {}, {});
    own.begin();
    if (searches) own.search(1);
    own.meet({1, 2}, votes);
    if (own.is_to_lead(1000)) own.lead();
    if (own.role() == Membership::Role::kLeads) own.propose();
    require(own.record().last_term() >= 0);
    std::int64_t last = own.record().decided.term;
    for (const HostsDecision& one : own.record().accepted) require(one.term > std::exchange(last, one.term));
  }
}

void read_proposal(std::string_view text) {
  const HostsProposal proposal = HostsProposal::of(Json::parse(text));
  Membership own({2, 78}, {}, {});
  if (!own.accept(proposal)) return;
  require(own.role() == Membership::Role::kFollows && own.record().last_term() == proposal.decision.term);
  own.learn(proposal.decision.term);
  require(own.record().decided == proposal.decision && own.record().accepted.empty());
}

void read_host(std::string_view text) {
  const HostId host = host_id_of(Json::parse(text));
  require(host.number >= -1 && host.number <= 1'000'000'000 && host.key >= 0);
}

void read(std::string_view input) {
  const std::string_view rest = input.substr(1);
  switch (input.front()) {
    case 'b':
      return read_of_a_stranger(rest);
    case 'o':
      return read_of_a_disturbed_connection(rest);
    case 'w':
      return read_world(rest);
    case 'r':
      return read_report(rest);
    case 'h':
      return read_hashes(rest);
    case 'v':
      return read_votes(rest);
    case 'p':
      return read_proposal(rest);
    case 'k':
      return read_host(rest);
    default:
      return;
  }
}

}  // namespace
}  // namespace capstan

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  try {
    capstan::read({reinterpret_cast<const char*>(data), size});
  } catch (const std::exception&) {
  }
  return 0;
}
