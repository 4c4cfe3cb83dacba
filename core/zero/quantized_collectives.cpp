#include "core/zero/quantized_collectives.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <stdexcept>

#include "core/zero/code_operators.hpp"

namespace capstan {
namespace {

/// Scales and codes of a message, or of a part of one, whose `blocks` scales come first.
at::Tensor scales_of(const at::Tensor& message, std::int64_t blocks) {
  return message.narrow(0, 0, 4 * blocks).view(at::kFloat);
}
at::Tensor scales_of(const at::Tensor& message, const BlockFormat& format) {
  return scales_of(message, format.blocks());
}
at::Tensor codes_of(const at::Tensor& message, const BlockFormat& format) {
  return message.narrow(0, 4 * format.blocks(), format.code_bytes());
}

void encode(const BlockFormat& format, const at::Tensor& part, const at::Tensor& message) {
  quantize_blocks(format, part.to(at::kFloat).view({-1}), scales_of(message, format), codes_of(message, format));
}

at::Tensor bytes_beside(const at::Tensor& tensor, std::int64_t bytes) {
  return at::empty({bytes}, tensor.options().dtype(at::kByte));
}

}  // namespace

at::Tensor weight_codes(const at::Tensor& part) {
  const at::NoGradGuard no_grad;
  const BlockFormat format = weight_format(part.numel());
  if (format.block == 0) return {};
  at::Tensor message = bytes_beside(part, format.message_bytes());
  encode(format, part.contiguous(), message);
  return message;
}

void decode_weights(const at::Tensor& codes, at::Tensor part) {
  const at::NoGradGuard no_grad;
  const BlockFormat format = weight_format(part.numel());
  const bool direct = part.scalar_type() == at::kFloat;
  const at::Tensor values = direct ? part.view({-1}) : at::empty({part.numel()}, part.options().dtype(at::kFloat));
  dequantize_blocks(format, scales_of(codes, format), codes_of(codes, format), /*add=*/false, values);
  if (!direct) part.copy_(values.view(part.sizes()));
}

void quantized_all_gather(Communicator& communicator, const std::string& name,
                          const std::vector<std::vector<at::Tensor>>& pieces, const std::vector<at::Tensor>& codes) {
  if (communicator.size() == 1 || pieces.empty()) return;
  at::NoGradGuard no_grad;
  const auto own = static_cast<std::size_t>(communicator.rank());
  std::int64_t bytes = 0;
  for (const auto& parts : pieces) {
    for (const at::Tensor& part : parts) {
      const BlockFormat format = weight_format(part.numel());
      if (format.block > 0) bytes += format.message_bytes();
    }
  }
  const at::Tensor memory = bytes_beside(pieces.front().front(), bytes);
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
        of_piece.push_back(codes[i].to(memory.device()));
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
  at::Tensor elements = at::empty({parts_[rank].numel}, values.options().dtype(at::kFloat));
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

/// Calls use(format, its elements, its scales, its codes) for the formats of a part, whose elements are `values`.
template <class Use>
void QuantizedReduceScatter::for_each_format(const Part& part, const at::Tensor& message, const at::Tensor& values,
                                             Use&& use) const {
  const at::Tensor scales = scales_of(message, part.blocks);
  std::int64_t element = 0, block = 0, byte = 4 * part.blocks;
  for (const BlockFormat& format : part.formats) {
    use(format, values.narrow(0, element, format.numel), scales.narrow(0, block, format.blocks()),
        message.narrow(0, byte, format.code_bytes()));
    element += format.numel;
    block += format.blocks();
    byte += format.code_bytes();
  }
}

/// Quantises `values`, which it may change, into a message.
void QuantizedReduceScatter::encode(const Part& part, const at::Tensor& values, Errors& errors,
                                    const at::Tensor& message) const {
  if (feedback_ && !errors.codes.defined()) {
    errors.scales = at::zeros({part.blocks}, values.options());
    errors.codes = at::zeros({part.numel}, values.options().dtype(at::kByte));
  }
  std::int64_t element = 0, block = 0;
  for_each_format(part, message, values,
                  [&](const BlockFormat& format, at::Tensor x, const at::Tensor& scales, const at::Tensor& codes) {
                    if (!feedback_) return quantize_blocks(format, x, scales, codes);
                    const BlockFormat kept{8, format.numel, format.block};
                    const at::Tensor error_scales = errors.scales.narrow(0, block, format.blocks());
                    const at::Tensor error_codes = errors.codes.narrow(0, element, format.numel);
                    element += format.numel;
                    block += format.blocks();
                    at::Tensor error = at::empty({format.numel}, x.options());
                    dequantize_blocks(kept, error_scales, error_codes, /*add=*/false, error);
                    x.add_(error);
                    quantize_blocks(format, x, scales, codes);
                    const at::Tensor restored = at::empty({format.numel}, x.options());
                    dequantize_blocks(format, scales, codes, /*add=*/false, restored);
                    error.mul_(feedback_->beta).add_(x.sub(restored), 1.0 - feedback_->beta);
                    // An overflow is no error to make good later.
                    error.nan_to_num_(0.0, 0.0, 0.0);
                    quantize_blocks(kept, error, error_scales, error_codes);
                  });
}

/// Adds a message's values to `sum`.
void QuantizedReduceScatter::add(const Part& part, const at::Tensor& message, const at::Tensor& sum) const {
  for_each_format(part, message, sum,
                  [](const BlockFormat& format, const at::Tensor& values, const at::Tensor& scales,
                     const at::Tensor& codes) { dequantize_blocks(format, scales, codes, /*add=*/true, values); });
}

/// Rank (j, k) gets from its node the sums of what (0, k), (1, k), ... will own, one after another.
at::Tensor QuantizedReduceScatter::within_node(const std::string& name, const std::vector<at::Tensor>& parts) {
  const at::Tensor& beside = parts.front();
  const auto size_for = [&](int place) {
    std::int64_t bytes = 0;
    for (int node = 0; node < nodes_; ++node) bytes += part(node, place).bytes;
    return bytes;
  };
  std::vector<at::Tensor> send(parts.size(), bytes_beside(beside, 0)), receive = send;
  for (int place = 0; place < per_node_; ++place) {
    const auto peer = static_cast<std::size_t>(node_ * per_node_ + place);
    send[peer] = bytes_beside(beside, size_for(place));
    receive[peer] = bytes_beside(beside, size_for(place_));
    std::int64_t at = 0;
    for (int node = 0; node < nodes_; ++node) {
      const auto target = static_cast<std::size_t>(node * per_node_ + place);
      encode(parts_[target], quantized_elements(target, parts[target]), first_[target],
             send[peer].narrow(0, at, parts_[target].bytes));
      at += parts_[target].bytes;
    }
  }
  communicator_->all_to_all(name + ", within nodes", send, receive);

  std::int64_t numel = 0;
  for (int node = 0; node < nodes_; ++node) numel += part(node, place_).numel;
  at::Tensor sums = at::zeros({numel}, beside.options().dtype(at::kFloat));
  for (int place = 0; place < per_node_; ++place) {
    const at::Tensor& message = receive[static_cast<std::size_t>(node_ * per_node_ + place)];
    std::int64_t at = 0, element = 0;
    for (int node = 0; node < nodes_; ++node) {
      const Part& of_node = part(node, place_);
      add(of_node, message.narrow(0, at, of_node.bytes), sums.narrow(0, element, of_node.numel));
      at += of_node.bytes;
      element += of_node.numel;
    }
  }
  return sums;
}

/// The sum over nodes of what this rank owns.
at::Tensor QuantizedReduceScatter::between_nodes(const std::string& name, const at::Tensor& sums) {
  const Part& own = part(node_, place_);
  std::vector<at::Tensor> send(parts_.size(), bytes_beside(sums, 0)), receive = send;
  std::int64_t element = 0;
  for (int node = 0; node < nodes_; ++node) {
    const auto peer = static_cast<std::size_t>(node * per_node_ + place_);
    const Part& of_peer = parts_[peer];
    send[peer] = bytes_beside(sums, of_peer.bytes);
    receive[peer] = bytes_beside(sums, own.bytes);
    encode(of_peer, sums.narrow(0, element, of_peer.numel), second_[static_cast<std::size_t>(node)], send[peer]);
    element += of_peer.numel;
  }
  communicator_->all_to_all(name + ", between nodes", send, receive);
  at::Tensor sum = at::zeros({own.numel}, sums.options());
  for (int node = 0; node < nodes_; ++node) {
    add(own, receive[static_cast<std::size_t>(node * per_node_ + place_)], sum);
  }
  return sum;
}

at::Tensor QuantizedReduceScatter::reduce(const std::string& name, const std::vector<at::Tensor>& parts) {
  at::NoGradGuard no_grad;
  if (feedback_ && calls_++ % feedback_->reset_every == 0) {
    for (auto* list : {&first_, &second_}) std::fill(list->begin(), list->end(), Errors{});
  }
  const auto own = static_cast<std::size_t>(communicator_->rank());
  at::Tensor sum = at::empty({parts[own].numel()}, parts[own].options().dtype(at::kFloat));
  const at::Tensor quantized = between_nodes(name, within_node(name, parts));

  // Parts that have no blocks are sent as they are.
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
  return sum;
}

std::int64_t QuantizedReduceScatter::error_bytes() const {
  std::size_t bytes = 0;
  for (const auto* list : {&first_, &second_}) {
    for (const Errors& errors : *list) {
      if (errors.codes.defined()) bytes += errors.scales.nbytes() + errors.codes.nbytes();
    }
  }
  return static_cast<std::int64_t>(bytes);
}

}  // namespace capstan
