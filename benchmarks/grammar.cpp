// Measures the time of a token mask over complete documents, with a synthetic vocabulary of 151,936 tokens that
// resembles a byte-level BPE: on the first pass, which computes the masks, and in the steady state, which finds them in
// the cache. The steady state times only the work of the engine's thread. A mask that the engine leaves to another
// thread is counted and then computed without timing.
//   grammar [--json FILE]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "native/grammar/matcher.h"

namespace {

using namespace capstan::grammar;
using Clock = std::chrono::steady_clock;

constexpr int kVocabSize = 151'936;

double us_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

// Returns bytes, words of a few syllables with and without a leading space, runs of punctuation and spaces, and UTF-8.
// Lengths and shares resemble those of vocabularies trained on text and code.
std::vector<std::string> make_vocabulary() {
  std::mt19937 random(1);
  const std::vector<std::string> syllables = {"a",  "e",   "i",   "o",   "un",   "re",  "in",   "th",  "er", "on", "at",
                                              "en", "st",  "com", "pro", "tion", "ing", "ment", "ly",  "al", "is", "Ma",
                                              "De", "co",  "ta",  "li",  "ver",  "S",   "T",    "po",  "ra", "ne", "ic",
                                              "es", "con", "an",  "get", "Set",  "_",   "Data", "able"};
  const std::vector<std::string> marks = {"\"", ",",  ":", "{",  "}",   "[",   "]",   "(",  ")", ".",
                                          ";",  "\\", "/", "'",  "-",   "=",   "<",   ">",  "!", "?",
                                          "\n", "\t", " ", "  ", "\",", "\":", "\"}", "{\""};
  std::vector<std::string> tokens;
  std::set<std::string> seen;
  const auto add = [&](const std::string& token) {
    if (seen.insert(token).second) tokens.push_back(token);
  };
  for (int byte = 0; byte < 256; ++byte)
    add(std::string(1, static_cast<char>(byte)));
  for (int n = 2; n <= 128; n += n < 16 ? 1 : 16)
    add(std::string(static_cast<size_t>(n), ' ')), add(std::string(static_cast<size_t>(n), '='));
  while (tokens.size() < kVocabSize - 1) {
    std::string token = random() % 2 == 0 ? " " : "";
    const auto kind = random() % 100;
    if (kind < 72)
      for (size_t n = 1 + random() % 4; n > 0; --n)
        token += syllables[random() % syllables.size()];
    else if (kind < 82)
      for (size_t n = 2 + random() % 3; n > 0; --n)
        token += marks[random() % marks.size()];
    else if (kind < 88)
      token += syllables[random() % syllables.size()] + marks[random() % marks.size()] +
               (random() % 2 == 0 ? syllables[random() % syllables.size()] : "");
    else
      for (size_t n = 1 + random() % 3; n > 0; --n) {
        const uint32_t c = 0x4E00 + static_cast<uint32_t>(random() % 0x5000);
        token += {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 63)),
                  static_cast<char>(0x80 | (c & 63))};
      }
    add(token);
  }
  tokens.push_back("<eos>");
  return tokens;
}

std::shared_ptr<const TokenTable> make_table(const std::vector<std::string>& tokens) {
  std::string bytes;
  std::vector<uint32_t> offsets{0};
  for (const std::string& token : tokens)
    offsets.push_back(static_cast<uint32_t>((bytes += token).size()));
  return std::make_shared<const TokenTable>(bytes, offsets, std::vector<uint8_t>(tokens.size()),
                                            std::vector<int32_t>{kVocabSize - 1});
}

struct Case {
  const char* name;
  std::string grammar;
};

const std::string kValue = R"(
value  ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" ws (member ("," ws member)*)? "}"
member ::= string ":" ws value ws
array  ::= "[" ws (value ws ("," ws value ws)*)? "]"
string ::= "\"" char* "\""
char   ::= [^"\\\x00-\x1f] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4})
number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [-+]? [0-9]+)?
ws     ::= [ \n]?
)";

Grammar reasoning_then_json() {
  Grammar grammar = parse_gbnf("json ::= object\n" + kValue);
  grammar.rules.push_back({"root", sequence({until("</think>"), rule_ref("json")})});
  return grammar;
}

struct Result {
  double first_mean = 0, first_max = 0;  // first pass, in microseconds
  double mean = 0, p99 = 0, max = 0;     // steady state, in microseconds
  int num_tokens = 0;
  int num_left = 0;  // masks left to another thread
};

