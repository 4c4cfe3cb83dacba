#include "plugins/accelerators/cuda/nccl_link.hpp"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <atomic>

#include "capstan/sdk/aten.hpp"
#include "plugins/accelerators/cuda/nccl_communicator.hpp"

namespace capstan::accelerators {
namespace {

using Communicator = NcclCommunicator;
using Pieces = std::vector<Communicator::Piece>;

class Exchange final : public NcclExchange {
 public:
  Exchange(std::shared_ptr<Communicator> communicator, at::cuda::CUDAStream stream, at::cuda::CUDAEvent begun)
      : communicator_(std::move(communicator)), stream_(stream), begun_(std::move(begun)), done_(cudaEventDefault) {}

  bool wait() override {
    return wait([this] { return abort_asked_.load(); });
  }
  bool wait(const Communicator::Stop& stop) {
    return communicator_->wait([this] { done_.record(stream_); }, [this] { return done_.query(); }, stop);
  }
  void abort() noexcept override { abort_asked_ = true; }
  double milliseconds() override { return begun_.elapsed_time(done_); }

 private:
  std::shared_ptr<Communicator> communicator_;
  at::cuda::CUDAStream stream_;
  at::cuda::CUDAEvent begun_, done_;
  std::atomic<bool> abort_asked_ = false;
};

class Link final : public NcclLink {
 public:
  explicit Link(std::shared_ptr<Communicator> communicator)
      : communicator_(std::move(communicator)), stream_(at::cuda::getStreamFromPool(/*isHighPriority=*/true)) {}

  std::unique_ptr<NcclExchange> start(const std::vector<sdk::Message>& send,
                                      const std::vector<sdk::Message>& receive) override {
    return start(pieces_of(send), pieces_of(receive));
  }
  std::unique_ptr<Exchange> start(const Pieces& send, const Pieces& receive) {
    // Nothing that the caller queued before may still be writing, or reading, what is sent. What it queues later waits
    // for the exchange because its thread does.
    at::cuda::CUDAEvent ready, begun(cudaEventDefault);  // the only flag with which an event takes its time
    ready.record(at::cuda::getCurrentCUDAStream(stream_.device_index()));
    ready.block(stream_);
    begun.record(stream_);
    communicator_->start(send, receive, stream_.stream());
    return std::make_unique<Exchange>(communicator_, stream_, std::move(begun));
  }

 private:
  static Pieces pieces_of(const std::vector<sdk::Message>& messages) {
    Pieces pieces;
    for (const sdk::Message& message : messages) {
      const at::Tensor& values = sdk::borrow(message.values);
      if (values.nbytes() > 0) pieces.push_back({message.peer, values.mutable_data_ptr(), values.nbytes()});
    }
    return pieces;
  }

  std::shared_ptr<Communicator> communicator_;
  at::cuda::CUDAStream stream_;
};

/// NCCL connects two ranks when they first talk, and waits without end for one that does not come. Here all of them
/// come.
void meet_everyone(Link& link, int size, const Communicator::Stop& given_up) {
  const at::Tensor told = at::zeros({size}, at::TensorOptions(at::kByte).device(at::kCUDA));
  const at::Tensor heard = at::empty_like(told);
  Pieces send, receive;
  for (int peer = 0; peer < size; ++peer) {
    send.push_back({peer, told.mutable_data_ptr<std::uint8_t>() + peer, 1});
    receive.push_back({peer, heard.mutable_data_ptr<std::uint8_t>() + peer, 1});
  }
  if (!link.start(send, receive)->wait(given_up)) {
    throw sdk::Error("NCCL: not all processes of the group have come.");
  }
}

constexpr char kDigits[] = "0123456789abcdef";

}  // namespace

std::string NcclLink::new_id() {
  NcclId id{};
  const NcclApi& api = NcclApi::of_libtorch();
  if (const int result = api.new_id(&id); result != NcclApi::kSuccess) {
    throw sdk::Error(std::string("NCCL: ") + api.error_text(result));
  }
  std::string text;
  for (const char byte : id.bytes) {
    text += kDigits[static_cast<unsigned char>(byte) >> 4];
    text += kDigits[static_cast<unsigned char>(byte) & 15];
  }
  return text;
}

std::unique_ptr<NcclLink> NcclLink::connect(std::string_view id, int rank, int size, const sdk::GivenUp& given_up) {
  NcclId raw{};
  if (id.size() != 2 * sizeof raw.bytes || id.find_first_not_of(kDigits) != std::string_view::npos) {
    throw sdk::Error("the id of an NCCL link has 256 hexadecimal digits.");
  }
  const auto digit = [](char c) { return static_cast<int>(std::find(kDigits, kDigits + 16, c) - kDigits); };
  for (std::size_t i = 0; i < sizeof raw.bytes; ++i) {
    raw.bytes[i] = static_cast<char>(digit(id[2 * i]) * 16 + digit(id[2 * i + 1]));
  }
  try {
    auto link =
        std::make_unique<Link>(std::make_shared<Communicator>(NcclApi::of_libtorch(), raw, rank, size, given_up));
    meet_everyone(*link, size, given_up);
    return link;
  } catch (const std::exception& error) {
    throw sdk::Error(std::string(sdk::sentence(error)) + " Each process needs a GPU of its own.");
  }
}

}  // namespace capstan::accelerators
