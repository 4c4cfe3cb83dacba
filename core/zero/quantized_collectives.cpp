#include "core/zero/quantized_collectives.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/nan_to_num.h>

#include <algorithm>
#include <stdexcept>

#include "core/host_tensor.hpp"
#include "core/zero/block_quantization.hpp"

namespace capstan {
namespace {

float* scales_of(std::byte* message) { return reinterpret_cast<float*>(message); }
std::uint8_t* codes_of(std::byte* message, std::int64_t blocks) {
  return reinterpret_cast<std::uint8_t*>(message + 4 * blocks);
}

std::byte* bytes_of(const at::Tensor& tensor) { return static_cast<std::byte*>(tensor.mutable_data_ptr()); }

void encode(const BlockFormat& format, const at::Tensor& part, const at::Tensor& message) {
  const at::Tensor values = part.to(at::kCPU, at::kFloat);
  std::byte* const bytes = bytes_of(message);
  quantize(format, values.const_data_ptr<float>(), scales_of(bytes), codes_of(bytes, format.blocks()));
}

/// Gathers parts of a device through host memory, where codes are made and read.
void gather_through_host(Communicator& communicator, const std::string& name,
                         const std::vector<std::vector<at::Tensor>>& pieces, const std::vector<at::Tensor>& codes) {
  const auto own = static_cast<std::size_t>(communicator.rank());
  std::vector<std::vector<at::Tensor>> here;
  for (const auto& parts : pieces) {
    std::vector<at::Tensor>& of_piece = here.emplace_back();
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
      of_piece.push_back(rank == own ? parts[rank].to(at::kCPU)
                                     : host_empty({parts[rank].numel()}, parts[rank].scalar_type()));
    }
  }
  quantized_all_gather(communicator, name, here, codes);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    for (std::size_t rank = 0; rank < pieces[i].size(); ++rank) at::Tensor(pieces[i][rank]).copy_(here[i][rank]);
  }
}

}  // namespace

at::Tensor weight_codes(const at::Tensor& part) {
  const at::NoGradGuard no_grad;
  const BlockFormat format = weight_format(part.numel());
  if (format.block == 0) return {};
  at::Tensor message = host_empty({format.message_bytes()}, at::kByte);
  encode(format, part.contiguous(), message);
  return message;
}

void decode_weights(const at::Tensor& codes, at::Tensor part) {
  const at::NoGradGuard no_grad;
  const BlockFormat format = weight_format(part.numel());
  std::byte* const message = bytes_of(codes);
  const bool direct = part.is_cpu() && part.scalar_type() == at::kFloat;
  const at::Tensor values = direct ? part : host_empty({part.numel()}, at::kFloat);
  dequantize(format, scales_of(message), codes_of(message, format.blocks()), values.mutable_data_ptr<float>());
  if (!direct) part.copy_(values.view(part.sizes()));
}

void quantized_all_gather(Communicator& communicator, const std::string& name,
                          const std::vector<std::vector<at::Tensor>>& pieces, const std::vector<at::Tensor>& codes) {
  if (communicator.size() == 1) return;
  at::NoGradGuard no_grad;
  if (!pieces.empty() && !pieces.front().front().is_cpu()) {
    return gather_through_host(communicator, name, pieces, codes);
  }
  const auto own = static_cast<std::size_t>(communicator.rank());
  std::int64_t bytes = 0;
  for (const auto& parts : pieces) {
    for (const at::Tensor& part : parts) {
      const BlockFormat format = weight_format(part.numel());
      if (format.block > 0) bytes += format.message_bytes();
    }
  }
  const at::Tensor memory = host_empty({bytes}, at::kByte);
  std::int64_t at = 0;
  std::vector<std::vector<at::Tensor>> messages;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const std::vector<at::Tensor>& parts = pieces[i];
    std::vector<at::Tensor>& of_piece = messages.emplace_back();
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
      const BlockFormat format = weight_format(parts[rank].numel());
      if (format.block == 0) {
        of_piece.push_back(parts[rank]);
        continue;
      }
      if (rank == own && !codes.empty() && codes[i].defined()) {
        of_piece.push_back(codes[i]);
        continue;
      }
      of_piece.push_back(memory.narrow(0, at, format.message_bytes()));
      at += format.message_bytes();
      if (rank == own) encode(format, parts[rank], of_piece.back());
    }
  }
  communicator.all_gather(name, messages);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    for (std::size_t rank = 0; rank < pieces[i].size(); ++rank) {
      const at::Tensor& part = pieces[i][rank];
      if (weight_format(part.numel()).block > 0) decode_weights(messages[i][rank], part);
    }
  }
}

