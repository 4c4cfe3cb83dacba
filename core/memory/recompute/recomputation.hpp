#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "capstan/plugin.h"
#include "core/memory/interceptor.hpp"
#include "core/memory/recompute/operator_facts.hpp"
#include "core/memory/recompute/recorder.hpp"
#include "core/memory/recompute/tape.hpp"

namespace capstan {

/// Where the boundaries of regions wait between forward and backward. Calls come from the thread that trains and from
/// those of autograd.
class BoundaryStore {
 public:
  virtual ~BoundaryStore() = default;
  virtual std::uint64_t pack(const at::Tensor& boundary, const std::string& layer) = 0;
  virtual at::Tensor unpack(std::uint64_t id) = 0;
  virtual void drop(std::uint64_t id) noexcept = 0;
};

/// Runs layers whose activations are computed again in backward: activation checkpointing (Chen et al. 2016, arXiv
/// 1604.06174), by a tape of operators in the place of the layer's code. [engine]
class Recomputation {
 public:
  Recomputation() = default;
  ~Recomputation() { end(); }
  Recomputation(const Recomputation&) = delete;

  /// For regions whose caller has no pack function of its own. Must outlive this object; null: none.
  void set_store(BoundaryStore* store) { store_ = store; }

  /// What a forward's operators run under.
  struct Policies {
    OperatorPolicy* outside = nullptr;  // changes inputs, with a state of its own: what it made is kept; null: none
    OperatorPolicy* inside = nullptr;   // also when operators run again; null: none
    bool whole = false;                 // they know composite operators by name: nothing may look inside of these
  };
  /// `first`: this run has trained with no micro-batch yet.
  void begin_forward(Policies policies, bool first);
  void end_forward();

  /// Whether a region of this engine waits for backward.
  bool waits() const;

  /// capstan_host.recompute, between begin_forward and end_forward.
  void run(const capstan_layer_call& call, const capstan_inner& inner, const capstan_recompute& how,
           capstan_tensor* out);

  /// No region computes anything any more, or calls whom it was run for.
  void end() noexcept;

 private:
  void open(const capstan_layer_call& call, const capstan_recompute& how);
  void close();
  std::set<std::string> names_of(const capstan_recompute& how, const std::string& layer);

  BoundaryStore* store_ = nullptr;
  Policies policies_;
  bool first_ = false;
  OperatorBook book_;
  std::set<std::string> known_names_;       // operators that exist
  std::vector<std::weak_ptr<Tape>> tapes_;  // of the forward under way, and of graphs that live on
  std::optional<Recorder> recorder_;        // of the region that is open
};

}  // namespace capstan
