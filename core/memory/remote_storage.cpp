#include "core/memory/remote_storage.hpp"

#include <utility>

namespace capstan {
namespace {

// LibTorch can make a storage refuse its memory with a sentence, for fake tensors, which never have any; it has no
// public way back. Naming a private member in an explicit instantiation is the way that the language allows.
bool& refuses(c10::StorageImpl& storage);

template <bool c10::StorageImpl::*member>
struct Reach {
  friend bool& refuses(c10::StorageImpl& storage) { return storage.*member; }
};
template struct Reach<&c10::StorageImpl::throw_on_immutable_data_ptr_>;

}  // namespace

void drop_memory(c10::StorageImpl& storage, std::string sentence) {
  const c10::Device device = storage.device();
  storage.set_data_ptr_noswap(at::DataPtr(nullptr, device));
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(std::move(sentence));
}

void restore_memory(c10::StorageImpl& storage, at::DataPtr memory) {
  refuses(storage) = false;
  storage.set_data_ptr_noswap(std::move(memory));  // and counts the refusal out
}

}  // namespace capstan
