// peer_tokenize TOKENIZER INPUT OUTPUT [THREADS]: tokenizes documents, and decodes what came out.
//
// INPUT: documents, each its number of bytes (32 bits, as everything, in the machine's order) and
// the bytes. OUTPUT: for each document twice, with special tokens as text and parsed: the number of
// tokens, the tokens, the number of bytes of what they decode to, the bytes. Prints how long
// encoding as text took, of the fastest of three rounds over all documents, the first of which has
// filled the caches.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <thread>

#include "base/errors.hpp"
#include "text/tokenizer/read_tokenizer.hpp"

using namespace spillway;

namespace {

std::vector<std::string> read_documents(const char* path) {
  std::ifstream file(path, std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::string> documents;
  for (std::size_t at = 0; at + 4 <= all.size();) {
    std::uint32_t length = 0;
    std::memcpy(&length, all.data() + at, 4);
    documents.push_back(all.substr(at + 4, length));
    at += 4 + length;
  }
  return documents;
}

// Seconds of tokenizing all documents on so many threads.
double time_encoding(const Tokenizer& tokenizer, const std::vector<std::string>& documents,
                     std::size_t threads) {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::thread> workers;
  for (std::size_t worker = 0; worker < threads; ++worker) {
    workers.emplace_back([&, worker] {
      std::vector<Token> tokens;
      for (std::size_t i = worker; i < documents.size(); i += threads) {
        tokens.clear();
        tokenizer.encode(documents[i], SpecialTokens::as_text, tokens);
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void write_number(std::ofstream& file, std::size_t value) {
  const auto number = static_cast<std::uint32_t>(value);
  file.write(reinterpret_cast<const char*>(&number), 4);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  try {
    const auto tokenizer = read_tokenizer(argv[1]);
    const std::vector<std::string> documents = read_documents(argv[2]);
    const std::size_t threads = argc > 4 ? std::stoul(argv[4]) : 1;
    double seconds = 1e9;
    for (int round = 0; round < 3; ++round)
      seconds = std::min(seconds, time_encoding(*tokenizer, documents, threads));
    std::ofstream output(argv[3], std::ios::binary);
    for (const std::string& document : documents) {
      for (const SpecialTokens special : {SpecialTokens::as_text, SpecialTokens::parsed}) {
        std::vector<Token> tokens;
        tokenizer->encode(document, special, tokens);
        write_number(output, tokens.size());
        output.write(reinterpret_cast<const char*>(tokens.data()),
                     static_cast<std::streamsize>(tokens.size() * sizeof(Token)));
        const std::string text = tokenizer->decode(tokens);
        write_number(output, text.size());
        output.write(text.data(), static_cast<std::streamsize>(text.size()));
      }
    }
    fmt::print("{:.6f}\n", seconds);
  } catch (const Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
