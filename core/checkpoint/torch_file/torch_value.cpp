#include "core/checkpoint/torch_file/torch_value.hpp"

#include <charconv>
#include <cmath>

#include "core/checkpoint/checkpoint_index.hpp"
#include "core/errors.hpp"

namespace capstan {
namespace {

constexpr std::size_t kShown = 60;

std::string list_text(const char* kind, std::size_t size) { return std::string(kind) + " of " + std::to_string(size); }

/// The shortest text that reads back to the same number.
std::string number_text(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof(text), value).ptr};
}

}  // namespace

std::string TorchValue::described() const {
  const std::string text(pickle().text(id_).substr(0, kShown));
  switch (kind()) {
    case Pickle::Kind::kNone:
      return "None";
    case Pickle::Kind::kBool:
      return pickle().boolean(id_) ? "True" : "False";
    case Pickle::Kind::kInteger:
      return std::to_string(pickle().integer(id_));
    case Pickle::Kind::kReal:
      return number_text(pickle().real(id_));
    case Pickle::Kind::kText:
      return "'" + text + "'";
    case Pickle::Kind::kBytes:
      return "bytes";
    case Pickle::Kind::kList:
      return list_text("a list", pickle().items(id_).size());
    case Pickle::Kind::kTuple:
      return list_text("a tuple", pickle().items(id_).size());
    case Pickle::Kind::kDict:
      return list_text("a dict", pickle().items(id_).size() / 2);
    case Pickle::Kind::kStorage:
      return "a storage";
    case Pickle::Kind::kTensor:
      return "a tensor";
    case Pickle::Kind::kOpaque:
      return "an object of " + text;
    case Pickle::Kind::kLongInteger:
    case Pickle::Kind::kName:
      return text;
  }
  return "a value";
}

void TorchValue::refuse(const std::string& expected) const {
  throw RuntimeFault(file_->where() + ": " + (path_.empty() ? "" : path_ + ": ") + "is " + described() + ", and " +
                     expected +
                     " is expected. The file is damaged, or another program has changed it: load another "
                     "checkpoint.");
}

void TorchValue::fail(const std::string& defect) const {
  throw RuntimeFault(file_->where() + ": " + (path_.empty() ? "" : path_ + ": ") + defect);
}

std::optional<TorchValue> TorchValue::find(std::string_view key) const {
  if (!is(Pickle::Kind::kDict)) return std::nullopt;
  const std::vector<Pickle::Id>& items = pickle().items(id_);
  for (std::size_t i = items.size(); i >= 2; i -= 2) {
    if (pickle().kind(items[i - 2]) != Pickle::Kind::kText || pickle().text(items[i - 2]) != key) continue;
    if (pickle().kind(items[i - 1]) == Pickle::Kind::kNone) return std::nullopt;
    return TorchValue(*file_, items[i - 1], (path_.empty() ? "" : path_ + ".") + std::string(key));
  }
  return std::nullopt;
}

std::optional<TorchValue> TorchValue::find(std::int64_t key) const {
  if (!is(Pickle::Kind::kDict)) return std::nullopt;
  const std::vector<Pickle::Id>& items = pickle().items(id_);
  for (std::size_t i = items.size(); i >= 2; i -= 2) {
    if (pickle().kind(items[i - 2]) != Pickle::Kind::kInteger || pickle().integer(items[i - 2]) != key) continue;
    return TorchValue(*file_, items[i - 1], path_ + "[" + std::to_string(key) + "]");
  }
  return std::nullopt;
}

TorchValue TorchValue::at(std::string_view key) const {
  if (!is(Pickle::Kind::kDict)) refuse("a dict");
  if (auto found = find(key)) return *found;
  fail((path_.empty() ? "" : "its member ") + std::string(key) + (path_.empty() ? ":" : "") +
       " is missing. The file is damaged, or another program has changed it: load another checkpoint.");
}

std::vector<TorchValue> TorchValue::items() const {
  if (!is_list()) refuse("a list");
  std::vector<TorchValue> all;
  for (const Pickle::Id item : pickle().items(id_)) {
    all.push_back(TorchValue(*file_, item, path_ + "[" + std::to_string(all.size()) + "]"));
  }
  return all;
}

std::vector<std::pair<std::string, TorchValue>> TorchValue::members() const {
  if (!is(Pickle::Kind::kDict)) refuse("a dict");
  std::vector<std::pair<std::string, TorchValue>> all;
  const std::vector<Pickle::Id>& items = pickle().items(id_);
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    const std::string key = pickle().kind(items[i]) == Pickle::Kind::kText
                                ? std::string(pickle().text(items[i]))
                                : TorchValue(*file_, items[i], "").described();
    all.emplace_back(key, TorchValue(*file_, items[i + 1], (path_.empty() ? "" : path_ + ".") + key));
  }
  return all;
}

std::vector<std::pair<TorchValue, TorchValue>> TorchValue::pairs() const {
  if (!is(Pickle::Kind::kDict)) refuse("a dict");
  std::vector<std::pair<TorchValue, TorchValue>> all;
  const std::vector<Pickle::Id>& items = pickle().items(id_);
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    const std::string path = path_ + "[" + std::to_string(i / 2) + "]";
    all.emplace_back(TorchValue(*file_, items[i], path + " (key)"), TorchValue(*file_, items[i + 1], path));
  }
  return all;
}

std::int64_t TorchValue::integer(std::int64_t least, std::int64_t most) const {
  if (is(Pickle::Kind::kInteger) && pickle().integer(id_) >= least && pickle().integer(id_) <= most) {
    return pickle().integer(id_);
  }
  refuse("an integer from " + std::to_string(least) + " to " + std::to_string(most));
}

double TorchValue::number() const {
  double value = NAN;
  if (is(Pickle::Kind::kInteger)) value = static_cast<double>(pickle().integer(id_));
  if (is(Pickle::Kind::kReal)) value = pickle().real(id_);
  if (is(Pickle::Kind::kTensor)) {
    const at::Tensor one = tensor();
    verify();
    if (one.numel() == 1) value = one.to(at::kDouble).item<double>();
    if (one.numel() == 1 && !std::isfinite(value))
      fail("is " + number_text(value) + ", and a finite number is expected.");
  }
  if (!std::isfinite(value)) refuse("a finite number");
  return value;
}

bool TorchValue::boolean() const {
  if (!is(Pickle::Kind::kBool)) refuse("True or False");
  return pickle().boolean(id_);
}

std::string TorchValue::text() const {
  if (!is(Pickle::Kind::kText)) refuse("a text");
  return std::string(pickle().text(id_));
}

std::vector<std::int64_t> TorchValue::shape() const {
  std::vector<std::int64_t> sizes;
  for (const TorchValue& item : items()) sizes.push_back(item.integer(0, INT64_MAX));
  if (elements_of(sizes) < 0) fail("is a shape that is too large.");
  return sizes;
}

}  // namespace capstan
