// The machine that reads a pickle. Instructions and their operands: Python's Lib/pickletools.py.

#include "core/checkpoint/torch_file/pickle.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <unordered_map>

#include "core/errors.hpp"

namespace capstan {
namespace {

constexpr std::size_t kMostValues = 10'000'000;
constexpr std::size_t kLongestName = 1000;
constexpr std::size_t kMostNames = 64 << 20;  // bytes of all names together

/// Records whose members are all that there is to them.
constexpr std::array kRecords = {"deepspeed.runtime.fp16.loss_scaler.LossScaler",
                                 "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler",
                                 "deepspeed.utils.tensor_fragment.fragment_address",
                                 "torch.distributed.checkpoint.metadata.Metadata",
                                 "torch.distributed.checkpoint.metadata.TensorStorageMetadata",
                                 "torch.distributed.checkpoint.metadata.ChunkStorageMetadata",
                                 "torch.distributed.checkpoint.metadata.BytesStorageMetadata",
                                 "torch.distributed.checkpoint.metadata.MetadataIndex",
                                 "torch.distributed.checkpoint.filesystem._StorageInfo"};

bool is_record(std::string_view name) { return std::find(kRecords.begin(), kRecords.end(), name) != kRecords.end(); }

/// The decimal digits of a little-endian integer in two's complement.
std::string decimal(std::span<const std::byte> bytes) {
  std::vector<std::uint8_t> left(bytes.size());
  std::memcpy(left.data(), bytes.data(), bytes.size());
  const bool negative = (left.back() & 0x80) != 0;
  if (negative) {
    unsigned carry = 1;
    for (std::uint8_t& byte : left) {
      carry += static_cast<std::uint8_t>(~byte);
      byte = static_cast<std::uint8_t>(carry);
      carry >>= 8;
    }
  }
  std::string digits;
  while (std::any_of(left.begin(), left.end(), [](std::uint8_t byte) { return byte != 0; })) {
    unsigned rest = 0;
    for (std::size_t i = left.size(); i-- > 0;) {
      rest = rest * 256 + left[i];
      left[i] = static_cast<std::uint8_t>(rest / 10);
      rest %= 10;
    }
    digits += static_cast<char>('0' + rest);
  }
  if (digits.empty()) digits = "0";
  if (negative) digits += '-';
  std::reverse(digits.begin(), digits.end());
  return digits;
}

}  // namespace

/// Runs the instructions of one pickle on a stack of values.
class PickleMachine {
 public:
  using Id = Pickle::Id;
  using Kind = Pickle::Kind;

  PickleMachine(Pickle& pickle, Pickle::Bytes bytes, const std::string& where)
      : pickle_(pickle), bytes_(bytes), where_(where) {
    pickle_.lists_.emplace_back();
  }

  void run() {
    while (!step(static_cast<char>(number<std::uint8_t>()))) {
      if (pickle_.values_.size() > kMostValues) fail("has more than 10 million values");
    }
    pickle_.root_ = pop();
    pickle_.size_ = at_;
  }

 private:
  [[noreturn]] void fail(const std::string& defect) const {
    throw RuntimeFault(where_ + ": its pickle " + defect + ", at byte " + std::to_string(at_) + ".");
  }

  Pickle::Bytes take(std::uint64_t bytes) {
    if (bytes > bytes_.size() - at_) fail("ends within an instruction");
    const auto taken = bytes_.subspan(at_, bytes);
    at_ += bytes;
    return taken;
  }

  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }

  std::string_view text(std::uint64_t bytes) {
    const auto taken = take(bytes);
    return {reinterpret_cast<const char*>(taken.data()), taken.size()};
  }

  /// Up to a line break, which is passed over.
  std::string_view line() {
    const std::uint64_t begin = at_;
    while (at_ < bytes_.size() && bytes_[at_] != std::byte{'\n'}) ++at_;
    if (at_ == bytes_.size() || at_ - begin > kLongestName) fail("has a name without an end");
    return {reinterpret_cast<const char*>(bytes_.data()) + begin, at_++ - begin};
  }

  Pickle::Value& value(Id id) { return pickle_.values_[id]; }

  void push(Pickle::Value value) {
    pickle_.values_.push_back(value);
    stack_.push_back(static_cast<Id>(pickle_.values_.size() - 1));
  }

  void push_integer(std::int64_t number) {
    Pickle::Value value{.kind = Kind::kInteger};
    value.integer = number;
    push(value);
  }

  void push_text(Kind kind, std::string_view text) { push({.kind = kind, .text = text}); }

  /// A list that is copied again and again takes a few bytes of the pickle each time.
  void count(std::size_t listed) {
    if ((listed_ += listed) > kMostValues) fail("has lists of more than 10 million values");
  }

  void push_items(Kind kind, std::vector<Id> items, bool record = false) {
    count(items.size());
    pickle_.lists_.push_back(std::move(items));
    push({.kind = kind, .is_record = record, .items = static_cast<std::uint32_t>(pickle_.lists_.size() - 1)});
  }

