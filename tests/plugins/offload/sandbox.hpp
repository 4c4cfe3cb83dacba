#pragma once

#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string>

namespace capstan::test {

/// From now on system call `number` fails with `error` in this process, for calls whose argument `argument` has all
/// of `bits`. For child processes: nothing takes it back.
inline void refuse_call(unsigned number, unsigned error, unsigned argument = 0, unsigned bits = 0) {
  const auto low_half = static_cast<unsigned>(offsetof(seccomp_data, args) + 8 * argument);
  sock_filter filter[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 4),
                          BPF_STMT(BPF_LD | BPF_W | BPF_ABS, low_half),
                          BPF_STMT(BPF_ALU | BPF_AND | BPF_K, bits),
                          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, bits, 0, 1),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{sizeof filter / sizeof *filter, filter};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    throw std::runtime_error(std::string("seccomp: ") + std::strerror(errno));
  }
}

inline void limit(__rlimit_resource what, rlim_t most) {
  const rlimit value{most, most};
  if (setrlimit(what, &value) != 0) throw std::runtime_error(std::string("setrlimit: ") + std::strerror(errno));
}

/// From now on RLIMIT_MEMLOCK holds for this process, root's as well.
inline void lock_at_most(rlim_t bytes) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[2]{};
  if (syscall(SYS_capget, &header, sets) != 0) throw std::runtime_error("capget");
  sets[0].effective &= ~(1u << CAP_IPC_LOCK);
  if (syscall(SYS_capset, &header, sets) != 0) throw std::runtime_error("capset");
  limit(RLIMIT_MEMLOCK, bytes);
}

/// Mounts that this process alone sees, and that end with it. For child processes of root.
inline void private_mounts() {
  if (unshare(CLONE_NEWNS) != 0 || mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
    throw std::runtime_error(std::string("unshare: ") + std::strerror(errno));
  }
}
inline void mount_tmpfs(const std::filesystem::path& folder, const std::string& options) {
  std::filesystem::create_directories(folder);
  if (mount("tmpfs", folder.c_str(), "tmpfs", 0, options.c_str()) != 0) {
    throw std::runtime_error(std::string("mount: ") + std::strerror(errno));
  }
}

}  // namespace capstan::test
