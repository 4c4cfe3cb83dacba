#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace capstan {

/// The values that a pickle of torch.save describes, as data: no code is imported or called, whatever the pickle says.
///
/// The instructions are those of Python's pickletools. A class or function that is not among the few that mean plain
/// data (collections.OrderedDict, torch.Size, the makers of tensors, the records of DeepSpeed and of
/// torch.distributed.checkpoint) gives a value of kind kOpaque, which has a name and nothing else. Values may be shared
/// and may hold themselves: who walks over them sets a limit. Texts point into the bytes that were parsed, which must
/// outlive this. [immutable once made]
class Pickle {
 public:
  enum class Kind : std::uint8_t {
    kNone,
    kBool,
    kInteger,
    kLongInteger,  // an integer that 64 bits do not hold: text() has its decimal digits
    kReal,
    kText,
    kBytes,
    kList,     // lists and sets
    kTuple,    // tuples and torch.Size
    kDict,     // dict, OrderedDict, and records with their members: keys and values, alternately
    kStorage,  // of torch: text() is the type's name ("FloatStorage"), items(): key, number of elements
    kTensor,   // items(): storage, offset, shape, stride
    kName,     // a class, function or constant: text() is "torch.float16"
    kOpaque,   // what is made of a class or function that is not known: text() is its name
  };
  using Id = std::uint32_t;
  using Bytes = std::span<const std::byte>;

  /// Parses one pickle at the beginning of `bytes`. Throws RuntimeFault that begins with `where` for instructions that
  /// torch.save does not write, and what does not fit together. Nothing recurses, and at most 10 million values are
  /// made.
  Pickle(Bytes bytes, const std::string& where);

  Id root() const { return root_; }
  /// The bytes up to the end of the pickle.
  std::uint64_t size() const { return size_; }

  /// Ids go from 0 to this.
  Id count() const { return static_cast<Id>(values_.size()); }
  Kind kind(Id id) const { return values_[id].kind; }
  bool boolean(Id id) const { return values_[id].integer != 0; }
  std::int64_t integer(Id id) const { return values_[id].integer; }
  double real(Id id) const { return values_[id].real; }
  std::string_view text(Id id) const { return values_[id].text; }
  const std::vector<Id>& items(Id id) const;

 private:
  friend class PickleMachine;
  struct Value {
    Kind kind = Kind::kNone;
    bool is_record = false;   // a dict that takes over the members of BUILD
    std::uint32_t items = 0;  // of lists_; 0: none
    union {
      std::int64_t integer = 0;
      double real;
    };
    std::string_view text = {};
  };

  std::vector<Value> values_;
  std::vector<std::vector<Id>> lists_;
  std::deque<std::string> texts_;  // those that the pickle does not have as they are
  Id root_ = 0;
  std::uint64_t size_ = 0;
};

}  // namespace capstan
