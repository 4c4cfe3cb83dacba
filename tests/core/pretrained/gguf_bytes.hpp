#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace capstan::test {

/// Puts a GGUF file together byte by byte, as the format's page describes it, and wrongly where a test asks for it.
class GgufBytes {
 public:
  template <class T>
  static std::string raw(T value) {
    return {reinterpret_cast<const char*>(&value), sizeof value};
  }
  static std::string text(std::string_view text) { return raw(std::uint64_t{text.size()}) + std::string(text); }

  /// A value of type 9, of elements of `type`.
  static std::string array(std::uint32_t type, std::size_t count, const std::string& elements) {
    return raw(type) + raw(std::uint64_t{count}) + elements;
  }
  static std::string texts(const std::vector<std::string>& texts) {
    std::string elements;
    for (const std::string& one : texts) elements += text(one);
    return array(8, texts.size(), elements);
  }

  GgufBytes& add(std::string_view key, std::uint32_t type, const std::string& value) {
    metadata_ += text(key) + raw(type) + value;
    ++keys_;
    return *this;
  }
  GgufBytes& count(std::string_view key, std::uint32_t value) { return add(key, 4, raw(value)); }
  GgufBytes& number(std::string_view key, float value) { return add(key, 6, raw(value)); }
  GgufBytes& words(std::string_view key, std::string_view value) { return add(key, 8, text(value)); }

  /// `sizes` as LibTorch has them. The data follow those of the tensor before at the next multiple of 32.
  GgufBytes& tensor(std::string_view name, std::uint32_t type, const std::vector<std::uint64_t>& sizes,
                    const std::string& data) {
    return tensor_at(name, type, sizes, data_.size(), data);
  }
  GgufBytes& tensor_at(std::string_view name, std::uint32_t type, const std::vector<std::uint64_t>& sizes,
                       std::uint64_t offset, const std::string& data) {
    infos_ += text(name) + raw(static_cast<std::uint32_t>(sizes.size()));
    for (auto size = sizes.rbegin(); size != sizes.rend(); ++size) infos_ += raw(*size);
    infos_ += raw(type) + raw(offset);
    ++tensors_;
    data_ += data;
    data_.resize((data_.size() + 31) / 32 * 32);
    return *this;
  }

  /// Numbers of type F32.
  static std::string floats(const std::vector<float>& values) {
    std::string bytes;
    for (const float value : values) bytes += raw(value);
    return bytes;
  }

  std::uint32_t version = 3;
  std::uint64_t more_keys = 0, more_tensors = 0;  // that the counts promise and the file lacks

  std::string bytes() const {
    std::string file =
        "GGUF" + raw(version) + raw(tensors_ + more_tensors) + raw(keys_ + more_keys) + metadata_ + infos_;
    file.resize((file.size() + 31) / 32 * 32);
    return file + data_;
  }

 private:
  std::string metadata_, infos_, data_;
  std::uint64_t keys_ = 0, tensors_ = 0;
};

/// The metadata of a llama of two layers, 8 wide, with 2 heads, and the matrix that tells its vocabulary of 4.
inline GgufBytes small_llama(std::string_view architecture = "llama") {
  const std::string begin = std::string(architecture) + ".";
  GgufBytes file;
  file.words("general.architecture", architecture)
      .count(begin + "block_count", 2)
      .count(begin + "context_length", 64)
      .count(begin + "embedding_length", 8)
      .count(begin + "feed_forward_length", 16)
      .count(begin + "attention.head_count", 2)
      .number(begin + "attention.layer_norm_rms_epsilon", 1e-5F)
      .tensor("token_embd.weight", 0, {4, 8}, std::string(128, '\0'));
  return file;
}

}  // namespace capstan::test
