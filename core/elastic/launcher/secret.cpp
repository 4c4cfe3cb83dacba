#include "core/elastic/launcher/secret.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <optional>
#include <system_error>
#include <utility>

#include "core/elastic/launcher/link.hpp"
#include "core/elastic/world.hpp"
#include "core/errors.hpp"

namespace capstan {
namespace {

constexpr const char* kVariable = "CAPSTAN_RDZV_SECRET";
/// The file in a launcher's folder.
constexpr const char* kShown = "rendezvous";
/// 32 characters of base64 are 24 bytes. A file that is much longer is another one.
constexpr std::size_t kShortest = 32, kLongest = 4096;

constexpr const char* kHowToMake = "(umask 077; head -c 32 /dev/urandom | base64 > rdzv.secret)";

std::string trimmed(std::string text) {
  constexpr const char* kSpace = " \t\r\n";
  text.erase(0, std::min(text.find_first_not_of(kSpace), text.size()));
  text.erase(text.find_last_not_of(kSpace) + 1);
  return text;
}

void check_length(const std::string& secret, const std::string& where) {
  if (secret.size() >= kShortest) return;
  throw ConfigError("launch: " + where + ": " +
                    (secret.empty() ? std::string("is empty, and a secret has at least ")
                                    : "has " + std::to_string(secret.size()) + " characters, and a secret at least ") +
                    std::to_string(kShortest) + ". This makes one: " + kHowToMake);
}

std::optional<std::string> secret_of_environment() {
  const char* value = std::getenv(kVariable);
  if (value == nullptr) return std::nullopt;
  std::string secret = trimmed(value);
  unsetenv(kVariable);  // the processes that are started do not need it
  check_length(secret, kVariable);
  return secret;
}

void check_places(const std::vector<LauncherAddress>& addresses) {
  std::vector<std::pair<std::string, std::string>> taken;  // a place, and the address that stands for it
  for (const LauncherAddress& address : addresses) {
    const std::vector<std::string> places = places_of(address);
    for (const std::string& place : places) {
      const auto same = std::find_if(taken.begin(), taken.end(), [&](const auto& one) { return one.first == place; });
      if (same == taken.end()) continue;
      throw ConfigError("launch: --rdzv: '" + same->second + "' and '" + address.text() + "' are one place, " + place +
                        ". Name each launcher once.");
    }
    for (const std::string& place : places) taken.emplace_back(place, address.text());
  }
}

}  // namespace

std::string secret_of_file(const std::filesystem::path& file) {
  const std::string where = "--rdzv-secret-file '" + file.string() + "'";
  const auto fail = [&](const std::string& what) { throw ConfigError("launch: " + where + ": " + what); };
  // A pipe that nobody writes to would be waited for.
  const int descriptor = open(file.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) fail("cannot be read: " + std::generic_category().message(errno) + ".");
  struct stat facts {};
  std::array<char, kLongest + 1> text{};
  const bool known = fstat(descriptor, &facts) == 0 && S_ISREG(facts.st_mode);
  const ssize_t count = known ? read(descriptor, text.data(), text.size()) : 0;
  close(descriptor);
  if (!known) fail("is not a file.");
  if ((facts.st_mode & 077) != 0) {
    fail("others than its owner may read or change it. Call chmod 600 " + file.string() +
         ", and if they may have read it, make another one: " + kHowToMake);
  }
  if (facts.st_uid != geteuid() && facts.st_uid != 0) fail("belongs to another user, who knows it.");
  if (count < 0) fail("cannot be read.");
  if (count > static_cast<ssize_t>(kLongest))
    fail("is longer than " + std::to_string(kLongest) + " bytes: not a secret.");
  std::string secret = trimmed({text.data(), static_cast<std::size_t>(count)});
  check_length(secret, where);
  return secret;
}

RendezvousSecret RendezvousSecret::of(const std::vector<LauncherAddress>& rdzv, const std::string& file) {
  std::optional<std::string> secret = secret_of_environment();
  if (!file.empty()) {
    std::string of_file = secret_of_file(file);
    if (secret && *secret != of_file) {
      throw ConfigError(std::string("launch: --rdzv-secret-file and ") + kVariable + " hold two secrets. Give one.");
    }
    secret = std::move(of_file);
  }
  check_places(rdzv);
  if (secret) return {true, std::move(*secret)};
  if (are_loopback(rdzv)) return {false, random_secret()};
  throw ConfigError(std::string("launch: --rdzv with other hosts than this one needs a secret, which all launchers and "
                                "--status share. This makes one: ") +
                    kHowToMake + ". Copy it to each host, and give --rdzv-secret-file rdzv.secret, or its text as " +
                    kVariable + ".");
}

std::string RendezvousSecret::to_call(int port) const {
  if (given_) return secret_;
  std::error_code end_of_list;
  std::filesystem::directory_iterator entry(WorldFolder::place_in_memory(), end_of_list), end;
  for (; !end_of_list && entry != end; entry.increment(end_of_list)) {
    if (WorldFolder::launcher_of(entry->path()) == 0) continue;
    try {
      // It counts while the launcher that wrote it lives.
      const auto shown = PortFile(entry->path() / kShown).peek();
      if (shown && shown->port == port) return shown->secret;
    } catch (const RuntimeFault&) {
      // A folder of somebody else.
    }
  }
  return secret_;
}

void RendezvousSecret::show(const std::filesystem::path& folder, int port) {
  const PortEntry entry{port, secret_};
  if (given_ || (shown_ && shown_->peek() == entry)) return;
  shown_ = std::make_unique<PortFile>(folder / kShown);
  shown_->write(entry);
}

}  // namespace capstan
