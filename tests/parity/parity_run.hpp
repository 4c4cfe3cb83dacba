#pragma once

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "core/comm/communicator.hpp"
#include "core/text/json.hpp"

namespace capstan::parity {

/// How far a repeated run may be from the recorded one. Relative but for learning rate and momentum.
struct Tolerance {
  double loss = 2e-6;
  double grad_norm = 5e-6;
  double final_norm = 1e-5;
  double lr = 1e-9;
  double momentum = 1e-9;
  double effective = 1e-5;
  double masks = 0;          // share of the units or weights that one keeps and the other does not
  double clean_loss = 2e-6;  // of the model in evaluation, against the peer's cleaned one
  double eigenvalue = 1e-5;  // of blocks, and their ratios
  int scale_steps = 0;       // fp16: steps whose loss scale, or whether they were skipped, differs
};

/// The greatest difference found among so many values of one kind. None are compared where the peer recorded none.
struct Compared {
  double greatest = 0;
  std::int64_t values = 0;

  void add(double difference);
};

struct Difference {
  Compared loss, grad_norm, final_norm, lr, momentum;
  Compared effective;          // norms of the weights that forwards used, where they were recorded
  Compared masks, clean_loss;  // after the last step
  Compared eigenvalue;
  std::string final_norm_parameter;  // whose final L2 norm is farthest off
  std::int64_t steps = 0;            // compared
  int scale_steps = 0;

  bool within(const Tolerance& tolerance) const;
};

/// Changes to a recorded run's configuration, dotted key path and value: to show that a wrong formula is noticed.
using Overrides = std::vector<std::pair<std::string, Json>>;

/// A recorded run's file. A run of the peer's eigenvalues alone has no configuration, and gets that of what it did.
Json parse_recorded(const std::string& text);

/// What the recorded run's precision and optimizer allow: 16-bit runs of the peer, autocast's too, differ among
/// themselves, and Adagrad turns chaotic.
Tolerance tolerance_for(const Json& recorded);

/// The first of the samples on which the peer's loss after cleaning was taken: the recorder counts a micro-batch a
/// step, whatever gradient_accumulation_steps is.
std::int64_t clean_sample(const Json& recorded);

/// Whether the recorded run computes in 16 bits: bf16, fp16 or autocast.
bool is_16_bit(const Json& recorded);

/// Why a recorded run cannot be compared, because Capstan departs from the peer there; empty where it can be.
std::string departure_of(const Json& recorded);

/// One line for people and programs: of each kind the greatest difference, null where nothing was compared, the number
/// of values compared, and the tolerance.
Json report(const Difference& difference, const Tolerance& tolerance);

/// Trains the recorded model from its formula on `corpus` with the recorded configuration and compares each step.
/// A run of several processes is repeated by as many, or by one with as many times the accumulation: the same samples,
/// step by step. After fewer steps than were recorded, the parameters are not compared with the recorded last ones.
Difference repeat(const Json& recorded, const std::string& corpus, const Overrides& overrides = {},
                  std::shared_ptr<Communicator> communicator = Communicator::alone(),
                  std::int64_t at_most_steps = std::numeric_limits<std::int64_t>::max());

}  // namespace capstan::parity
