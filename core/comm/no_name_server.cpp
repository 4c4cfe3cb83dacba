#include "core/comm/no_name_server.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <resolv.h>

#include <utility>

namespace capstan {

bool is_numeric_address(const std::string& address) {
  in6_addr unused{};
  return inet_pton(AF_INET, address.c_str(), &unused) == 1 || inet_pton(AF_INET6, address.c_str(), &unused) == 1;
}

NoNameServer::NoNameServer(bool active) {
  // glibc has an `_res` for each thread.
  if (!active || ((_res.options & RES_INIT) == 0 && res_init() != 0)) return;
  before_ = std::exchange(_res.nscount, 0);
}

NoNameServer::~NoNameServer() {
  if (before_ >= 0) _res.nscount = before_;
}

}  // namespace capstan