QuantizedReduceScatter::QuantizedReduceScatter(std::shared_ptr<Communicator> communicator, int ranks_per_node,
                                               std::vector<std::vector<GradientRange>> ranges,
                                               std::optional<ErrorFeedback> feedback)
    : communicator_(std::move(communicator)),
      per_node_(ranks_per_node),
      nodes_(communicator_->size() / ranks_per_node),
      node_(communicator_->rank() / ranks_per_node),
      place_(communicator_->rank() % ranks_per_node),
      ranges_(std::move(ranges)),
      feedback_(feedback) {
  if (per_node_ * nodes_ != communicator_->size()) {
    throw std::logic_error("QuantizedReduceScatter: nodes of " + std::to_string(per_node_) + " ranks do not make up " +
                           std::to_string(communicator_->size()));
  }
  for (const auto& of_rank : ranges_) {
    Part part;
    for (const GradientRange& range : of_rank) {
      if (range.block == 0) continue;
      part.formats.push_back({4, range.numel, range.block});
      part.numel += range.numel;
      part.blocks += part.formats.back().blocks();
      part.bytes += part.formats.back().code_bytes();
    }
    part.bytes = (4 * part.blocks + part.bytes + 3) / 4 * 4;
    parts_.push_back(std::move(part));
  }
  first_.resize(parts_.size());
  second_.resize(static_cast<std::size_t>(nodes_));
}

/// The quantised elements of a part in fp32, in memory of their own.
at::Tensor QuantizedReduceScatter::quantized_elements(std::size_t rank, const at::Tensor& values) const {
  at::Tensor elements = host_empty({parts_[rank].numel}, at::kFloat);
  std::int64_t from = 0, to = 0;
  for (const GradientRange& range : ranges_[rank]) {
    if (range.block > 0) {
      elements.narrow(0, to, range.numel).copy_(values.narrow(0, from, range.numel));
      to += range.numel;
    }
    from += range.numel;
  }
  return elements;
}

/// Quantises `values`, which it may change, into a message.
void QuantizedReduceScatter::encode(const Part& part, at::Tensor values, Errors& errors, std::byte* message) const {
  float* const scales = scales_of(message);
  std::uint8_t* const codes = codes_of(message, part.blocks);
  const bool first_time = errors.codes.empty();
  if (feedback_ && first_time) {
    errors.scales.assign(static_cast<std::size_t>(part.blocks), 0.0f);
    errors.codes.assign(static_cast<std::size_t>(part.numel), 0);
  }
  std::int64_t element = 0, block = 0, byte = 0;
  for (const BlockFormat& format : part.formats) {
    at::Tensor x = values.narrow(0, element, format.numel);
    float* const numbers = x.mutable_data_ptr<float>();
    if (!feedback_) {
      quantize(format, numbers, scales + block, codes + byte);
    } else {
      const BlockFormat kept{8, format.numel, format.block};
      float* const error_scales = errors.scales.data() + block;
      std::uint8_t* const error_codes = errors.codes.data() + element;
      at::Tensor error = host_empty({format.numel}, at::kFloat);
      dequantize(kept, error_scales, error_codes, error.mutable_data_ptr<float>());
      x.add_(error);
      quantize(format, numbers, scales + block, codes + byte);
      at::Tensor lost = host_empty({format.numel}, at::kFloat);
      dequantize(format, scales + block, codes + byte, lost.mutable_data_ptr<float>());
      error.mul_(feedback_->beta).add_(x.sub(lost), 1.0 - feedback_->beta);
      // An overflow is no error to make good later.
      error.nan_to_num_(0.0, 0.0, 0.0);
      quantize(kept, error.const_data_ptr<float>(), error_scales, error_codes);
    }
    element += format.numel;
    block += format.blocks();
    byte += format.code_bytes();
  }
}

/// Adds a message's values to `sum`.
void QuantizedReduceScatter::add(const Part& part, const std::byte* message, float* sum) const {
  const auto* scales = reinterpret_cast<const float*>(message);
  const auto* codes = reinterpret_cast<const std::uint8_t*>(message + 4 * part.blocks);
  for (const BlockFormat& format : part.formats) {
    add_dequantized(format, scales, codes, sum);
    scales += format.blocks();
    codes += format.code_bytes();
    sum += format.numel;
  }
}

