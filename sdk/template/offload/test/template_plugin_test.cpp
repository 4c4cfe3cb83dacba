#include "template_plugin.hpp"

#include <cstdio>
#include <cstdlib>

namespace {

void expect(const char* what, bool so) {
  if (so) return;
  std::printf("%s: it is not so\n", what);
  std::exit(1);
}

}  // namespace

int main() {
  TemplatePluginFile file(".");
  const std::uint64_t first = file.reserve(1000), second = file.reserve(1000);
  expect("rooms do not overlap", second >= first + 1000);

  std::string ones(1000, '1'), twos(1000, '2'), back(10, ' ');
  std::uint64_t done = 0;
  expect("a write works", file.move(true, ones.data(), first, 1000, done) == 0 && done == 1000);
  expect("another one works", file.move(true, twos.data(), second, 1000, done) == 0);
  expect("a read works", file.move(false, back.data(), second - 5, 10, done) == 0);
  expect("what was written is read", back == "1111122222");
  expect("a read behind the file's end fails, and says how far it came",
         file.move(false, back.data(), second + 995, 10, done) == EIO && done == 5);

  file.release(first, 1000);
  expect("room that was released is used again", file.reserve(500) == first);
}
