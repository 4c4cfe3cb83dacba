/* A name server that does not answer, for whoever is started with LD_PRELOAD of this library. The file that
   CAPSTAN_TEST_NAMES_ASKED names receives a line for each name of an address that the server would be asked for. The
   process whose CAPSTAN_ELASTIC_MEMBER is CAPSTAN_TEST_NAMES_MEMBER waits 300 ms at each address, asked or not, and
   writes a line to the file CAPSTAN_TEST_NAMES_SLOW before that. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <resolv.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef int (*lookup)(const struct sockaddr*, socklen_t, char*, socklen_t, char*, socklen_t, int);

static void add_line(const char* file) {
  const int descriptor = open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (write(descriptor, "name\n", 5) != 5) abort();
  close(descriptor);
}

int getnameinfo(const struct sockaddr* address, socklen_t length, char* host, socklen_t host_length, char* service,
                socklen_t service_length, int flags) {
  const char *asked = getenv("CAPSTAN_TEST_NAMES_ASKED"), *slow = getenv("CAPSTAN_TEST_NAMES_SLOW"),
             *slow_member = getenv("CAPSTAN_TEST_NAMES_MEMBER"), *member = getenv("CAPSTAN_ELASTIC_MEMBER");
  /* /etc/hosts has the IPv4 addresses of this host. */
  const int by_server = !(flags & NI_NUMERICHOST) && address->sa_family == AF_INET6;
  if (asked && by_server && _res.nscount > 0) add_line(asked);
  if (slow && by_server && member && strcmp(slow_member, member) == 0) {
    add_line(slow);
    const struct timespec time = {0, 300 * 1000 * 1000};
    nanosleep(&time, NULL);
  }
  const lookup real = (lookup)dlsym(RTLD_NEXT, "getnameinfo");
  return real(address, length, host, host_length, service, service_length, flags | NI_NUMERICHOST);
}
