#include "core/pretrained/gguf_header.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include "core/errors.hpp"

namespace capstan {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF files are little-endian and read as they are");

constexpr std::uint64_t kDefaultAlignment = 32, kMostDimensions = 4;
// The least that an entry takes: a key's length, a type, and one byte of value; a name's length, dimensions, type and
// offset of a tensor.
constexpr std::uint64_t kLeastEntry = 8 + 4 + 1, kLeastTensor = 8 + 4 + 4 + 8;

/// Element types that this program does not read, by their numbers.
constexpr std::pair<std::uint32_t, const char*> kUnreadTypes[] = {
    {4, "Q4_2"},        {5, "Q4_3"},        {6, "Q5_0"},        {7, "Q5_1"},      {9, "Q8_1"},   {10, "Q2_K"},
    {11, "Q3_K"},       {12, "Q4_K"},       {13, "Q5_K"},       {14, "Q6_K"},     {15, "Q8_K"},  {16, "IQ2_XXS"},
    {17, "IQ2_XS"},     {18, "IQ3_XXS"},    {19, "IQ1_S"},      {20, "IQ4_NL"},   {21, "IQ3_S"}, {22, "IQ2_S"},
    {23, "IQ4_XS"},     {24, "I8"},         {25, "I16"},        {26, "I32"},      {27, "I64"},   {28, "F64"},
    {29, "IQ1_M"},      {31, "Q4_0_4_4"},   {32, "Q4_0_4_8"},   {33, "Q4_0_8_8"}, {34, "TQ1_0"}, {35, "TQ2_0"},
    {36, "IQ4_NL_4_4"}, {37, "IQ4_NL_4_8"}, {38, "IQ4_NL_8_8"}, {39, "MXFP4"},    {40, "NVFP4"}, {41, "Q1_0"},
    {42, "Q2_0"}};

std::string name_of_type(std::uint32_t type) {
  for (const auto& [number, name] : kUnreadTypes) {
    if (number == type) return name;
  }
  return std::to_string(type);
}

bool is_read(std::uint32_t type) { return type == 0 || type == 1 || type == 2 || type == 3 || type == 8 || type == 30; }

/// Bytes of a value of fixed size; 0 for texts and arrays.
std::uint64_t size_of(GgufValueType type) {
  switch (type) {
    case GgufValueType::kUint8:
    case GgufValueType::kInt8:
    case GgufValueType::kBool:
      return 1;
    case GgufValueType::kUint16:
    case GgufValueType::kInt16:
      return 2;
    case GgufValueType::kUint32:
    case GgufValueType::kInt32:
    case GgufValueType::kFloat32:
      return 4;
    case GgufValueType::kUint64:
    case GgufValueType::kInt64:
    case GgufValueType::kFloat64:
      return 8;
    default:
      return 0;
  }
}

template <class T>
T value_at(std::string_view bytes) {
  T value{};
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

/// Reads a header from its first byte on and complains with the file's name in front.
class GgufParser {
 public:
  GgufParser(const std::byte* bytes, std::uint64_t size, const std::string& where)
      : all_(reinterpret_cast<const char*>(bytes), size), where_(where) {}

  GgufHeader parse() {
    check_magic();
    const auto tensors = take<std::uint64_t>("the number of tensors"),
               entries = take<std::uint64_t>("the number of keys");
    check_count("tensors", tensors, kLeastTensor);
    check_count("keys of metadata", entries, kLeastEntry);
    GgufHeader header;
    std::set<std::string_view> keys;
    for (std::uint64_t i = 0; i < entries; ++i) {
      header.metadata.push_back(entry());
      if (!keys.insert(header.metadata.back().key).second) {
        fail("the key '" + std::string(header.metadata.back().key) + "' of its metadata is there twice.");
      }
    }
    for (std::uint64_t i = 0; i < tensors; ++i) header.tensors.push_back(tensor());
    place(header);
    return header;
  }

 private:
  [[noreturn]] void fail(const std::string& defect) const { throw RuntimeFault(where_ + ": " + defect); }

  std::uint64_t left() const { return all_.size() - position_; }

  std::string_view take_bytes(std::uint64_t count, const char* what) {
    if (count > left()) {
      fail("it is cut off or damaged: " + std::string(what) + " would take " + std::to_string(count) +
           " bytes from byte " + std::to_string(position_) + " on, and the file has " + std::to_string(all_.size()) +
           ".");
    }
    const std::string_view bytes = all_.substr(position_, count);
    position_ += count;
    return bytes;
  }

  template <class T>
  T take(const char* what) {
    return value_at<T>(take_bytes(sizeof(T), what));
  }

  std::string_view take_text(const char* what) {
    const auto length = take<std::uint64_t>(what);
    return take_bytes(length, what);
  }

  void check_magic() {
    if (all_.size() < 4 || all_.substr(0, 4) != "GGUF") fail("this is not a GGUF file: it does not begin with 'GGUF'.");
    position_ = 4;
    const auto version = take<std::uint32_t>("the version");
    if (version == 0x02000000 || version == 0x03000000) {
      fail("it is a big-endian GGUF file. Convert it to little-endian, with gguf_convert_endian of the package gguf.");
    }
    if (version != 2 && version != 3) {
      fail("it is of version " + std::to_string(version) + " of GGUF, and this program reads 2 and 3.");
    }
  }

  void check_count(const char* what, std::uint64_t count, std::uint64_t least) const {
    if (count <= left() / least) return;
    fail("it is cut off or damaged: it would have " + std::to_string(count) + " " + what + ", and " +
         std::to_string(all_.size()) + " bytes do not hold so many.");
  }

  GgufValueType take_type(const std::string_view key) {
    const auto type = take<std::uint32_t>("a type of its metadata");
    if (type > static_cast<std::uint32_t>(GgufValueType::kFloat64)) {
      fail("its metadata key '" + std::string(key.substr(0, 100)) + "' is of type " + std::to_string(type) +
           ", which GGUF does not have.");
    }
    return static_cast<GgufValueType>(type);
  }

  /// Goes over an array and gives its number of elements.
  std::uint64_t skip_array(std::string_view key) {
    const GgufValueType type = take_type(key);
    const auto count = take<std::uint64_t>("the length of an array");
    if (type == GgufValueType::kArray) fail("its metadata key '" + std::string(key) + "' is an array of arrays.");
    const std::uint64_t least = type == GgufValueType::kString ? 8 : size_of(type);
    check_count("elements in an array", count, least);
    if (type == GgufValueType::kString) {
      for (std::uint64_t i = 0; i < count; ++i) take_text("a text of an array");
    } else {
      take_bytes(count * least, "an array");
    }
    return count;
  }

  GgufEntry entry() {
    GgufEntry entry;
    entry.key = take_text("a key of its metadata");
    entry.type = take_type(entry.key);
    const std::uint64_t begin = position_;
    if (entry.type == GgufValueType::kArray) {
      entry.elements = skip_array(entry.key);
    } else if (entry.type == GgufValueType::kString) {
      take_text("a text of its metadata");
    } else {
      take_bytes(size_of(entry.type), "a value of its metadata");
    }
    entry.value = all_.substr(begin, position_ - begin);
    return entry;
  }

  GgufTensorInfo tensor() {
    GgufTensorInfo tensor;
    tensor.name = take_text("the name of a tensor");
    const auto dimensions = take<std::uint32_t>("the dimensions of a tensor");
    const std::string of = "tensor '" + tensor.name.substr(0, 100) + "' ";
    if (dimensions > kMostDimensions)
      fail(of + "has " + std::to_string(dimensions) + " dimensions, and 4 are the most.");
    std::int64_t elements = 1;
    for (std::uint32_t i = 0; i < dimensions; ++i) {
      const auto size = take<std::uint64_t>("a size of a tensor");
      // 8 bytes is more than an element takes, so that sizes in bytes do not overflow either.
      if (size > std::numeric_limits<std::int64_t>::max() / 8 ||
          __builtin_mul_overflow(elements, std::max<std::int64_t>(static_cast<std::int64_t>(size), 1), &elements) ||
          elements > std::numeric_limits<std::int64_t>::max() / 8) {
        fail(of + "is too large.");
      }
      tensor.shape.insert(tensor.shape.begin(), static_cast<std::int64_t>(size));
    }
    tensor.type = take_element_type(of);
    tensor.begin = take<std::uint64_t>("the place of a tensor");
    const GgufBlock block = block_of(tensor.type);
    const std::uint64_t row = tensor.shape.empty() ? 1 : static_cast<std::uint64_t>(tensor.shape.back());
    if (row % block.elements != 0) {
      fail(of + "has rows of " + std::to_string(row) + " elements, and its type packs blocks of " +
           std::to_string(block.elements) + ".");
    }
    return tensor;
  }

  GgufType take_element_type(const std::string& of) {
    const auto type = take<std::uint32_t>("the type of a tensor");
    if (is_read(type)) return static_cast<GgufType>(type);
    fail(
        of + "is of type " + name_of_type(type) +
        ", which is not read here: F32, F16, BF16, Q8_0, Q4_0 and Q4_1 are. Take another file of the model, or convert "
        "this one with llama-quantize --allow-requantize FILE OUT Q8_0.");
  }

  std::uint64_t alignment(const GgufHeader& header) const {
    const GgufEntry* entry = header.find("general.alignment");
    if (entry == nullptr) return kDefaultAlignment;
    const std::optional<std::int64_t> value = entry->integer();
    if (value && *value > 0 && *value <= (1 << 20) && std::has_single_bit(static_cast<std::uint64_t>(*value))) {
      return static_cast<std::uint64_t>(*value);
    }
    fail("its general.alignment is not a power of two from 1 to 1,048,576.");
  }

  /// Turns offsets in the data into places in the file.
  void place(GgufHeader& header) const {
    const std::uint64_t align = alignment(header);
    const std::uint64_t data = (position_ + align - 1) / align * align;
    std::set<std::string_view> names;
    for (GgufTensorInfo& tensor : header.tensors) {
      const std::string of = "tensor '" + tensor.name.substr(0, 100) + "' ";
      if (!names.insert(tensor.name).second) fail(of + "is there twice.");
      const GgufBlock block = block_of(tensor.type);
      std::uint64_t elements = 1;
      for (const std::int64_t size : tensor.shape) elements *= static_cast<std::uint64_t>(size);
      const std::uint64_t bytes = elements / block.elements * block.bytes;
      if (tensor.begin % align != 0) {
        fail(of + "stands at byte " + std::to_string(tensor.begin) + " of the data, which is no multiple of " +
             std::to_string(align) + ".");
      }
      if (data > all_.size() || tensor.begin > all_.size() - data || bytes > all_.size() - data - tensor.begin) {
        fail(of + "takes " + std::to_string(bytes) + " bytes from byte " + std::to_string(tensor.begin) +
             " of the data on, and the file has " + std::to_string(data > all_.size() ? 0 : all_.size() - data) +
             ": it is cut off or damaged.");
      }
      tensor.begin += data;
      tensor.end = tensor.begin + bytes;
    }
    check_apart(header);
  }

  void check_apart(const GgufHeader& header) const {
    std::vector<const GgufTensorInfo*> sorted;
    for (const GgufTensorInfo& tensor : header.tensors) sorted.push_back(&tensor);
    std::sort(sorted.begin(), sorted.end(),
              [](const auto* a, const auto* b) { return std::pair(a->begin, a->end) < std::pair(b->begin, b->end); });
    for (std::size_t i = 1; i < sorted.size(); ++i) {
      if (sorted[i]->begin >= sorted[i - 1]->end) continue;
      fail("tensor '" + sorted[i]->name.substr(0, 100) + "' overlaps '" + sorted[i - 1]->name.substr(0, 100) + "'.");
    }
  }

  std::string_view all_;
  const std::string& where_;
  std::uint64_t position_ = 0;
};

}  // namespace

std::optional<std::int64_t> GgufEntry::integer() const {
  switch (type) {
    case GgufValueType::kUint8:
      return value_at<std::uint8_t>(value);
    case GgufValueType::kInt8:
      return value_at<std::int8_t>(value);
    case GgufValueType::kUint16:
      return value_at<std::uint16_t>(value);
    case GgufValueType::kInt16:
      return value_at<std::int16_t>(value);
    case GgufValueType::kUint32:
      return value_at<std::uint32_t>(value);
    case GgufValueType::kInt32:
      return value_at<std::int32_t>(value);
    case GgufValueType::kInt64:
      return value_at<std::int64_t>(value);
    case GgufValueType::kUint64: {
      const auto whole = value_at<std::uint64_t>(value);
      if (whole > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return std::nullopt;
      return static_cast<std::int64_t>(whole);
    }
    default:
      return std::nullopt;
  }
}

std::optional<double> GgufEntry::number() const {
  if (type == GgufValueType::kFloat32) return value_at<float>(value);
  if (type == GgufValueType::kFloat64) return value_at<double>(value);
  if (const auto whole = integer()) return static_cast<double>(*whole);
  return std::nullopt;
}

std::optional<std::string_view> GgufEntry::text() const {
  if (type != GgufValueType::kString) return std::nullopt;
  return value.substr(sizeof(std::uint64_t));
}

GgufBlock block_of(GgufType type) {
  switch (type) {
    case GgufType::kF32:
      return {1, 4};
    case GgufType::kF16:
    case GgufType::kBF16:
      return {1, 2};
    case GgufType::kQ4_0:
      return {32, 18};
    case GgufType::kQ4_1:
      return {32, 20};
    case GgufType::kQ8_0:
      return {32, 34};
  }
  return {1, 4};
}

const GgufEntry* GgufHeader::find(std::string_view key) const {
  const auto found =
      std::find_if(metadata.begin(), metadata.end(), [&](const auto& entry) { return entry.key == key; });
  return found == metadata.end() ? nullptr : &*found;
}

const GgufTensorInfo* GgufHeader::tensor(std::string_view name) const {
  const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const auto& one) { return one.name == name; });
  return found == tensors.end() ? nullptr : &*found;
}

GgufHeader parse_gguf(const std::byte* bytes, std::uint64_t size, const std::string& where) {
  return GgufParser(bytes, size, where).parse();
}

bool names_gguf(const std::filesystem::path& path) { return path.extension() == ".gguf"; }

}  // namespace capstan