// Generates one document of random allowed tokens, preferring longer ones like a tokenizer. Appends the time of each
// mask. Returns the number of masks left to another thread.
int run_document(const std::shared_ptr<const CompiledGrammar>& grammar, uint32_t seed, bool is_steady,
                 std::vector<double>& times) {
  constexpr int kMaxTokens = 300;
  std::mt19937 random(seed);
  GrammarMatcher matcher(grammar);
  std::vector<uint32_t> mask(grammar->tokens()->num_mask_words());
  int num_left = 0;
  for (int i = 0; i < kMaxTokens && !matcher.is_terminated(); ++i) {
    const auto begin = Clock::now();
    size_t work_left = SIZE_MAX;
    const bool is_filled = is_steady && matcher.try_fill_mask(mask, work_left);
    if (is_steady) times.push_back(us_since(begin));
    if (!is_filled) {
      matcher.fill_mask(mask);
      num_left += is_steady;
    }
    if (!is_steady) times.push_back(us_since(begin));
    int32_t best = -1;
    for (int attempt = 0; attempt < 5000; ++attempt) {
      const auto id = static_cast<int32_t>(random() % kVocabSize);
      if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0 &&
          (best < 0 || grammar->tokens()->bytes_of(id).size() > 2))
        best = id;
      if (best >= 0 && attempt > 20) break;
    }
    for (int32_t id = 0; best < 0 && id < kVocabSize; ++id)
      if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0) best = id;
    if (best < 0 || !matcher.accept(best)) std::abort();
  }
  return num_left;
}

Result measure(const std::shared_ptr<const CompiledGrammar>& grammar) {
  constexpr int kDocuments = 20;
  Result result;
  std::vector<double> times;
  const auto mean = [&] {
    double sum = 0;
    for (const double time : times)
      sum += time;
    return sum / static_cast<double>(times.size());
  };
  for (uint32_t seed = 0; seed < kDocuments; ++seed)
    run_document(grammar, seed, false, times);
  result.first_mean = mean();
  result.first_max = *std::ranges::max_element(times);
  times.clear();
  for (uint32_t seed = 0; seed < kDocuments; ++seed)
    result.num_left += run_document(grammar, seed, true, times);
  std::ranges::sort(times);
  result.mean = mean();
  result.p99 = times[times.size() * 99 / 100];
  result.max = times.back();
  result.num_tokens = static_cast<int>(times.size());
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<Case> cases = {
      {"json", "root ::= object\n" + kValue},
      {"record",
       R"g(root ::= "{\"name\": " string ", \"age\": " [0-9]{1,3} ", \"tags\": [" string ("," string){0,8} "], \"address\": {\"street\": " string ", \"zip\": \"" [0-9]{5} "\"}}")g"
       "\n" +
           kValue},
      {"bounded string", "root ::= \"\\\"\" char{0,400} \"\\\"\"\n" + kValue},
      {"enum of 1,000",
       [] {
         std::string text = "root ::= \"\\\"\" (";
         for (int i = 0; i < 1000; ++i)
           text += (i > 0 ? " | \"" : "\"") + std::string("option ") + std::to_string(i * 7919 % 100'003) + "\"";
         return text + ") \"\\\"\"";
       }()},
      {"reasoning, then json", ""},
      {"words", "root ::= (word (\" \" | \", \")){3,200} \"!\"\nword ::= [a-zA-Z]{1,12} | \"[\" word \"]\""},
  };
  auto begin = Clock::now();
  const auto tokens = make_table(make_vocabulary());
  std::printf("vocabulary of %d: trie of %u nodes in %.0f ms\n", kVocabSize, tokens->trie().num_nodes(),
              us_since(begin) / 1000);
  std::string json;
  std::printf("%-16s %10s %12s %12s | %10s %10s %10s %8s %8s %8s\n", "grammar", "compile", "first mean", "first max",
              "mean us", "p99 us", "max us", "left", "tokens", "cache MB");
  for (const Case& test : cases) {
    begin = Clock::now();
    const auto grammar = std::make_shared<const CompiledGrammar>(
        test.grammar.empty() ? reasoning_then_json() : parse_gbnf(test.grammar), tokens);
    const double compile_us = us_since(begin);
    const Result result = measure(grammar);
    const double cache_mb = static_cast<double>(grammar->masks().size_bytes()) / 1e6;
    std::printf("%-16s %7.0f us %9.1f us %9.0f us | %10.1f %10.1f %10.1f %8d %8d %8.1f\n", test.name, compile_us,
                result.first_mean, result.first_max, result.mean, result.p99, result.max, result.num_left,
                result.num_tokens, cache_mb);
    char line[512];
    std::snprintf(
        line, sizeof line,
        "%s  {\"grammar\": \"%s\", \"compile_us\": %.0f, \"first_mean_us\": %.1f, \"first_max_us\": %.0f, \"mean_us\": %.2f, \"p99_us\": %.2f, \"max_us\": %.1f, \"num_left\": %d, \"num_tokens\": %d, \"cache_mb\": %.2f}",
        json.empty() ? "" : ",\n", test.name, compile_us, result.first_mean, result.first_max, result.mean, result.p99,
        result.max, result.num_left, result.num_tokens, cache_mb);
    json += line;
  }
  if (argc == 3 && std::strcmp(argv[1], "--json") == 0) std::ofstream(argv[2]) << "[\n" << json << "\n]\n";
}
