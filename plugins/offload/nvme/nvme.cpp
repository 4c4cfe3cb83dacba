#include <sys/resource.h>

#include <cstring>
#include <functional>
#include <set>
#include <string>

#include "capstan/sdk/offload.hpp"
#include "swap_file.hpp"
#include "transfers.hpp"

namespace capstan::offload {
namespace {

constexpr unsigned kDepth = 256;
constexpr std::uint64_t kMostAhead = 256 << 20;

/// A JSON string.
std::string quoted(const std::string& text) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20) {
      out += std::string("\\u00") + kDigits[byte >> 4] + kDigits[byte & 15];
    } else {
      if (c == '"' || c == '\\') out += '\\';
      out += c;
    }
  }
  return out + '"';
}

unsigned depth_asked_for(const sdk::Params& params) {
  const auto depth = static_cast<unsigned>(params.integer("queue_depth"));
  return depth == 0 ? kDepth : depth;
}

/// The engine that the configuration names, or the first that the kernel allows.
std::unique_ptr<Ring> chosen_ring(const sdk::Host& host, const sdk::Params& params, int file) {
  const unsigned depth = depth_asked_for(params);
  const auto threads = static_cast<unsigned>(params.integer("intra_op_parallelism"));
  const std::pair<const char*, std::function<std::unique_ptr<Ring>()>> engines[] = {
      {"io_uring", [&] { return make_uring(file, depth); }},
      {"libaio", [&] { return make_aio(file, depth); }},
      {"threads", [&] { return make_threads(file, depth, threads); }}};
  const std::string wanted = params.text("engine");
  std::string refused;
  for (const auto& [name, make] : engines) {
    if (wanted != "auto" && wanted != name) continue;
    try {
      auto ring = make();
      if (!refused.empty()) host.warning(refused + "offload goes on with " + name + ".");
      return ring;
    } catch (const sdk::Error& error) {
      if (wanted != "auto") {
        throw sdk::Error("engine: " + wanted + " cannot be used here: " + error.what() +
                         ". Leave engine out to use another.");
      }
      refused += std::string(name) + " cannot be used here (" + error.what() + "); ";
    }
  }
  throw sdk::Error("engine: " + refused + "no other is left.");
}

/// A file without a name, in a folder on a disk.
class Nvme {
 public:
  Nvme(sdk::Host host, const sdk::Params& params)
      : host_(host),
        pins_(params.boolean("pin_memory")),
        file_(checked_path(params), host),
        transfers_(file_, chosen_ring(host, params, file_.descriptor()), pace(params)),
        block_(static_cast<std::uint64_t>(params.integer("block_size"))) {
    const unsigned asked = depth_asked_for(params), depth = transfers_.ring().depth();
    if (depth < asked) {
      host.info("queue_depth: the kernel gives " + std::to_string(depth) + " of " + std::to_string(asked) + ".");
    }
    if (params.boolean("single_submit")) {
      host.info("single_submit: true makes a system call of each request. It only slows down; leave it out.");
    }
    if (!params.boolean("overlap_events")) {
      host.info(
          "overlap_events: false lets the disk run dry before more is submitted. It only slows down; leave it out.");
    }
  }

  sdk::OffloadFacts facts() {
    const std::uint64_t ahead = std::min(kMostAhead, transfers_.ring().depth() * block_);
    return {sizeof(sdk::OffloadFacts), file_.alignment(), ahead, file_.free_bytes()};
  }

  void register_buffer(std::uint64_t id, std::uint64_t bytes) { transfers_.add_buffer(id, bytes); }
  void release_buffer(std::uint64_t id) { transfers_.drop_buffer(id); }

  void lend(void* memory, std::uint64_t bytes) {
    if (!pins_) return;
    const int error = transfers_.ring().lend(memory, bytes);
    if (error == 0) lent_.insert(memory);
    if (error != 0 && error != ENOTSUP && !std::exchange(said_unregistered_, true)) say_unregistered(bytes, error);
  }
  void take_back(void* memory) noexcept {
    if (lent_.erase(memory) > 0) transfers_.ring().take_back(memory);
  }

  std::uint64_t start(std::span<const sdk::Range> ranges) { return transfers_.start(ranges); }
  bool poll(std::uint64_t ticket) { return transfers_.poll(ticket); }
  sdk::OffloadFault fault(std::uint64_t ticket) { return transfers_.fault(ticket); }

  std::string stats() const {
    const std::string folder = file_.folder().string(), engine(transfers_.ring().name());
    const std::string depth = std::to_string(transfers_.ring().depth());
    const std::string about =
        folder + " by " + engine + ", depth " + depth + (lent_.empty() ? "" : ", registered buffers");
    const Traffic& traffic = transfers_.traffic();
    return "{\"about\": " + quoted(about) + ", \"engine\": " + quoted(engine) + ", \"depth\": " + depth +
           ", \"folder\": " + quoted(folder) + ", \"registered\": " + (lent_.empty() ? "false" : "true") +
           ", \"bytes_read\": " + std::to_string(traffic.bytes_read) +
           ", \"bytes_written\": " + std::to_string(traffic.bytes_written) +
           ", \"requests\": " + std::to_string(traffic.requests) + "}";
  }

 private:
  static std::string checked_path(const sdk::Params& params) {
    params.require(!params.boolean("use_gds"), "use_gds",
                   "GPUDirect Storage is for CUDA, and its library cuFile is not supported. Leave it out.");
    return params.text("nvme_path");
  }

  Pace pace(const sdk::Params& params) const {
    const auto block = static_cast<std::uint64_t>(params.integer("block_size"));
    const std::uint64_t unit = file_.request_unit();
    params.require(block > 0 && block % unit == 0, "block_size",
                   std::to_string(block) + " is no multiple of " + std::to_string(unit) +
                       ", the unit of the disk at '" + file_.folder().string() + "'. Take 1048576.");
    return {block, params.boolean("overlap_events"), params.boolean("single_submit")};
  }

  void say_unregistered(std::uint64_t bytes, int error) const {
    rlimit limit{};
    getrlimit(RLIMIT_MEMLOCK, &limit);
    const std::string allowed =
        limit.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_cur / 1024) + " KiB";
    host_.warning(
        "pin_memory: " + bytes_text(bytes) + " of memory cannot be registered with the kernel (" +
        std::strerror(error) + "; ulimit -l: " + allowed +
        "). Transfers go on unregistered, at up to twice the CPU time. Raise the limit: ulimit -l unlimited.");
  }

  sdk::Host host_;
  bool pins_;
  SwapFile file_;
  Transfers transfers_;
  std::uint64_t block_;
  std::set<void*> lent_;
  bool said_unregistered_ = false;
};

}  // namespace
}  // namespace capstan::offload

CAPSTAN_PLUGIN(&capstan::sdk::offload<capstan::offload::Nvme, "nvme">)
