#include "core/elastic/launcher/identity.hpp"

#include <algorithm>
#include <map>
#include <sstream>
#include <vector>

#include "core/hmac.hpp"

namespace capstan {
namespace {

constexpr const char *kVersion = "the version of Capstan or LibTorch", *kBuild = "the build of Capstan",
                     *kCommand = "the command line", *kConfiguration = "the configuration";

}  // namespace

Json launch_hashes(const std::string& launched, const std::string& key) {
  constexpr const char* kLastBegins = "\nconfiguration ";
  const std::size_t begin = std::min(launched.find(kLastBegins), launched.size());
  std::map<std::string, std::string> texts;
  texts[kConfiguration] = launched.substr(begin);
  std::istringstream lines(launched.substr(0, begin));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("folder ")) continue;
    const char* kind = line.starts_with("program ") ? kBuild : line.starts_with("word ") ? kCommand : kVersion;
    texts[kind] += line + "\n";
  }
  Json hashes = Json::object();
  for (const char* kind : {kVersion, kBuild, kCommand, kConfiguration}) {
    hashes[kind] = hmac_sha256(key, std::string(kind) + "\n" + texts[kind]);
  }
  return hashes;
}

std::string differing_kinds(const Json& ours, const Json& theirs) {
  std::vector<std::string> kinds;
  for (const auto& [kind, hash] : ours.as_object()) {
    if (theirs.at(kind).as_string() != hash.as_string()) kinds.push_back(kind);
  }
  std::string text;
  for (std::size_t k = 0; k < kinds.size(); ++k) {
    text += (k == 0 ? "" : k + 1 == kinds.size() ? " and " : ", ") + kinds[k];
  }
  return text.empty() ? "" : text + (kinds.size() == 1 ? " differs" : " differ");
}

HostId host_id_of(const Json& hello) {
  HostId host = checked({hello.at("host").as_integer(), hello.at("key").as_integer()});
  host.number = std::max<std::int64_t>(host.number, -1);
  return host;
}

}  // namespace capstan
