#pragma once

#include <string>

namespace capstan {

/// Whether `address` is an IP address, which is reached without a name server.
bool is_numeric_address(const std::string& address);

/// While one that is `active` lives, the thread that made it asks no name server. c10d looks up the name of each
/// address that it connects to, for its log, and waits 5 s for each answer that is lost. [one thread]
class NoNameServer {
 public:
  explicit NoNameServer(bool active);
  ~NoNameServer();
  NoNameServer(const NoNameServer&) = delete;

 private:
  int before_ = -1;  // name servers; -1: not active
};

}  // namespace capstan
