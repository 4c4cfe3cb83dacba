#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "capstan/sdk/component.hpp"

/// Attention layouts: which blocks of queries attend to which blocks of keys.
///
///   class Dilated {
///    public:
///     Dilated(capstan::sdk::Host host, const capstan::sdk::Params& params);
///     capstan::sdk::AttentionFacts facts() const;  // the block's tokens, and whether it is causal
///     // Pure: random cells are a function of shape.seed, the head and the row (capstan/sdk/random.hpp).
///     void layout(const capstan::sdk::AttentionShape& shape, capstan::sdk::AttentionCells& cells) const;
///   };
///   CAPSTAN_PLUGIN(&capstan::sdk::attention<Dilated, "dilated">)
///
/// Kernels, which compute with layouts, are in capstan/sdk/attention_kernel.hpp.
namespace capstan::sdk {

struct AttentionFacts {
  std::uint32_t block = 16;  // tokens
  bool causal = false;       // no token attends to a later one, inside of blocks too
};

struct AttentionShape {
  std::uint32_t heads = 1, blocks = 1;
  std::uint64_t seed = 0;  // of the run
};

/// The cells of all heads: rows are blocks of queries, columns blocks of keys. None is set at first.
class AttentionCells {
 public:
  AttentionCells(std::uint8_t* cells, const AttentionShape& shape)
      : cells_(cells), heads_(shape.heads), blocks_(shape.blocks) {}

  std::uint32_t heads() const { return heads_; }
  std::uint32_t blocks() const { return blocks_; }
  bool is_set(std::uint32_t head, std::uint32_t row, std::uint32_t column) const {
    return cells_[index(head, row, column)] != 0;
  }
  void set(std::uint32_t head, std::uint32_t row, std::uint32_t column, bool on = true) {
    cells_[index(head, row, column)] = on ? 1 : 0;
  }
  /// Gives every head the cells of the first.
  void copy_first_head() {
    const std::size_t size = std::size_t{blocks_} * blocks_;
    for (std::size_t head = 1; head < heads_; ++head) std::copy_n(cells_, size, cells_ + head * size);
  }

 private:
  std::size_t index(std::uint32_t head, std::uint32_t row, std::uint32_t column) const {
    return (std::size_t{head} * blocks_ + row) * blocks_ + column;
  }

  std::uint8_t* cells_;
  std::uint32_t heads_, blocks_;
};

template <class T>
struct AttentionCalls {
  static capstan_status facts(void* self, capstan_attention_facts* out, capstan_error* error) {
    const auto& instance = *static_cast<Instance<T>*>(self);
    return guarded(instance.host, error, [&] {
      const AttentionFacts facts = instance.object.facts();
      out->block = facts.block;
      out->causal = facts.causal;
    });
  }
  static capstan_status layout(void* self, const capstan_attention_shape* raw, std::uint8_t* out,
                               capstan_error* error) {
    const auto& instance = *static_cast<Instance<T>*>(self);
    return guarded(instance.host, error, [&] {
      const AttentionShape shape{raw->heads, raw->blocks, raw->seed};
      AttentionCells cells(out, shape);
      instance.object.layout(shape, cells);
    });
  }
  static constexpr capstan_attention kTable = {
      sizeof(capstan_attention), &facts, &layout, nullptr, nullptr, nullptr, nullptr};
};

/// The descriptor of layout class T.
template <class T, Literal Type>
inline constexpr capstan_component attention = describe<T, "attention", Type>(&AttentionCalls<T>::kTable);

}  // namespace capstan::sdk
