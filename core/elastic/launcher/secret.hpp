#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/comm/port_file.hpp"
#include "core/elastic/launcher/address.hpp"

namespace capstan {

/// The secret by which the launchers of a run prove to each other that they belong together. It is given to the
/// launchers of several hosts. Where all of them are on one host, the one that leads makes it, and shows it to other
/// processes of its user by a file (PortFile) in its folder.
class RendezvousSecret {
 public:
  /// Of launchers that are called at these addresses. Reads `file` unless it is empty, or CAPSTAN_RDZV_SECRET, and
  /// removes that variable from the environment. Throws ConfigError where the secret is not fit, or is missing though
  /// other hosts may call.
  static RendezvousSecret of(const std::vector<LauncherAddress>& rdzv, const std::string& file);

  bool is_given() const { return given_; }
  /// The secret that callers of this launcher must have.
  const std::string& own() const { return secret_; }
  /// The secret of the launcher at this port.
  std::string to_call(int port) const;
  /// Takes the secret of the run that this launcher has joined.
  void adopt(std::string secret) { secret_ = std::move(secret); }
  /// Shows a secret that was not given in the folder of the launcher, which is called at this port.
  void show(const std::filesystem::path& folder, int port);

 private:
  RendezvousSecret(bool given, std::string secret) : given_(given), secret_(std::move(secret)) {}

  bool given_;
  std::string secret_;
  std::unique_ptr<PortFile> shown_;
};

/// The secret that a file holds. Throws ConfigError where there is none, it is too short, or others may read it.
std::string secret_of_file(const std::filesystem::path& file);

}  // namespace capstan