  void push_name(std::string name) {
    if (name.size() > 2 * kLongestName) fail("has a name that is too long");
    if ((named_ += name.size()) > kMostNames) fail("has names of more than 64 MiB");
    pickle_.texts_.push_back(std::move(name));
    push_text(Kind::kName, pickle_.texts_.back());
  }

  std::vector<Id>& items(Id id) { return pickle_.lists_[value(id).items]; }

  Id pop() {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) fail("takes a value that is not there");
    const Id id = stack_.back();
    stack_.pop_back();
    return id;
  }

  Id top() {
    const Id id = pop();
    stack_.push_back(id);
    return id;
  }

  std::vector<Id> pop_to_mark() {
    if (marks_.empty()) fail("takes values back to a mark that is not there");
    std::vector<Id> taken(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return taken;
  }

  std::vector<Id> pop_last(std::size_t count) {
    std::vector<Id> taken(count);
    for (std::size_t i = count; i-- > 0;) taken[i] = pop();
    return taken;
  }

  void put(std::uint64_t place) {
    memo_[place] = top();
    if (memo_.size() > kMostValues) fail("keeps more than 10 million values");
  }

  void get(std::uint64_t place) {
    const auto found = memo_.find(place);
    if (found == memo_.end()) fail("refers to a value that it has not kept");
    stack_.push_back(found->second);
  }

  void push_long(std::uint8_t bytes) {
    const auto digits = take(bytes);
    if (bytes > 8) {
      pickle_.texts_.push_back(decimal(digits));
      return push_text(Kind::kLongInteger, pickle_.texts_.back());
    }
    std::uint64_t number = 0;
    std::memcpy(&number, digits.data(), digits.size());
    const auto unused = static_cast<int>(64 - 8 * bytes);
    push_integer(bytes == 0 ? 0 : static_cast<std::int64_t>(number << unused) >> unused);
  }

  void append(std::vector<Id> added) {
    const Id to = top();
    if (value(to).kind == Kind::kOpaque) return;
    if (value(to).kind != Kind::kList) fail("appends to a value that is not a list");
    std::vector<Id>& list = items(to);
    list.insert(list.end(), added.begin(), added.end());
  }

  void set_items(const std::vector<Id>& added) {
    const Id to = top();
    if (value(to).kind == Kind::kOpaque) return;
    if (value(to).kind != Kind::kDict || added.size() % 2 != 0) fail("sets items of a value that is not a dict");
    std::vector<Id>& list = items(to);
    list.insert(list.end(), added.begin(), added.end());
  }

  /// ("storage", type, key, location, elements[, view]), which stands for a storage beside the pickle.
  void push_storage() {
    const Id reference = pop();
    const std::vector<Id> parts = items(reference);
    const bool fits = value(reference).kind == Kind::kTuple && (parts.size() == 5 || parts.size() == 6) &&
                      value(parts[0]).text == "storage" && value(parts[1]).kind == Kind::kName &&
                      value(parts[2]).kind == Kind::kText && value(parts[4]).kind == Kind::kInteger;
    if (!fits) fail("refers to something else than a storage of torch");
    const std::string_view type = value(parts[1]).text;
    push_items(Kind::kStorage, {parts[2], parts[4]});
    value(stack_.back()).text = type;
  }

  void push_opaque(Id of) {
    const bool named = value(of).kind == Kind::kName || value(of).kind == Kind::kOpaque;
    push_text(Kind::kOpaque, named ? value(of).text : "an object");
  }

  void push_pairs(const std::vector<Id>& pairs) {
    std::vector<Id> flat;
    for (const Id pair : pairs) {
      const std::vector<Id>& both = items(pair);
      if (both.size() != 2) fail("makes a dict of something else than pairs");
      flat.insert(flat.end(), both.begin(), both.end());
    }
    push_items(Kind::kDict, std::move(flat));
  }

  /// Makes the plain data that a call would give, or an opaque value.
  void reduce() {
    const Id arguments = pop(), function = pop();
    count(items(arguments).size());
    const std::vector<Id> given = items(arguments);
    const std::string_view name = value(function).kind == Kind::kName ? value(function).text : "";
    const auto is = [&](std::string_view known, std::size_t count) { return name == known && given.size() == count; };
    if (is("collections.OrderedDict", 0)) return push_items(Kind::kDict, {});
    if (is("collections.OrderedDict", 1)) return push_pairs(std::vector<Id>(items(given[0])));
    if (is("torch.Size", 1)) return push_items(Kind::kTuple, std::vector<Id>(items(given[0])));
    if (is("__builtin__.set", 1) || is("builtins.set", 1)) {
      return push_items(Kind::kList, std::vector<Id>(items(given[0])));
    }
    if (name == "torch._utils._rebuild_tensor_v2" && given.size() >= 4) {
      return push_items(Kind::kTensor, {given[0], given[1], given[2], given[3]});
    }
    if (is("torch._utils._rebuild_parameter", 3)) return stack_.push_back(given[0]);
    if (is("torch._tensor._rebuild_from_type_v2", 4)) {
      const std::vector<Id>& inner = items(given[2]);
      if (value(given[0]).text == "torch._utils._rebuild_tensor_v2" && inner.size() >= 4) {
        return push_items(Kind::kTensor, {inner[0], inner[1], inner[2], inner[3]});
      }
    }
    if (is("deepspeed.runtime.zero.config.ZeroStageEnum", 1)) return stack_.push_back(given[0]);
    if (is_record(name)) return push_items(Kind::kDict, {}, /*record=*/true);
    push_opaque(function);
  }

  /// The members of an object that was made without any.
  void build() {
    const Id state = pop(), object = top();
    if (!value(object).is_record) return;
    if (value(state).kind != Kind::kDict) fail("gives a record something else than members");
    const std::vector<Id> members = items(state);
    count(members.size());  // a record may be its own state
    std::vector<Id>& all = items(object);
    all.insert(all.end(), members.begin(), members.end());
  }

  /// One instruction; true: it was the last one.
  bool step(char instruction) {
    switch (instruction) {
      case '\x80':  // PROTO
        if (number<std::uint8_t>() > 5) fail("is of a protocol that is not known");
        return false;
      case '\x95':  // FRAME
        take(8);
        return false;
      case '.':
        return true;
      case '(':
        marks_.push_back(stack_.size());
        return false;
      default:
        if (!push_constant(instruction) && !use_memo(instruction) && !make(instruction)) {
          fail("has the instruction " + std::to_string(static_cast<unsigned char>(instruction)) +
               ", which torch.save does not write");
        }
        return false;
    }
  }

  bool push_constant(char instruction) {
    switch (instruction) {
      case 'N':
        return push({}), true;
      case '\x88':  // NEWTRUE
      case '\x89':  // NEWFALSE
        push_integer(instruction == '\x88' ? 1 : 0);
        value(stack_.back()).kind = Kind::kBool;
        return true;
      case 'K':
        return push_integer(number<std::uint8_t>()), true;
      case 'M':
        return push_integer(number<std::uint16_t>()), true;
      case 'J':
        return push_integer(number<std::int32_t>()), true;
      case '\x8a':  // LONG1
        return push_long(number<std::uint8_t>()), true;
      case 'G': {
        Pickle::Value real{.kind = Kind::kReal};
        const std::uint64_t bits = __builtin_bswap64(number<std::uint64_t>());
        std::memcpy(&real.real, &bits, sizeof(bits));
        return push(real), true;
      }
      case 'X':
        return push_text(Kind::kText, text(number<std::uint32_t>())), true;
      case '\x8c':  // SHORT_BINUNICODE
        return push_text(Kind::kText, text(number<std::uint8_t>())), true;
      case 'B':
        return push_text(Kind::kBytes, text(number<std::uint32_t>())), true;
      case 'C':
        return push_text(Kind::kBytes, text(number<std::uint8_t>())), true;
      case 'c': {
        const std::string_view module = line();
        return push_name(std::string(module) + "." + std::string(line())), true;
      }
      case '\x93': {  // STACK_GLOBAL
        const Id name = pop(), module = pop();
        return push_name(std::string(value(module).text) + "." + std::string(value(name).text)), true;
      }
      default:
        return false;
    }
  }

  bool use_memo(char instruction) {
    switch (instruction) {
      case 'q':
        return put(number<std::uint8_t>()), true;
      case 'r':
        return put(number<std::uint32_t>()), true;
      case '\x94':  // MEMOIZE
        return put(memo_.size()), true;
      case 'h':
        return get(number<std::uint8_t>()), true;
      case 'j':
        return get(number<std::uint32_t>()), true;
      default:
        return false;
    }
  }

  bool make(char instruction) {
    switch (instruction) {
      case '}':
        return push_items(Kind::kDict, {}), true;
      case ']':
      case '\x8f':  // EMPTY_SET
        return push_items(Kind::kList, {}), true;
      case ')':
        return push_items(Kind::kTuple, {}), true;
      case 't':
        return push_items(Kind::kTuple, pop_to_mark()), true;
      case '\x85':  // TUPLE1 to TUPLE3
      case '\x86':
      case '\x87':
        return push_items(Kind::kTuple, pop_last(static_cast<std::size_t>(instruction - '\x84'))), true;
      case 'a':
        return append(pop_last(1)), true;
      case 'e':
      case '\x90':  // ADDITEMS
        return append(pop_to_mark()), true;
      case 's':
        return set_items(pop_last(2)), true;
      case 'u':
        return set_items(pop_to_mark()), true;
      case 'Q':
        return push_storage(), true;
      case 'R':
      case '\x81':  // NEWOBJ
        return reduce(), true;
      case 'b':
        return build(), true;
      default:
        return false;
    }
  }

  Pickle& pickle_;
  Pickle::Bytes bytes_;
  const std::string& where_;
  std::uint64_t at_ = 0;
  std::size_t listed_ = 0;  // values of all lists when they were made
  std::size_t named_ = 0;   // bytes of all names
  std::vector<Id> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint64_t, Id> memo_;  // a list would grow with the number that a hostile pickle gives
};

Pickle::Pickle(Bytes bytes, const std::string& where) { PickleMachine(*this, bytes, where).run(); }

const std::vector<Pickle::Id>& Pickle::items(Id id) const { return lists_[values_[id].items]; }

}  // namespace capstan
