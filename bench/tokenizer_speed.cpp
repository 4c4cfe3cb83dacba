// How many MB a CPU second the tokenizers of folders take of files. bench/tokenize runs it beside the tokenizers
// library.
//
//   tokenizer_speed ROUNDS FOLDER FILE...

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "core/text/tokenizer/tokenizer.hpp"

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fputs("usage: tokenizer_speed ROUNDS FOLDER FILE...\n", stderr);
    return 2;
  }
  std::vector<std::string> texts;
  std::size_t bytes = 0;
  for (int i = 3; i < argc; ++i) {
    std::ifstream in(argv[i], std::ios::binary);
    texts.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    bytes += texts.back().size();
  }
  const capstan::tokenizer::Tokenizer tokenizer(argv[2]);
  capstan::tokenizer::Encoder encoder(tokenizer);
  capstan::tokenizer::Ids ids;
  double best = 0;
  std::size_t tokens = 0;
  for (int round = std::atoi(argv[1]); round > 0; --round) {
    const std::clock_t begin = std::clock();
    tokens = 0;
    for (const std::string& text : texts) {
      ids.clear();
      encoder.encode(text, ids);
      tokens += ids.size();
    }
    const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    const double rate = static_cast<double>(bytes) / 1e6 / seconds;
    best = rate > best ? rate : best;
  }
  std::printf("%.3f %zu\n", best, tokens);
  return 0;
}
