#include "core/checkpoint/torch_file/json_of.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "core/text/utf8.hpp"

namespace capstan {
namespace {

constexpr int kDeepest = 100;
constexpr std::int64_t kMostItems = 1'000'000;
constexpr std::size_t kBytesOfItem = 256;  // a longer path counts as more items
constexpr const char* kTooLarge = "it is too large or too deep";

/// Makes JSON of a value, up to a number of items: a value may hold itself, or another one any number of times.
class JsonMaker {
 public:
  explicit JsonMaker(std::int64_t most) : most_(std::min(most, kMostItems)) {}

  std::int64_t items() const { return std::min(items_, most_); }

  std::optional<Json> make(const TorchValue& value, int depth = 0) {
    if (depth > kDeepest) return refuse(kTooLarge);
    switch (value.kind()) {
      case Pickle::Kind::kNone:
        return Json();
      case Pickle::Kind::kBool:
        return Json(value.boolean());
      case Pickle::Kind::kInteger:
        return Json(value.integer(INT64_MIN, INT64_MAX));
      case Pickle::Kind::kReal:
        return real(value.file().pickle().real(value.id()));
      case Pickle::Kind::kText:
      case Pickle::Kind::kLongInteger:
      case Pickle::Kind::kName:
        return text(value.file().pickle().text(value.id()));
      case Pickle::Kind::kList:
      case Pickle::Kind::kTuple:
        return list(value, depth);
      case Pickle::Kind::kDict:
        return object(value, depth);
      case Pickle::Kind::kTensor:
        return tensor(value);
      case Pickle::Kind::kBytes:
      case Pickle::Kind::kStorage:
      case Pickle::Kind::kOpaque:
        return refuse(value.described());
    }
    return std::nullopt;
  }

  const std::string& defect() const { return defect_; }

 private:
  std::nullopt_t refuse(std::string defect) {
    if (defect_.empty()) defect_ = std::move(defect);
    return std::nullopt;
  }

  /// Counts the items before they are made, each with its path. Whether there is room for them.
  bool counts(const TorchValue& value) {
    const Pickle& pickle = value.file().pickle();
    for (const Pickle::Id id : pickle.items(value.id())) {
      items_ += 1 + static_cast<std::int64_t>((value.path().size() + pickle.text(id).size()) / kBytesOfItem);
      if (items_ > most_) return false;
    }
    return true;
  }

  std::optional<Json> real(double number) {
    if (!std::isfinite(number)) return refuse("a number that is not finite");
    return Json(number);
  }

  std::optional<Json> text(std::string_view text) {
    if (first_invalid_utf8(text)) return refuse("a text that is not UTF-8");
    return Json(text);
  }

  std::optional<Json> list(const TorchValue& value, int depth) {
    if (!counts(value)) return refuse(kTooLarge);
    Json list = Json::array();
    for (const TorchValue& item : value.items()) {
      auto made = make(item, depth + 1);
      if (!made) return std::nullopt;
      list.push_back(std::move(*made));
    }
    return list;
  }

  std::optional<Json> object(const TorchValue& value, int depth) {
    if (!counts(value)) return refuse(kTooLarge);
    Json object = Json::object();
    std::set<std::string> names;
    for (const auto& [name, member] : value.members()) {
      if (!names.insert(name).second) return refuse("two keys, '" + name + "', that JSON cannot tell apart");
      auto made = make(member, depth + 1);
      if (!made || !text(name)) return std::nullopt;
      object.as_object().emplace_back(name, std::move(*made));
    }
    return object;
  }

  std::optional<Json> tensor(const TorchValue& value) {
    const at::Tensor values = value.tensor();
    if (values.dim() > kDeepest) return refuse(kTooLarge);
    // A tensor without elements still has lists in all dimensions before the one of size 0.
    for (std::int64_t lists = 1; const std::int64_t size : values.sizes()) {
      lists *= size;
      if ((items_ += lists) > most_) return refuse(kTooLarge);
    }
    value.verify();
    return numbers(values);
  }

  std::optional<Json> numbers(const at::Tensor& values) {
    if (values.dim() == 0) {
      if (values.scalar_type() == at::kBool) return Json(values.item<bool>());
      if (values.is_floating_point()) return real(values.item<double>());
      return Json(values.item<std::int64_t>());
    }
    Json list = Json::array();
    for (std::int64_t i = 0; i < values.size(0); ++i) {
      auto made = numbers(values.select(0, i));
      if (!made) return std::nullopt;
      list.push_back(std::move(*made));
    }
    return list;
  }

  std::int64_t most_;  // items
  std::int64_t items_ = 0;
  std::string defect_;
};

}  // namespace

std::optional<Json> json_of(const TorchValue& value, std::string& defect, std::int64_t* left) {
  JsonMaker maker(left != nullptr ? *left : kMostItems);
  auto made = maker.make(value);
  defect = maker.defect();
  if (left != nullptr) *left -= maker.items();
  return made;
}

}  // namespace capstan