/// Rank (j, k) gets from its node the sums of what (0, k), (1, k), ... will own, one after another.
at::Tensor QuantizedReduceScatter::within_node(const std::string& name, const std::vector<at::Tensor>& parts) {
  const auto size_for = [&](int place) {
    std::int64_t bytes = 0;
    for (int node = 0; node < nodes_; ++node) bytes += part(node, place).bytes;
    return bytes;
  };
  std::vector<at::Tensor> send(parts.size(), host_empty({0}, at::kByte)), receive = send;
  for (int place = 0; place < per_node_; ++place) {
    const auto peer = static_cast<std::size_t>(node_ * per_node_ + place);
    send[peer] = host_empty({size_for(place)}, at::kByte);
    receive[peer] = host_empty({size_for(place_)}, at::kByte);
    std::byte* message = bytes_of(send[peer]);
    for (int node = 0; node < nodes_; ++node) {
      const auto target = static_cast<std::size_t>(node * per_node_ + place);
      encode(parts_[target], quantized_elements(target, parts[target]), first_[target], message);
      message += parts_[target].bytes;
    }
  }
  communicator_->all_to_all(name + ", within nodes", send, receive);

  std::int64_t numel = 0;
  for (int node = 0; node < nodes_; ++node) numel += part(node, place_).numel;
  at::Tensor sums = host_zeros({numel}, at::kFloat);
  for (int place = 0; place < per_node_; ++place) {
    const std::byte* message = bytes_of(receive[static_cast<std::size_t>(node_ * per_node_ + place)]);
    auto* sum = sums.mutable_data_ptr<float>();
    for (int node = 0; node < nodes_; ++node) {
      add(part(node, place_), message, sum);
      message += part(node, place_).bytes;
      sum += part(node, place_).numel;
    }
  }
  return sums;
}

/// The sum over nodes of what this rank owns.
at::Tensor QuantizedReduceScatter::between_nodes(const std::string& name, const at::Tensor& sums) {
  const Part& own = part(node_, place_);
  std::vector<at::Tensor> send(parts_.size(), host_empty({0}, at::kByte)), receive = send;
  std::int64_t element = 0;
  for (int node = 0; node < nodes_; ++node) {
    const auto peer = static_cast<std::size_t>(node * per_node_ + place_);
    const Part& of_peer = parts_[peer];
    send[peer] = host_empty({of_peer.bytes}, at::kByte);
    receive[peer] = host_empty({own.bytes}, at::kByte);
    encode(of_peer, sums.narrow(0, element, of_peer.numel), second_[static_cast<std::size_t>(node)],
           bytes_of(send[peer]));
    element += of_peer.numel;
  }
  communicator_->all_to_all(name + ", between nodes", send, receive);
  at::Tensor sum = host_zeros({own.numel}, at::kFloat);
  for (int node = 0; node < nodes_; ++node) {
    add(own, bytes_of(receive[static_cast<std::size_t>(node * per_node_ + place_)]), sum.mutable_data_ptr<float>());
  }
  return sum;
}

at::Tensor QuantizedReduceScatter::reduce(const std::string& name, const std::vector<at::Tensor>& parts) {
  at::NoGradGuard no_grad;
  if (feedback_ && calls_++ % feedback_->reset_every == 0) {
    for (auto* list : {&first_, &second_}) std::fill(list->begin(), list->end(), Errors{});
  }
  const auto own = static_cast<std::size_t>(communicator_->rank());
  at::Tensor sum = host_empty({parts[own].numel()}, at::kFloat);
  const at::Tensor quantized = between_nodes(name, within_node(name, parts));

  // Parts that have no blocks travel as they are.
  std::vector<at::Tensor> rests;
  bool any = false;
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    std::vector<at::Tensor> pieces{parts[rank].narrow(0, 0, 0)};
    std::int64_t at = 0;
    for (const GradientRange& range : ranges_[rank]) {
      if (range.block == 0) pieces.push_back(parts[rank].narrow(0, at, range.numel));
      at += range.numel;
    }
    any = any || pieces.size() > 1;
    rests.push_back(at::cat(pieces));
  }
  const at::Tensor exact = any ? communicator_->reduce_scatter(name + ", small ones", rests) : at::Tensor();

  std::int64_t at = 0, from_quantized = 0, from_exact = 0;
  for (const GradientRange& range : ranges_[own]) {
    std::int64_t& from = range.block > 0 ? from_quantized : from_exact;
    sum.narrow(0, at, range.numel).copy_((range.block > 0 ? quantized : exact).narrow(0, from, range.numel));
    from += range.numel;
    at += range.numel;
  }
  return sum.to(parts[own].device());
}

std::int64_t QuantizedReduceScatter::error_bytes() const {
  std::size_t bytes = 0;
  for (const auto* list : {&first_, &second_}) {
    for (const Errors& errors : *list) bytes += 4 * errors.scales.size() + errors.codes.size();
  }
  return static_cast<std::int64_t>(bytes);
}

}  // namespace capstan
